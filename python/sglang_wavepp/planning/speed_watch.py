"""Notices when the device has become faster or slower as a whole, such as by another clock rate.

Waves that were measured before tell a wrong cost then, and those of sizes that no longer occur would do so for ever.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sglang_wavepp.planning.measured_wave import MeasuredWave

IN_A_ROW = 8
"""Waves in a row that have to say the same."""
CHANGED = 1.15
"""Times by which each of them has to be faster, or each slower, than waves like it were."""
FITS = 0.1
"""Relative error up to which a cost is right for a wave."""


@dataclass(slots=True)
class SpeedWatch:
    """Compares waves with what the cost says of them, as far as it was right for waves like them."""

    _factors: list[tuple[int, float]] = field(default_factory=list)

    def note(
        self, wave: MeasuredWave, parts: Sequence[float], known: Iterable[MeasuredWave]
    ) -> tuple[int, float] | None:
        """A wave was measured.

        Args:
            parts: of the cost, see `MeasuredWave.off`.
            known: waves about as large, from before.

        Returns:
            Once the speed has changed: the number of the first wave at the new one, and how many times as long
            everything takes since. None otherwise.
        """
        factor = 1 / (1 + wave.off(parts))
        if 1 / CHANGED < factor < CHANGED:
            self._factors.clear()
            return None
        if not any(other.is_like(wave) and abs(other.off(parts)) <= FITS for other in known):
            return None  # the cost is a guess for such a wave, so that it may well be wrong
        if self._factors and (self._factors[0][1] > 1) != (factor > 1):
            self._factors.clear()
        self._factors.append((wave.number, factor))
        if len(self._factors) < IN_A_ROW:
            return None
        first = self._factors[0][0]
        change = math.exp(statistics.median(math.log(each) for _, each in self._factors))
        self._factors.clear()
        return first, change
