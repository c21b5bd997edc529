"""Tells the planner what waves cost here: on the device, from their measured times, and on the host."""

from __future__ import annotations

from collections.abc import Sequence

from sglang_wavepp.executor.wave_clock import Stopwatch
from sglang_wavepp.planning.cost import GUESS
from sglang_wavepp.planning.cost_estimate import CostEstimator
from sglang_wavepp.planning.mpu import MpuPlanner
from sglang_wavepp.planning.spans import PlannedSpan

SMOOTHING = 1 / 16
"""Weight of the last wave in the mean of the host's time."""


class WaveCosts:
    """Measures on rank 0, for its stage and its host; the other stages are taken to be like them.

    Args:
        planner: gets every new estimate. Until the first one it plans with a guess.
        synchronous: whether the host computes the forwards itself, so that its time has theirs in it.
    """

    def __init__(self, planner: MpuPlanner, *, synchronous: bool) -> None:
        self._planner = planner
        self._synchronous = synchronous
        self._estimator = CostEstimator()
        self._host = 0.0
        self._spent = 0.0
        planner.cost = GUESS

    @property
    def known(self) -> bool:
        """Whether the planner plans with measured times."""
        return self._planner.cost is not GUESS

    def spent(self, seconds: float) -> None:
        """The LOOP's thread has worked so long (processor time) on the waves since the last one landed."""
        self._spent += seconds

    def landed(self, spans: Sequence[PlannedSpan], stopwatch: Stopwatch | None) -> None:
        """The result of a prefill wave has come."""
        device = None if stopwatch is None else stopwatch.seconds()
        spent, self._spent = self._spent, 0.0
        if not device or device <= 0:
            return
        if self._synchronous:
            spent = max(0.0, spent - device)
        self._host += (spent - self._host) * (SMOOTHING if self._host else 1.0)
        self._estimator.add(spans, device)
        cost = self._estimator.estimate()
        if cost is not None:
            # Only then: the guess says how parts compare, not how many seconds they are.
            self._planner.cost = cost
            self._planner.host = self._host
