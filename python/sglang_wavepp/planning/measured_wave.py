"""A wave whose time was measured, in the form in which costs are fitted to it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sglang_wavepp.planning.cost import WaveCost
from sglang_wavepp.planning.spans import PlannedSpan

ALIKE = 0.1
"""Waves are alike whose tokens, and whose context per token, differ by no more than this, relative."""
_SCALES = (1.0, 1e-4, 1e-9)


@dataclass(frozen=True, slots=True)
class MeasuredWave:
    """Its features, divided by its seconds: a fit of them to 1 is one by relative error.

    Attributes:
        wave, tokens, pairs: features; a cost's `parts` are their factors.
        size: its tokens.
        number: waves that were measured before it.
    """

    wave: float
    tokens: float
    pairs: float
    size: int
    number: int

    @classmethod
    def of(cls, spans: Iterable[PlannedSpan], seconds: float, *, number: int) -> MeasuredWave:
        """A wave of these spans took so long.

        Raises:
            ValueError: the time isn't a positive number, or there are no spans.
        """
        tokens = pairs = 0
        for span in spans:
            tokens += span.length
            pairs += span.end * span.end - span.start * span.start
        if tokens < 1 or not (0 < seconds < math.inf):
            raise ValueError(f"{tokens} tokens in {seconds} s are no measured wave")
        return cls(
            wave=1 / seconds,
            tokens=tokens * _SCALES[1] / seconds,
            pairs=pairs / 2 * _SCALES[2] / seconds,
            size=tokens,
            number=number,
        )

    def off(self, parts: Sequence[float]) -> float:
        """Relative error of a cost: its time over the measured one, minus 1."""
        return parts[0] * self.wave + parts[1] * self.tokens + parts[2] * self.pairs - 1

    def slowed(self, factor: float) -> MeasuredWave:
        """The same wave on a device that takes that many times as long for everything."""
        return MeasuredWave(
            self.wave / factor,
            self.tokens / factor,
            self.pairs / factor,
            size=self.size,
            number=self.number,
        )

    def is_like(self, other: MeasuredWave) -> bool:
        """Whether both are about as large, with about as much context."""
        mine, theirs = self.pairs / self.tokens, other.pairs / other.tokens
        return abs(self.size - other.size) <= ALIKE * other.size and abs(mine - theirs) <= ALIKE * max(
            mine, theirs
        )


def parts_of(cost: WaveCost) -> tuple[float, float, float]:
    """The factors of a wave's features in a cost."""
    return (cost.per_wave / _SCALES[0], cost.per_token / _SCALES[1], cost.per_pair / _SCALES[2])


def cost_of(parts: Sequence[float]) -> WaveCost:
    """The cost with these factors."""
    per_wave, per_token, per_pair = (part * scale for part, scale in zip(parts, _SCALES, strict=True))
    return WaveCost(per_wave=per_wave, per_token=per_token, per_pair=per_pair)
