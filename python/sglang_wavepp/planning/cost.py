"""How long a stage computes a wave: the model by which waves are balanced."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from sglang_wavepp.planning.spans import PlannedSpan


@dataclass(frozen=True, slots=True)
class WaveCost:
    """Seconds of one stage: `per_wave + per_token * tokens + per_pair * sum(tokens * context)`.

    The context of a token is its position, so a span `[start, end)` has `(end^2 - start^2) / 2` pairs.

    Attributes:
        per_wave: what a wave costs however small it is: launches, and reading the weights.
        per_token: products with weights.
        per_pair: attention, per token and token of its context.

    Raises:
        ValueError: a part is negative, or tokens cost nothing.
    """

    per_wave: float
    per_token: float
    per_pair: float = 0.0

    def __post_init__(self) -> None:
        if self.per_wave < 0 or self.per_token <= 0 or self.per_pair < 0:
            raise ValueError(f"a wave's cost has a positive cost per token and no negative part, got {self}")

    def of(self, spans: Iterable[PlannedSpan]) -> float:
        """Seconds of a wave of these spans."""
        return self.per_wave + sum(self.work(start=span.start, end=span.end) for span in spans)

    def work(self, *, start: int, end: int) -> float:
        """Seconds that the tokens `[start, end)` of one request add to a wave."""
        return (end - start) * (self.per_token + self.per_pair * (start + end) / 2)

    def tokens(self, *, start: int, seconds: float) -> int:
        """The most tokens from `start` on that add no more than `seconds` to a wave."""
        first = self.per_token + self.per_pair * start
        if seconds <= 0:
            return 0
        # With x tokens: x * first + per_pair * x^2 / 2 = seconds, solved so that a tiny per_pair loses no digits.
        return int(2 * seconds / (first + math.sqrt(first * first + 2 * self.per_pair * seconds)))


GUESS = WaveCost(per_wave=512e-5, per_token=1e-5, per_pair=1e-5 / 131_072)
"""A cost for the time before any is known: a wave costs as much as 512 tokens, and tokens cost twice as much after
131,072 others. Sizing waves needs the ratios only, and it needs them roughly: waves twice too large or too small cost a
quarter more of the few percent that fill and waves cost together."""
