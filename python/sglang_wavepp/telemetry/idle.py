"""Why a stage was idle: what it waited for before each of its waves.

Times are those of the hosts. On a device that computes while the host goes on, a forward is seen from its launch to the
end of its launch, and what the device waits for can't be told from it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from sglang_wavepp.telemetry.reading import Admission, RankTrace, Wave


class Cause(Enum):
    """What an idle stage waits for; the value is how people are told."""

    LATE = "late launch"
    """Nothing: the stage was free and its input was there, but its host had not launched the wave."""
    UPSTREAM = "upstream"
    """The stage before, which had not computed the wave yet."""
    RESULTS = "results"
    """The last stage: every slot of the ring was in flight, or the next output token needed the one before."""
    ADMISSION = "admission"
    """Requests had arrived, but none was admitted with tokens left to launch."""
    NOTHING = "no request"
    """There was no work for it: before the first request, or behind the last wave."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Idle time of a stage, in ns."""

    start_ns: int
    end_ns: int
    cause: Cause

    @property
    def length_ns(self) -> int:
        """How long it was."""
        return self.end_ns - self.start_ns


def idle_times(ranks: Sequence[RankTrace]) -> list[list[Gap]]:
    """The gaps of each rank, in order, from the first request or forward to the end of the last forward.

    Args:
        ranks: of one trace, in rank order.
    """
    waves = [sorted(rank.waves(), key=lambda wave: wave.start_ns) for rank in ranks]
    ends = {
        (rank.header.pp_rank, rank.header.tp_rank): {wave.wave: wave.end_ns for wave in of_rank}
        for rank, of_rank in zip(ranks, waves, strict=True)
    }
    forwards = [wave for of_rank in waves for wave in of_rank]
    if not forwards:
        return [[] for _ in ranks]
    announced = [each.announced_ns for rank in ranks if rank.header.rank == 0 for each in rank.admissions()]
    begin, end = min(announced + [wave.start_ns for wave in forwards]), max(wave.end_ns for wave in forwards)
    stages = 1 + max(rank.header.pp_rank for rank in ranks)
    lead = _Leader.of(ranks, waves, ring=2 * stages, last=ends.get((stages - 1, 0), {}))
    found = []
    for rank, of_rank in zip(ranks, waves, strict=True):
        stage, tp = rank.header.pp_rank, rank.header.tp_rank
        before = ends.get((stage - 1, tp), ends.get((stage - 1, 0), {}))
        gaps: list[Gap] = []
        at = begin
        for wave in of_rank:
            if wave.start_ns > at:
                if stage:
                    arrived = before.get(wave.wave, wave.start_ns)
                    gaps += _split(at, wave.start_ns, ((Cause.UPSTREAM, arrived),))
                else:
                    gaps += _split(at, wave.start_ns, lead.waits(at, wave))
            at = max(at, wave.end_ns)
        gaps += _split(at, end, ((Cause.NOTHING, end),))
        found.append(gaps)
    return found


def _split(start: int, end: int, waits: Sequence[tuple[Cause, int]]) -> list[Gap]:
    """Cut `[start, end)` at the ends of these waits, in order; what is left was a late launch."""
    gaps = []
    for cause, until in (*waits, (Cause.LATE, end)):
        stop = min(max(start, until), end)
        if stop > start:
            gaps.append(Gap(start, stop, cause))
            start = stop
    return gaps


@dataclass(slots=True)
class _Leader:
    """What rank 0 could launch, and when."""

    ring: int
    launches: list[int]
    returns: list[int]
    """Times of the results, in order."""
    result_of: Mapping[int, int]
    before: dict[int, list[int]]
    """Per wave the earlier waves that it had to wait for: the last one of each request that goes on in it."""
    lanes: dict[int, int]
    """Per decode wave the one before it in its lane."""
    admitted: dict[int, int] = field(default_factory=dict)
    """Per wave the earliest admission of a request that starts in it; none where one goes on."""
    admissions: Sequence[Admission] = ()

    @classmethod
    def of(
        cls,
        ranks: Sequence[RankTrace],
        waves: Sequence[Sequence[Wave]],
        *,
        ring: int,
        last: Mapping[int, int],
    ) -> _Leader:
        """From a trace; a result that rank 0 did not note counts from the end of the last stage's forward."""
        lead = next((k for k, rank in enumerate(ranks) if rank.header.rank == 0), 0)
        result_of = {**last, **ranks[lead].results()}
        admissions = ranks[lead].admissions()
        admitted_at = {each.rid: each.ended_ns for each in admissions}
        found = cls(
            ring=ring,
            launches=[wave.start_ns for wave in waves[lead]],
            returns=sorted(result_of.values()),
            result_of=result_of,
            before={},
            lanes={},
            admissions=admissions,
        )
        latest: dict[str, int] = {}
        lanes: dict[int, int] = {}
        for wave in waves[lead]:
            if wave.decode:
                found.before[wave.wave] = [latest[span.rid] for span in wave.spans if span.rid in latest]
                if wave.lane in lanes:
                    found.lanes[wave.wave] = lanes[wave.lane]
                lanes[wave.lane] = wave.wave
            elif all(span.rid not in latest for span in wave.spans):
                times = [admitted_at[span.rid] for span in wave.spans if span.rid in admitted_at]
                if times:
                    found.admitted[wave.wave] = min(times)
            for span in wave.spans:
                latest[span.rid] = wave.wave
        return found

    def waits(self, since: int, wave: Wave) -> list[tuple[Cause, int]]:
        """What the first stage waited for from `since` until it launched this wave: causes, and when each ended."""
        found: list[tuple[Cause, int]] = []
        admitted = self.admitted.get(wave.wave, 0)
        if admitted > since:
            arrived = min(
                (
                    each.announced_ns
                    for each in self.admissions
                    if each.announced_ns < admitted <= each.ended_ns
                ),
                default=admitted,
            )
            found += [(Cause.NOTHING, arrived), (Cause.ADMISSION, admitted)]
        results = [self.result_of[each] for each in self.before.get(wave.wave, ()) if each in self.result_of]
        ready = min(results, default=0)
        lane = self.lanes.get(wave.wave)
        if lane is not None:
            ready = max(ready, self.result_of.get(lane, 0))
        return [*found, (Cause.RESULTS, max(ready, self._slot_free(since, wave.start_ns)))]

    def _slot_free(self, since: int, until: int) -> int:
        """When the ring had a free slot, at or after `since`."""
        launched = bisect_right(self.launches, since)
        needed = launched - self.ring + 1
        if needed <= 0:
            return since
        return min(self.returns[needed - 1], until) if needed <= len(self.returns) else until


def idle_by_cause(gaps: Sequence[Gap]) -> dict[Cause, int]:
    """Idle ns of each cause that occurs, in the order of `Cause`."""
    sums = {cause: sum(gap.length_ns for gap in gaps if gap.cause is cause) for cause in Cause}
    return {cause: length for cause, length in sums.items() if length}
