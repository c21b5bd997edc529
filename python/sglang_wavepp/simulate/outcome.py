"""What a simulated run measured."""

from __future__ import annotations

from dataclasses import dataclass

from sglang_wavepp.planning.spans import PlannedSpan
from sglang_wavepp.simulate.arrivals import Arrivals
from sglang_wavepp.simulate.workload import Workload


@dataclass(frozen=True, slots=True)
class Wave:
    """One wave on its way.

    Attributes:
        spans: what it computed.
        launched: when rank 0 planned it, in seconds.
        starts: of its forward, by stage.
        ends: of its forward, by stage.
    """

    spans: tuple[PlannedSpan, ...]
    launched: float
    starts: tuple[float, ...]
    ends: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run.

    Attributes:
        tok_s: input tokens a second, cached ones included, from the first arrival to the last answer.
        p50_s: median of the time from arrival to first token.
        p95_s: its 95th percentile.
        idle: `1 - busy / span`, averaged over the stages; a stage's span goes from its first forward to the end
            of its last one.
        waves: all waves, in order of launch.
        seconds: from the first arrival to the last answer.
        times: seconds from arrival to first token, by request.
    """

    tok_s: float
    p50_s: float
    p95_s: float
    idle: float
    waves: tuple[Wave, ...]
    seconds: float
    times: tuple[float, ...]

    @classmethod
    def of(cls, workload: Workload, arrivals: Arrivals, waves: list[Wave]) -> Outcome:
        """The outcome of a run that has ended.

        Raises:
            RuntimeError: requests are left.
        """
        if arrivals.left:
            raise RuntimeError(f"{workload.name}: {arrivals.left} requests were never served")
        pairs = zip(arrivals.sent_at, arrivals.ended_at, strict=True)
        times = tuple(end - start for start, end in pairs)
        ordered = sorted(times)
        seconds = max(arrivals.ended_at) - min(arrivals.sent_at)
        return cls(
            tok_s=workload.tokens / seconds,
            p50_s=percentile(ordered, 0.5),
            p95_s=percentile(ordered, 0.95),
            idle=_idle(waves),
            waves=tuple(waves),
            seconds=seconds,
            times=times,
        )


def percentile(ordered: list[float], share: float) -> float:
    """Interpolated percentile of ascending values."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _idle(waves: list[Wave]) -> float:
    stages = len(waves[0].starts)
    total = 0.0
    for stage in range(stages):
        busy = sum(wave.ends[stage] - wave.starts[stage] for wave in waves)
        total += 1 - busy / (waves[-1].ends[stage] - waves[0].starts[stage])
    return total / stages
