"""Hooks on ``sglang.srt.entrypoints.engine``: keyword arguments of ``Engine(...)``, and the start of its processes."""

from __future__ import annotations

import sys
from typing import Any

from sgl_patches import applied, launch
from sgl_patches.patch import Kind, NeededBy, Patch
from sglang_wavepp.settings.flags import KEYWORDS

MODULE = "sglang.srt.entrypoints.engine"
ARGS_CLASS = f"{MODULE}.Engine.server_args_class"

PATCHES = (
    Patch(
        target=ARGS_CLASS,
        kind=Kind.ATTRIBUTE,
        why="takes wavepp=..., wavepp_admission=... out of the keyword arguments of Engine(...)",
        breaks_without="Engine(wavepp=True) raises TypeError",
        fingerprint="73e148d40cdb2ec2",
        needed_by=NeededBy.ALWAYS,
        source=f"{MODULE}.Engine.__init__",
    ),
    Patch(
        target=f"{MODULE}.Engine._launch_scheduler_processes",
        kind=Kind.AROUND,
        why="forks the ranks of a CPU server from a launcher that has imported everything, where that is safe",
        breaks_without="every rank imports SGLang and torch again, and a CPU server starts several times slower",
        fingerprint="07fc76a8713a7058",
        needed_by=NeededBy.CPU,
    ),
    Patch(
        target=f"{MODULE}.Engine._launch_detokenizer_subprocesses",
        kind=Kind.AROUND,
        why="forks the detokenizer of a CPU server, where that is safe",
        breaks_without="the detokenizer imports SGLang and torch again, and a CPU server starts slower",
        fingerprint="db5a3493e04930fe",
        needed_by=NeededBy.CPU,
    ),
)


def install_flags() -> None:
    """Let ``Engine(...)`` take WavePP's keyword arguments.

    Only ``Engine(...)`` reads the attribute, and its module is loaded by the time that plugins are. Importing it here
    would slow every other process.
    """
    engine = sys.modules.get(MODULE)
    if engine is not None and engine.Engine.server_args_class is not server_args_from_keywords:
        engine.Engine.server_args_class = staticmethod(server_args_from_keywords)
        applied.expect(ARGS_CLASS, server_args_from_keywords)


def server_args_from_keywords(**kwargs: Any) -> Any:
    """Build the arguments of ``Engine(...)``; a setting that is refused raises ``SettingsError`` (a ValueError)."""
    from sglang.srt.server_args import ServerArgs

    given = {name: kwargs.pop(name) for name in KEYWORDS if name in kwargs}
    server_args = ServerArgs(**kwargs)
    launch.decide(server_args, given)
    return server_args
