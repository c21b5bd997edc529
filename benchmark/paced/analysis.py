"""From the traces of the stages: where each stage was idle and why, and what its host spent on a wave."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from benchmark.paced.recorder import Forward


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFigures:
    """One stage in one measurement.

    Attributes:
        waves: forwards of the measured requests.
        tokens: mean tokens of a wave.
        wave_s: mean seconds of a wave on the device.
        idle: ``1 - busy / span``; the span goes from the first start to the last end.
        late_s: seconds of the span in which the device was idle and could have run the next wave, had it been
            launched. On the first stage that includes times without work.
        upstream_s: seconds of the span in which the device waited for the stage before.
        main_s: CPU seconds a wave of the thread that launches.
        process_s: CPU seconds a wave of the whole process.
        timers: by name, calls, wall and CPU seconds a wave.
    """

    waves: int
    tokens: float
    wave_s: float
    idle: float
    late_s: float
    upstream_s: float
    main_s: float
    process_s: float
    timers: dict[str, tuple[float, float, float]]


def of_requests(stages: Sequence[Sequence[Forward]], rids: Collection[str]) -> list[list[Forward]]:
    """The forwards of these requests only, by stage."""
    wanted = set(rids)
    return [
        [forward for forward in stage if any(rid_of(r) in wanted for r in forward.rids)] for stage in stages
    ]


def rid_of(name: str) -> str:
    """The client's request id; WavePP puts a number and a colon before it."""
    return name.rpartition(":")[2]


def figures(forwards: Sequence[Forward]) -> StageFigures:
    """Figures of one stage.

    Raises:
        ValueError: it ran nothing.
    """
    if not forwards:
        raise ValueError("a stage ran none of the measured requests")
    busy = sum(forward.end - forward.start for forward in forwards)
    span = forwards[-1].end - forwards[0].start
    late = upstream = 0.0
    for before, after in itertools.pairwise(forwards):
        gap = after.start - before.end
        waited = 0.0 if after.ready is None else min(max(after.ready - before.end, 0.0), gap)
        upstream += waited
        late += gap - waited
    steps = max(1, len(forwards) - 1)
    first, last = forwards[0], forwards[-1]
    timers: dict[str, list[float]] = {}
    for forward in forwards[1:]:
        for name, spent in forward.timers.items():
            total = timers.setdefault(name, [0.0, 0.0, 0.0])
            for place, value in enumerate(spent):
                total[place] += value
    return StageFigures(
        waves=len(forwards),
        tokens=sum(sum(forward.tokens) for forward in forwards) / len(forwards),
        wave_s=busy / len(forwards),
        idle=1 - busy / span if span > 0 else 0.0,
        late_s=late,
        upstream_s=upstream,
        main_s=(last.thread_cpu - first.thread_cpu) / steps,
        process_s=(last.process_cpu - first.process_cpu) / steps,
        timers={name: (n / steps, wall / steps, cpu / steps) for name, (n, wall, cpu) in timers.items()},
    )
