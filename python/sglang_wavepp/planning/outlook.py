"""How many waves the known work makes at a budget."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sglang_wavepp.planning.spans import PlannedSpan, Remainder
from sglang_wavepp.planning.supply import Supply


@dataclass(frozen=True, slots=True)
class Outlook:
    """The work that the ring can count on.

    Attributes:
        tokens: `W`: what no wave carries yet, and the last chunk in flight of each request that goes on.
        pieces: remaining suffixes and those chunks, in tokens: two that exceed half a budget can't share a wave.
    """

    tokens: int
    pieces: tuple[int, ...]

    @classmethod
    def of(cls, supply: Supply, looked: Iterable[Remainder]) -> Outlook:
        """The outlook of a supply.

        Args:
            looked: the first requests of `supply.queue`, as many as the planner looks at. The others count as tokens.
        """
        pieces = [item.length for item in looked]
        going_on = {item.rid for item in looked}
        chunks = _latest_chunks(supply.flying, going_on)
        pieces += chunks
        return cls(tokens=supply.unplanned + supply.arriving_tokens + sum(chunks), pieces=tuple(pieces))

    def waves(self, budget: int) -> int:
        """`n(b)`: waves that this work makes at a budget of `b` tokens, at least."""
        return max(-(-self.tokens // budget), sum(1 for piece in self.pieces if 2 * piece > budget))

    def newly_split(self, *, larger: int, smaller: int) -> int:
        """Tokens of the pieces that fit the larger budget whole, and not the smaller one."""
        return sum(piece for piece in self.pieces if smaller < piece <= larger)


def _latest_chunks(flying: Iterable[tuple[PlannedSpan, ...]], going_on: set[str]) -> list[int]:
    latest: dict[str, int] = {}
    for spans in flying:
        for span in spans:
            if span.rid in going_on:
                latest[span.rid] = span.length
    return list(latest.values())
