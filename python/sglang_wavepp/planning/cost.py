"""How long a stage computes a wave: the model by which waves are balanced."""

from __future__ import annotations

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
    """

    per_wave: float
    per_token: float
    per_pair: float = 0.0

    def of(self, spans: Iterable[PlannedSpan]) -> float:
        """Seconds of a wave of these spans."""
        return self.per_wave + sum(self.work(start=span.start, end=span.end) for span in spans)

    def work(self, *, start: int, end: int) -> float:
        """Seconds that the tokens `[start, end)` of one request add to a wave."""
        return (end - start) * (self.per_token + self.per_pair * (start + end) / 2)
