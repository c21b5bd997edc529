"""Messages as ZMQ frames: a JSON header, then raw frames for what JSON carries badly.

Token ids travel as little-endian int64, the open part of an installation record as msgpack (it may hold NaN
and infinities, which JSON turns into null), logprobs as the bytes that `plane.logprobs` made. The header
lists the size of every frame, so that a truncated or padded message is refused.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import msgspec

from sglang_wavepp.admission.messages import Broadcast, InstallRecord
from sglang_wavepp.plane.messages import Message, ResultCommand, WaveResult

Frame: TypeAlias = "bytes | bytearray | memoryview"

_EMPTY_IDS: array[int] = array("q")


class CodecError(ValueError):
    """A message that can't be encoded or decoded; the text names the field."""


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    message: Message
    sizes: tuple[int, ...] = ()
    logprobs: tuple[str, ...] | None = None  # keys of the logprob frames


def _blank_ids(value: Any) -> None:
    """Encode the blanked token ids of a record in the header."""
    if isinstance(value, array) and not value:
        return
    raise NotImplementedError(f"no wire form for {type(value).__name__}")


def _no_ids(kind: type, value: Any) -> array[int]:
    if kind is array and value is None:
        return array("q")
    raise ValueError(f"no wire form for {kind}")


_TO_HEADER = msgspec.json.Encoder(enc_hook=_blank_ids)
_FROM_HEADER = msgspec.json.Decoder(_Header, dec_hook=_no_ids)
_TO_REQUEST = msgspec.msgpack.Encoder()
_FROM_REQUEST = msgspec.msgpack.Decoder(dict[str, Any])


def encode(message: Message) -> list[Frame]:
    """Frames of a message, header first.

    Frames may share memory with the message (token ids), which therefore must not change until they are sent.

    Raises:
        CodecError: a value has no wire form, such as a string with a lone surrogate or an id beyond int64.
    """
    frames: list[Frame] = []
    keys: tuple[str, ...] | None = None
    blank: Message = message
    if isinstance(message, Broadcast):
        if message.records:
            for record in message.records:
                frames += _record_frames(record)
            blank = msgspec.structs.replace(message, records=tuple(map(_blanked, message.records)))
    elif isinstance(message, ResultCommand | WaveResult):
        frames.append(_ids_frame(message.token_ids, "token_ids"))
        if message.logprobs is not None:
            keys = tuple(message.logprobs)
            frames += message.logprobs.values()
        blank = msgspec.structs.replace(message, token_ids=(), logprobs=None)
    header = _Header(message=blank, sizes=tuple(len(memoryview(f).cast("B")) for f in frames), logprobs=keys)
    try:
        return [_TO_HEADER.encode(header), *frames]
    except (TypeError, ValueError, OverflowError, NotImplementedError, RecursionError) as error:
        raise CodecError(f"cannot encode {type(message).__name__}: {error}") from error


def decode(frames: Sequence[Frame]) -> Message:
    """The message that these frames carry; an inverse of `encode`.

    Raises:
        CodecError: the frames are no such message; nothing is guessed.
    """
    if not frames:
        raise CodecError("a message has at least a header frame, got none")
    try:
        header = _FROM_HEADER.decode(frames[0])
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise CodecError(f"header: {error}") from error
    payload = frames[1:]
    if tuple(len(f) for f in payload) != header.sizes:
        raise CodecError(
            f"sizes: the header announces frames of {header.sizes} bytes, got {[len(f) for f in payload]}"
        )
    message, rest = header.message, iter(payload)
    if isinstance(message, Broadcast):
        _expect(len(payload), 2 * len(message.records), "records")
        if not message.records:
            return message
        return msgspec.structs.replace(message, records=tuple(_filled(r, rest) for r in message.records))
    if isinstance(message, ResultCommand | WaveResult):
        _expect(len(payload), 1 + len(header.logprobs or ()), "logprobs")
        ids = tuple(_ids(next(rest), "token_ids"))
        logprobs = None
        if header.logprobs is not None:
            logprobs = {key: bytes(frame) for key, frame in zip(header.logprobs, rest, strict=True)}
        return msgspec.structs.replace(message, token_ids=ids, logprobs=logprobs)
    _expect(len(payload), 0, type(message).__name__)
    return message


def _record_frames(record: InstallRecord) -> tuple[Frame, Frame]:
    try:
        request = _TO_REQUEST.encode(record.request)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise CodecError(f"cannot encode request of {record.rid!r}: {error}") from error
    return _ids_frame(record.token_ids, f"token_ids of {record.rid!r}"), request


def _blanked(record: InstallRecord) -> InstallRecord:
    return msgspec.structs.replace(record, token_ids=_EMPTY_IDS, request={})


def _filled(record: InstallRecord, frames: Iterator[Frame]) -> InstallRecord:
    ids = _ids(next(frames), f"token_ids of {record.rid!r}")
    try:
        request = _FROM_REQUEST.decode(next(frames))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CodecError(f"request of {record.rid!r}: {error}") from error
    return msgspec.structs.replace(record, token_ids=ids, request=request)


def _ids_frame(ids: Sequence[int], field: str) -> Frame:
    if isinstance(ids, array) and ids.typecode != "q":
        raise CodecError(f"cannot encode {field}: array('q') is needed, got array({ids.typecode!r})")
    try:
        values = ids if isinstance(ids, array) else array("q", ids)
    except (TypeError, OverflowError) as error:
        raise CodecError(f"cannot encode {field}: {error}") from error
    if sys.byteorder == "big":
        values = array("q", values)
        values.byteswap()
    return memoryview(values).cast("B")


def _ids(frame: Frame, field: str) -> array[int]:
    values = array("q")
    if len(frame) % values.itemsize:
        raise CodecError(f"{field}: {len(frame)} bytes are not a whole number of int64")
    values.frombytes(frame)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _expect(got: int, wanted: int, field: str) -> None:
    if got != wanted:
        raise CodecError(f"{field}: {wanted} raw frames are needed, got {got}")
