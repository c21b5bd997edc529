"""What no schedule can beat, by arithmetic."""

from __future__ import annotations

import math

from sglang_wavepp.simulate.machine import Machine
from sglang_wavepp.simulate.workload import Job, Workload


def bound_tok_s(machine: Machine, workload: Workload) -> float:
    """Input tokens a second that no schedule exceeds on this device, whatever its waves, ring and hosts.

    Two limits on the time of a run, for equal stages. Waves of `t_k` seconds that pass `P` stages in order need
    `sum(t_k) + (P - 1) max(t_k)`; with `n` waves of together `w` seconds of work that is at least
    `w + n C + (P - 1) (w / n + C)`. And when at most `c` requests are outstanding, their times add up to at most `c`
    times the run, while none takes less than a pipeline of its own needs. For unequal stages, the slowest one computes
    everything and the others at least the smallest wave.
    """
    work = [_work(machine, job) for job in workload.jobs]
    least = _makespan(machine, sum(work), sum(job.suffix for job in workload.jobs))
    if workload.concurrency:
        alone: dict[Job, float] = {}
        for job, seconds in zip(workload.jobs, work, strict=True):
            if job not in alone:
                alone[job] = _makespan(machine, seconds, job.suffix)
        number = 0
        chained = 0.0
        for phase in workload.phases:
            jobs = workload.jobs[number : number + phase.requests]
            chained += sum(alone[job] for job in jobs) / max(p.concurrency for p in workload.phases)
            number += phase.requests
        least = max(least, chained)
    else:
        least = max(least, workload.times[-1] + _makespan(machine, work[-1], workload.jobs[-1].suffix))
    return workload.tokens / least


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
