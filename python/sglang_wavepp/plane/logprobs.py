"""Log probabilities of a wave, from the last stage to every rank, exactly as SGLang's own pipeline relays them.

SGLang pickles this dictionary between stages. Here each value becomes one msgpack frame: numbers keep all
their bits (NaN, infinities and None included) and tensors their dtype and shape, and no code can travel. Rank
0 passes the frames on without reading them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import torch

from sglang_wavepp.plane.codec import CodecError
from sglang_wavepp.plane.tensor_bytes import bytes_of, dtype_name, tensor_from

_TENSOR = 1


class _Tensor(msgspec.Struct, frozen=True, array_like=True):
    dtype: str
    shape: tuple[int, ...]
    data: bytes


def _to_extension(value: Any) -> msgspec.msgpack.Ext:
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{type(value).__name__} has no wire form")
    wire = _Tensor(dtype=dtype_name(value.dtype), shape=tuple(value.shape), data=bytes(bytes_of(value.cpu())))
    return msgspec.msgpack.Ext(_TENSOR, msgspec.msgpack.encode(wire))


def _from_extension(code: int, data: memoryview) -> torch.Tensor:
    if code != _TENSOR:
        raise ValueError(f"unknown extension {code}")
    wire = msgspec.msgpack.decode(data, type=_Tensor)
    return tensor_from(bytearray(wire.data), dtype=wire.dtype, shape=wire.shape)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_to_extension)
_DECODER = msgspec.msgpack.Decoder(ext_hook=_from_extension)


def pack(tensor_dict: Mapping[str, Any]) -> dict[str, bytes]:
    """Wire form of `sglang.srt.managers.utils.get_logprob_dict_from_result(...)`, one value per key.

    Values are None, numbers, tensors and lists of these at any depth. Tensors on a device are copied to the
    host, which waits for it; a tuple arrives as a list.

    Raises:
        CodecError: a value has no wire form; the text names its key.
    """
    packed = {}
    for key, value in tensor_dict.items():
        try:
            packed[key] = _ENCODER.encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise CodecError(f"logprobs[{key!r}]: {error}") from error
    return packed


def unpack(packed: Mapping[str, bytes]) -> dict[str, Any]:
    """What `pack` was given: lists, numbers and writable tensors on the CPU.

    Fit for `get_logprob_from_pp_outputs(PPProxyTensors(...))`.

    Raises:
        CodecError: a value can't be read; the text names its key.
    """
    values = {}
    for key, data in packed.items():
        try:
            values[key] = _DECODER.decode(data)
        except (ValueError, UnicodeDecodeError, RecursionError) as error:
            raise CodecError(f"logprobs[{key!r}]: {error}") from error
    return values
