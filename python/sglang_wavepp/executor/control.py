"""Control requests under WavePP: which ones rank 0 may serve alone, and how the others are refused.

SGLang runs a control request on every rank at the same tick. Here a request that only reads, or that works through
rank 0's decisions, is served by rank 0. Everything else would change one rank and not the others, so its caller gets
an error instead of a half-done change.
"""

from __future__ import annotations

from typing import Any

import msgspec
from sglang.srt.managers import io_struct

SERVED = (
    "TokenizedGenerateReqInput",
    "BatchTokenizedGenerateReqInput",
    "AbortReq",
    "FlushCacheReqInput",
    "ShutdownReq",
    "GetInternalStateReq",
    "GetHiCacheL3LayoutReq",
    "FreezeGCReq",
    "ConfigureLoggingReq",
    "ContinueGenerationReqInput",
)
"""Names of SGLang's request types that rank 0 serves."""

_SERVED_TYPES = tuple(getattr(io_struct, name) for name in SERVED)

_REPLY_NAMES = {
    "ProfileReq": "ProfileReqOutput",
    "SetInternalStateReq": "SetInternalStateReqOutput",
}


_TEXT_FIELDS = ("message", "error_message", "error")
_TEXT_IS_LOST = ("ProfileReq",)
"""Requests whose reply has a text that SGLang's API server doesn't pass on."""


def is_served(request: Any) -> bool:
    """Whether rank 0 serves this request."""
    if isinstance(request, io_struct.PauseGenerationReqInput):
        return bool(request.mode == "in_place")
    return isinstance(request, _SERVED_TYPES)


def refusal_text(request: Any) -> str:
    """One line for the caller of a request that isn't served."""
    what = type(request).__name__
    if isinstance(request, io_struct.PauseGenerationReqInput):
        what = f"pause_generation with mode={request.mode}"
    return f"{what} isn't supported with --wavepp; restart the server without --wavepp to use it"


def explains(request: Any) -> bool:
    """Whether the reply to a request that isn't served tells its caller why."""
    reply = refusal(request)
    if reply is None or type(request).__name__ in _TEXT_IS_LOST:
        return False
    return any(getattr(reply, field, None) == refusal_text(request) for field in _TEXT_FIELDS)


def refusal(request: Any) -> Any | None:
    """The reply that tells a caller that its control request was refused.

    Returns:
        A reply of the type that SGLang's tokenizer waits for, None when that type can't say no or nobody waits. What
        no reply `explains` is refused by the API server already (`sgl_patches.tokenizer`).
    """
    name = type(request).__name__
    reply_name = _REPLY_NAMES.get(name, name.removesuffix("Input").removesuffix("Output") + "Output")
    reply_type = getattr(io_struct, reply_name, None)
    if reply_type is None:
        return None
    text = refusal_text(request)
    fields = {field.name: field for field in msgspec.structs.fields(reply_type)}
    values: dict[str, Any] = {}
    for flag in ("success", "updated"):
        if flag in fields:
            values[flag] = False
    for place in _TEXT_FIELDS:
        if place in fields:
            values[place] = text
            break
    if "parameter" in fields:
        values["parameter"] = None  # how SGLang says that it has no such weight
    if not values:
        return None
    for field in fields.values():
        if field.required and field.name not in values:
            # A session is known by its id, in the request and in the reply.
            values[field.name] = [] if field.name == "response" else getattr(request, field.name, None)
    return reply_type(**values)
