"""Decides whether this process runs on the CPU reference platform.

SGLang resolves its platform while modules are imported, before arguments are parsed, so the decision is
taken from the environment and the raw command line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

PLATFORM_NAME = "wavepp_cpu"
PLATFORM_CLASS = "sglang_wavepp.cpu.reference_platform.CpuReferencePlatform"

PLATFORM_VARIABLE = "SGLANG_PLATFORM"
ENGINE_VARIABLE = "SGLANG_USE_CPU_ENGINE"


class ContradictoryPlatformError(RuntimeError):
    """The environment asks for this platform and for SGLang's own CPU engine at once."""


def activate() -> str | None:
    """Dotted path of the platform class when this process should run on it, else None.

    Named in the entry point group ``sglang.srt.platforms``.

    Raises:
        ContradictoryPlatformError: ``SGLANG_PLATFORM`` names this platform and ``SGLANG_USE_CPU_ENGINE=1``.
    """
    if not is_selected(os.environ, sys.argv, gpu_visible=None):
        return None
    from sglang_wavepp.cpu.environment import apply_process_defaults

    apply_process_defaults()
    return PLATFORM_CLASS


def is_selected(environ: Mapping[str, str], argv: Sequence[str], *, gpu_visible: bool | None) -> bool:
    """Whether environment and command line choose this platform.

    Naming it in ``SGLANG_PLATFORM`` always does. Without that variable ``--device cpu`` does, provided that no
    accelerator is visible: on a machine that has one, nobody gets this platform without asking for it by name.

    Args:
        gpu_visible: None asks torch, and only when the answer matters.

    Raises:
        ContradictoryPlatformError: see ``activate``.
    """
    named = environ.get(PLATFORM_VARIABLE, "")
    engine = environ.get(ENGINE_VARIABLE, "0") == "1"
    if named == PLATFORM_NAME:
        if engine:
            raise ContradictoryPlatformError(
                f"{PLATFORM_VARIABLE}={PLATFORM_NAME} and {ENGINE_VARIABLE}=1 exclude each other: unset one of them"
            )
        return True
    if named or engine or not _asks_for_cpu(argv):
        return False
    return not (_accelerator_visible() if gpu_visible is None else gpu_visible)


def _asks_for_cpu(argv: Sequence[str]) -> bool:
    """Whether the last ``--device`` of the command line is ``cpu`` (argparse lets the last one win)."""
    device = ""
    for position, word in enumerate(argv):
        if word == "--device":
            device = argv[position + 1] if position + 1 < len(argv) else ""
        elif word.startswith("--device="):
            device = word.removeprefix("--device=")
    return device == "cpu"


def _accelerator_visible() -> bool:
    import torch

    return bool(torch.cuda.is_available() or torch.accelerator.is_available())
