"""Hook on the launcher's watchdog of its children: a rank that has died is called by its place in the pipeline."""

from __future__ import annotations

from typing import Any

from sgl_patches import applied
from sgl_patches.patch import Kind, NeededBy, Patch

INIT = "sglang.srt.utils.watchdog.SubprocessWatchdog.__init__"
_SCHEDULER = "scheduler_"

PATCHES = (
    Patch(
        target=INIT,
        kind=Kind.BEFORE,
        why="adds stage and TP rank to the name of a scheduler process, such as scheduler_1 pp1 tp0",
        breaks_without="when a rank is killed, the log has its number among the children of this host and not its name",
        fingerprint="24dc7ca5fd478574",
        needed_by=NeededBy.WAVEPP,
    ),
)


def install() -> None:
    """Hook the launcher."""
    applied.add(INIT, _named, "before")


def _named(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    names = kwargs.get("process_names")
    if names is None:
        return args, kwargs
    from sglang.srt.entrypoints.engine import _calculate_rank_ranges
    from sglang.srt.runtime_context import get_parallel

    # In the order in which SGLang starts them.
    stages, within, _, _ = _calculate_rank_ranges(get_parallel().node_rank)
    places = iter([f"pp{stage} tp{rank}" for stage in stages for rank in within])
    kwargs["process_names"] = [
        f"{name} {next(places)}" if name.startswith(_SCHEDULER) else name for name in names
    ]
    return args, kwargs
