"""Hooks on the API server's end of control requests: a refusal where a rank's reply can't say no, or can't say why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sgl_patches import applied
from sgl_patches.patch import Kind, NeededBy, Patch

CONTROL = "sglang.srt.managers.communicator.FanOutCommunicator.__call__"
PAUSE = "sglang.srt.managers.tokenizer_manager.TokenizerManager.pause_generation"
_MIXIN = "sglang.srt.managers.tokenizer_control_mixin.TokenizerControlMixin"
OPEN_SESSION = f"{_MIXIN}.open_session"
CLOSE_SESSION = f"{_MIXIN}.close_session"

PATCHES = (
    Patch(
        target=CONTROL,
        kind=Kind.AROUND,
        why="refuses control requests whose reply has no place for a reason, such as release_memory_occupation, or "
        "whose reason isn't passed on, such as start_profile",
        breaks_without="the caller of such a request waits for ever, is told that it was done, or gets a bare 500",
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
    Patch(
        target=OPEN_SESSION,
        kind=Kind.AROUND,
        why="refuses sessions, whose reply has no place for a reason",
        breaks_without="the caller is asked to look for another session of the same name",
        fingerprint="9b7fa39535f8c5d7",
        needed_by=NeededBy.WAVEPP,
    ),
    Patch(
        target=CLOSE_SESSION,
        kind=Kind.AROUND,
        why="refuses sessions, for whose end nobody waits",
        breaks_without="the caller is told that a session was closed which never was",
        fingerprint="6e1e145a7af5240a",
        needed_by=NeededBy.WAVEPP,
    ),
)


def install() -> None:
    """Hook the process that answers clients. Imports the tokenizer manager when hooks are applied."""
    applied.add(CONTROL, _call, "around")
    applied.add(PAUSE, _pause_generation, "around")
    applied.add(OPEN_SESSION, _open_session, "around")
    applied.add(CLOSE_SESSION, _close_session, "around")


async def _call(original: Callable[..., Any], communicator: Any, request: Any) -> Any:
    from sglang_wavepp.executor import control

    if request is not None and not control.is_served(request) and not control.explains(request):
        raise _refused(request)
    return await original(communicator, request)


async def _pause_generation(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    from sglang_wavepp.executor import control

    # mode=abort never reaches the ranks: the API server aborts every request and holds back new ones.
    if request.mode != "abort" and not control.is_served(request):
        raise _refused(request)
    return await original(manager, request)


async def _open_session(original: Callable[..., Any], manager: Any, request: Any, *_: Any) -> Any:
    raise _refused(request)


async def _close_session(original: Callable[..., Any], manager: Any, request: Any, *_: Any) -> Any:
    raise _refused(request)


def _refused(request: Any) -> Exception:
    from sgl_patches.refused import ControlRefused
    from sglang_wavepp.executor import control

    return ControlRefused(control.refusal_text(request))
