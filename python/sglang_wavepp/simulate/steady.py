"""The best schedule that hindsight finds: waves of one time, chosen for the whole run, on hosts that cost nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from sglang_wavepp.planning.cost import WaveCost
from sglang_wavepp.planning.courtesy import Courtesy
from sglang_wavepp.planning.supply import Plan, Supply
from sglang_wavepp.planning.timed import WaveLimits, pack_timed
from sglang_wavepp.simulate.machine import Machine
from sglang_wavepp.simulate.outcome import Outcome
from sglang_wavepp.simulate.wavepp import WaveppRun
from sglang_wavepp.simulate.workload import Workload

FACTORS = (0.7, 1.0, 1.4)
"""Wave times that are tried, relative to the best ones for all requests at once and for those outstanding at once."""


@dataclass(slots=True)
class SteadyPlanner:
    """Every wave holds the same time of work.

    Attributes:
        seconds: of work in a wave.
    """

    seconds: float
    cost: WaveCost
    limits: WaveLimits
    _courtesy: Courtesy = field(default_factory=Courtesy)

    def plan(self, supply: Supply) -> Plan:
        """The wave to launch now."""
        looked = list(islice(supply.queue, 64))
        if not looked:
            return Plan()
        return Plan(
            pack_timed(
                looked, seconds=self.seconds, cost=self.cost, limits=self.limits, courtesy=self._courtesy
            )
        )


def best_found(machine: Machine, workload: Workload, *, factors: Sequence[float] = FACTORS) -> Outcome:
    """The fastest of the runs with waves of one time."""
    ideal = replace(machine, host=0.0, latency=0.0, admission=0.0)
    cost = machine.cost
    work = sum(cost.work(start=job.cached, end=job.prompt) for job in workload.jobs)
    at_once = work * min(1.0, (workload.concurrency or len(workload.jobs)) / len(workload.jobs))
    stages = max(1, len(machine.stages) - 1)
    times = {
        factor * math.sqrt(part * cost.per_wave / stages) for factor in factors for part in (work, at_once)
    }
    limits = WaveLimits(
        max_tokens=machine.max_tokens // machine.page * machine.page,
        min_tokens=machine.page,
        max_requests=machine.max_requests,
        grid=machine.grid,
    )
    runs = [
        WaveppRun(ideal, workload, SteadyPlanner(seconds=seconds, cost=cost, limits=limits)).run()
        for seconds in sorted(times)
    ]
    return max(runs, key=lambda run: run.tok_s)
