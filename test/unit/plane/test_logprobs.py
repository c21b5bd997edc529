from __future__ import annotations

import math
import struct
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.managers.utils import (
    GenerationBatchResult,
    get_logprob_dict_from_result,
    get_logprob_from_pp_outputs,
)
from sglang.srt.model_executor.forward_batch_info import PPProxyTensors

from sglang_wavepp.plane.codec import CodecError, decode, encode
from sglang_wavepp.plane.logprobs import pack, unpack
from sglang_wavepp.plane.messages import WaveResult

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.bool]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    dtype = draw(st.sampled_from(DTYPES))
    values = torch.tensor(draw(st.lists(st.integers(0, 1), min_size=27, max_size=27)), dtype=torch.float64)
    values[values == 0] = (
        draw(st.sampled_from([0.0, -0.0, math.nan, -math.inf, 1.5])) if dtype.is_floating_point else 0
    )
    whole = values.to(dtype).reshape(3, 3, 3)
    view = whole.transpose(0, 2)[tuple(slice(0, n) for n in shape)] if len(shape) == 3 else None
    return view if view is not None else whole.reshape(-1)[: math.prod(shape)].reshape(shape)


VALUES = st.recursive(
    st.none() | st.floats() | st.integers(-(2**63), 2**63 - 1) | tensors(),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and same(a.tolist(), b.tolist())
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    return bool(a == b)


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=4))
def test_every_bit_and_every_level_survives(values: dict[str, Any]) -> None:
    arrived = unpack(pack(values))
    assert list(arrived) == list(values)
    assert all(same(values[key], arrived[key]) for key in values)


def test_sglang_rebuilds_its_output_from_what_a_follower_receives() -> None:
    """The same call on the original dictionary and on the relayed one gives the same result."""
    output = LogitsProcessorOutput(
        next_token_logits=None,
        next_token_logprobs=torch.tensor([-0.5, -math.inf]),
        next_token_top_logprobs_val=[torch.tensor([-0.5, -1.0]), torch.tensor([])],
        next_token_top_logprobs_idx=[torch.tensor([3, 4]), torch.tensor([], dtype=torch.int64)],
        next_token_token_ids_logprobs_val=[torch.tensor([-2.0]), []],
        next_token_token_ids_logprobs_idx=[[7], []],
        input_token_logprobs=torch.tensor([-1.0, math.nan, -3.0]),
        input_top_logprobs_val=[[[None], [-1.0, -2.0]], []],
        input_top_logprobs_idx=[[[None], [5, 6]], []],
        input_token_ids_logprobs_val=[[None, [-1.0]], []],
        input_token_ids_logprobs_idx=[[None, [9]], []],
    )
    result = GenerationBatchResult(
        logits_output=output, extend_input_len_per_req=[3, 1], extend_logprob_start_len_per_req=[0, 1]
    )
    relayed = get_logprob_dict_from_result(result)
    sent = WaveResult(wave=4, token_ids=(3, 8), logprobs=pack(relayed))
    received = decode([bytes(frame) for frame in encode(sent)])
    assert isinstance(received, WaveResult)
    assert received.logprobs is not None
    rebuilt, lengths, starts = get_logprob_from_pp_outputs(PPProxyTensors(unpack(received.logprobs)))
    assert (lengths, starts) == ([3, 1], [0, 1])
    for field in vars(output):
        assert same(getattr(rebuilt, field), getattr(output, field)), field


def test_received_tensors_may_be_written() -> None:
    received = unpack(pack({"a": torch.zeros(2)}))["a"]
    received += 1
    assert received.tolist() == [1, 1]


@pytest.mark.parametrize("value", [object(), [1, {2}], 2**64])
def test_what_has_no_wire_form_is_refused_by_key(value: Any) -> None:
    if isinstance(value, list):
        value = [1, object()]
    with pytest.raises(CodecError, match="input_top_logprobs_val"):
        pack({"input_top_logprobs_val": value})


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x92\x01", b"\xd4\x02a", b"\xd4\x01a", b"\xa1\xff"])
def test_garbage_is_refused_by_key(data: bytes) -> None:
    with pytest.raises(CodecError, match="next_token_logprobs"):
        unpack({"next_token_logprobs": data})


def test_a_tensor_of_the_wrong_size_is_refused() -> None:
    data = pack({"x": torch.zeros(4)})["x"]
    with pytest.raises(CodecError, match=r"'x'.*shape"):
        unpack({"x": data.replace(b"\x91\x04", b"\x91\x05")})
    with pytest.raises(CodecError, match=r"'x'.*dtype"):
        unpack({"x": data.replace(b"float32", b"nothing")})
