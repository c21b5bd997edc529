"""The server's way to a cost: the planner starts without one and is given what measured waves tell."""

from __future__ import annotations

import random
from collections.abc import Callable

from sglang_wavepp.planning.cost_estimate import CostEstimator
from sglang_wavepp.planning.mpu import MpuPlanner
from sglang_wavepp.planning.spans import PlannedSpan

NOISE = 0.05
"""Standard deviation of the measured times, relative."""
OUTLIERS = 0.03
"""Share of measured times that are two to four times too long."""


def learn(
    planner: MpuPlanner, *, host: float, seed: int = 1
) -> Callable[[tuple[PlannedSpan, ...], float], None]:
    """A listener that measures noisily and keeps the planner's cost up to date.

    Args:
        host: seconds of a wave on a stage's host, which the planner is told with the first cost.
    """
    estimator, rng = CostEstimator(), random.Random(seed)

    def measured(spans: tuple[PlannedSpan, ...], seconds: float) -> None:
        noise = max(0.5, rng.gauss(1.0, NOISE))
        if rng.random() < OUTLIERS:
            noise *= rng.uniform(2, 4)
        estimator.add(spans, seconds * noise)
        cost = estimator.estimate()
        if cost is not None:
            planner.cost = cost
            planner.host = host

    return measured
