"""What no schedule can beat, by arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sglang_wavepp.simulate.machine import Machine
from sglang_wavepp.simulate.workload import Job, Workload


def bound_tok_s(machine: Machine, workload: Workload) -> float:
    """Input tokens a second that no schedule exceeds on this device, whatever its waves, ring and hosts.

    Two limits on the time of a run, for equal stages. Waves of `t_k` seconds that pass `P` stages in order need
    `sum(t_k) + (P - 1) max(t_k)`; with `n` waves of together `w` seconds of work that is at least
    `w + n C + (P - 1) (w / n + C)`. And when at most `c` requests are outstanding, their times add up to at most `c`
    times the run, while none takes less than a pipeline of its own needs. Stretches in which one request at a time is
    outstanding come before and after the others. For unequal stages, the slowest one computes everything and the others
    at least the smallest wave.
    """
    work = [_work(machine, job) for job in workload.jobs]
    if workload.times:
        last = workload.times[-1] + _makespan(machine, work[-1], workload.jobs[-1].suffix)
        return workload.tokens / max(_at_once(machine, work, workload.jobs), last)
    seconds, number = 0.0, 0
    alone = [_makespan(machine, each, job.suffix) for each, job in zip(work, workload.jobs, strict=True)]
    together: list[int] = []
    most = 1
    for place, phase in enumerate(workload.phases):
        numbers = list(range(number, number + phase.requests))
        number += phase.requests
        if phase.concurrency > 1:
            together += numbers
            most = max(most, phase.concurrency)
            continue
        seconds += _block(machine, work, alone, workload.jobs, together, most)
        together, most = [], 1
        if place + 1 < len(workload.phases) and workload.phases[place + 1].concurrency > 1:
            together.append(numbers.pop())  # the next phase begins beside it
        seconds += sum(alone[each] for each in numbers)
    seconds += _block(machine, work, alone, workload.jobs, together, most)
    return workload.tokens / max(seconds, _at_once(machine, work, workload.jobs))


def _block(
    machine: Machine,
    work: Sequence[float],
    alone: Sequence[float],
    jobs: Sequence[Job],
    numbers: Sequence[int],
    most: int,
) -> float:
    """Least seconds of requests of which at most `most` are outstanding."""
    if not numbers:
        return 0.0
    together = _at_once(machine, [work[each] for each in numbers], [jobs[each] for each in numbers])
    return max(together, sum(alone[each] for each in numbers) / most)


def _at_once(machine: Machine, work: Sequence[float], jobs: Sequence[Job]) -> float:
    """Least seconds of requests that may all be outstanding."""
    return _makespan(machine, sum(work), sum(job.suffix for job in jobs))


def _work(machine: Machine, job: Job) -> float:
    return machine.cost.work(start=job.cached, end=job.prompt)


def _makespan(machine: Machine, work: float, tokens: int) -> float:
    """Least seconds of `work` seconds of tokens on an empty pipeline."""
    slowest, others = max(machine.stages), sum(machine.stages) - max(machine.stages)
    fixed = machine.cost.per_wave
    fewest = max(1, -(-tokens // machine.max_tokens))
    if min(machine.stages) < slowest:
        return slowest * (work + fewest * fixed) + others * fixed
    best = math.sqrt((len(machine.stages) - 1) * work / fixed) if fixed > 0 else math.inf
    if best == math.inf:
        return slowest * work
    candidates = {max(fewest, math.floor(best)), max(fewest, math.ceil(best))}
    return min(slowest * (work + n * fixed) + others * (work / n + fixed) for n in candidates)
