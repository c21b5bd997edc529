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
    """

    def __init__(self, planner: MpuPlanner) -> None:
        self._planner = planner
        self._estimator = CostEstimator()
        self._launches: dict[int, float] = {}
        self._waves = 0
        self._host = 0.0
        planner.cost = GUESS

    def launched(self, wave: int, seconds: float) -> None:
        """Planning and launching a prefill wave took the LOOP's thread so much processor time."""
        self._launches[wave] = seconds

    def landed(
        self, wave: int, spans: Sequence[PlannedSpan], stopwatch: Stopwatch | None, seconds: float
    ) -> None:
        """The result of a prefill wave has come, and taking it took so much processor time.

        Decode waves take host time of their own, which none of these has.
        """
        host = self._launches.pop(wave) + seconds
        device = None if stopwatch is None else stopwatch.seconds()
        if stopwatch is None or not device or device <= 0:
            return
        host -= stopwatch.host_seconds()
        self._waves += 1
        self._host += (host - self._host) * max(SMOOTHING, 1 / self._waves)
        self._estimator.add(spans, device)
        cost = self._estimator.estimate()
        if cost is not None:
            # Only then: the guess says how parts compare, not how many seconds they are.
            self._planner.cost = cost
            self._planner.host = self._host
