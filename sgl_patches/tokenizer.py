"""Hooks on the API server's end of control requests: a refusal where a rank's reply can't say no."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sgl_patches import applied
from sgl_patches.patch import Kind, NeededBy, Patch

CONTROL = "sglang.srt.managers.communicator.FanOutCommunicator.__call__"
PAUSE = "sglang.srt.managers.tokenizer_manager.TokenizerManager.pause_generation"

PATCHES = (
    Patch(
        target=CONTROL,
        kind=Kind.AROUND,
        why="refuses control requests whose reply has no field for a failure, such as release_memory_occupation",
        breaks_without="the caller of such a request waits for ever, or is told that it was done",
        fingerprint="05ad353bb253008a",
        needed_by=NeededBy.WAVEPP,
    ),
    Patch(
        target=PAUSE,
        kind=Kind.AROUND,
        why="refuses to pause with mode=retract",
        breaks_without="the caller is told that generation is paused, while it goes on and new requests wait",
        fingerprint="1a51d4e13a3d10c4",
        needed_by=NeededBy.WAVEPP,
    ),
)


def install() -> None:
    """Hook the process that answers clients. Imports the tokenizer manager when hooks are applied."""
    applied.add(CONTROL, _call, "around")
    applied.add(PAUSE, _pause_generation, "around")


async def _call(original: Callable[..., Any], communicator: Any, request: Any) -> Any:
    from sglang_wavepp.executor import control

    if request is not None and not control.is_served(request) and control.refusal(request) is None:
        raise ValueError(control.refusal_text(request))
    return await original(communicator, request)


async def _pause_generation(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    from sglang_wavepp.executor import control

    # mode=abort never reaches the ranks: the API server aborts every request and holds back new ones.
    if request.mode != "abort" and not control.is_served(request):
        raise ValueError(control.refusal_text(request))
    return await original(manager, request)
