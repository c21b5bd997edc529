"""Hooks on ``sglang.srt.managers.scheduler``: WavePP's scheduler in the place of SGLang's."""

from __future__ import annotations

from typing import Any

from sgl_patches import applied
from sgl_patches.patch import Kind, NeededBy, Patch

SCHEDULER_MODULE = "sglang.srt.managers.scheduler"
SCHEDULER = f"{SCHEDULER_MODULE}.Scheduler"
CONFIGURE = f"{SCHEDULER_MODULE}.configure_scheduler_process"

PATCHES = (
    Patch(
        target=SCHEDULER,
        kind=Kind.SUBCLASS,
        why="runs WavePP's executor loop, admission thread and links in a scheduler process",
        breaks_without="the server runs SGLang's own pipeline loop although WavePP was asked for",
        fingerprint="ee01846e8cd49922",
        needed_by=NeededBy.WAVEPP,
        source=f"{SCHEDULER}.__init__",
    ),
    Patch(
        target=CONFIGURE,
        kind=Kind.BEFORE,
        why="runs in every scheduler process after all plugins: the last place to see that each hook is in place and "
        "that nobody replaced the scheduler again",
        breaks_without="a scheduler process whose hooks were lost serves as stock SGLang, and the ranks disagree",
        fingerprint="38481d499e912e45",
        needed_by=NeededBy.WAVEPP,
    ),
)


def install() -> None:
    """Hook the scheduler of this process. Imports the scheduler."""
    from sglang.srt.managers import scheduler as upstream

    from sglang_wavepp.executor.scheduler import make_wave_scheduler

    if SCHEDULER not in applied.targets():
        applied.add(SCHEDULER, make_wave_scheduler(upstream.Scheduler), "replace")
        applied.add(CONFIGURE, _configure_scheduler_process, "before")


def _configure_scheduler_process(*_: Any, **__: Any) -> None:
    from sgl_patches import entry, launch

    with launch.errors_as_one_line():
        entry.require_hooks()
