"""Every control request that SGLang's tokenizer sends is served, refused by a reply, or refused before it is sent."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from sglang.srt.managers import io_struct, tokenizer_control_mixin

from sglang_wavepp.executor import control

pytestmark = pytest.mark.unit

NO_WAY_TO_SAY_NO = {
    "ExpertDistributionReq",
    "ReleaseMemoryOccupationReqInput",
    "ResumeMemoryOccupationReqInput",
    "SlowDownReqInput",
    "UpdateWeightVersionReqInput",
}
"""Their replies are empty."""

NO_WAY_TO_SAY_WHY = {
    "ClearHiCacheReqInput",
    "GetWeightsByNameReqInput",
    "LazyDumpTensorsReqInput",
    "OpenSessionReqInput",
    "ProfileReq",
    "SetInternalStateReq",
}
"""Their replies say no but not why, or SGLang's API server drops the reason.

`sgl_patches.tokenizer` refuses both kinds before they reach a rank, and the lists show which ones it does.
"""


def awaited_replies() -> set[type[Any]]:
    """Types of the replies that some caller waits for."""
    communicated = {spec[1] for spec in tokenizer_control_mixin._COMMUNICATOR_SPECS}
    return communicated | {io_struct.OpenSessionReqOutput, io_struct.RpcReqOutput}


def made(kind: type[Any]) -> Any:
    """A request of this type; what it says doesn't matter."""
    values: dict[str, Any] = {
        field.name: f"the {field.name}" for field in msgspec.structs.fields(kind) if field.required
    }
    return kind(**values)


def control_requests() -> list[type[Any]]:
    kinds = (getattr(io_struct, name) for name in dir(io_struct))
    return [
        kind
        for kind in kinds
        if isinstance(kind, type)
        and issubclass(kind, io_struct.BaseReq)
        and (kind.__name__.endswith(("ReqInput", "Req")))
        and not kind.__name__.startswith(("Base", "Tokenized"))
    ]


def test_every_awaited_reply_can_be_refused_or_is_never_awaited() -> None:
    refused: set[type[Any]] = set()
    dumb: set[str] = set()
    unexplained: set[str] = set()
    served = {
        io_struct.FlushCacheReqOutput,
        io_struct.GetInternalStateReqOutput,
        io_struct.GetHiCacheL3LayoutReqOutput,
    }
    for kind in control_requests():
        request = made(kind)
        if control.is_served(request):
            continue
        reply = control.refusal(request)
        assert reply is not None or not control.explains(request)
        if reply is not None:
            refused.add(type(reply))
            if not control.explains(request):
                unexplained.add(kind.__name__)
        elif hasattr(io_struct, kind.__name__.removesuffix("Input") + "Output"):
            dumb.add(kind.__name__)
    assert dumb == NO_WAY_TO_SAY_NO
    assert unexplained == NO_WAY_TO_SAY_WHY
    silent = {getattr(io_struct, name.removesuffix("Input") + "Output") for name in dumb}
    assert awaited_replies() - refused - served - silent == set()


def test_a_refusal_says_no_and_why() -> None:
    reply = control.refusal(made(io_struct.CheckWeightsReqInput))
    assert (reply.success, "--wavepp" in reply.message) == (False, True)
    loaded = control.refusal(io_struct.LoadLoRAAdapterReqInput(lora_name="a", lora_path="b"))
    assert "--wavepp" in loaded.error_message
    assert control.refusal(io_struct.GetWeightsByNameReqInput(name="w")).parameter is None


def test_a_refused_session_is_named_so_that_its_caller_is_found() -> None:
    reply = control.refusal(io_struct.OpenSessionReqInput(capacity_of_str_len=1, session_id="mine"))
    assert (reply.session_id, reply.success) == ("mine", False)


@pytest.mark.parametrize(("mode", "served"), [("in_place", True), ("retract", False), ("abort", False)])
def test_pausing(mode: str, served: bool) -> None:
    request = io_struct.PauseGenerationReqInput(mode=mode)  # type: ignore[arg-type]
    assert control.is_served(request) is served
