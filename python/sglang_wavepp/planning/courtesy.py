"""Lets short requests pass a long one that stands before them, within a bound.

Requests are admitted first come, first served, and so are they packed, but for this: a request gives at most an
eighth of its own work, and never more than half of a wave, to requests that need less than a quarter of what it still
needs. So it is delayed by an eighth of its own length at most, however many short ones come, and everybody behind it
profits from the first free wave on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sglang_wavepp.planning.cost import WaveCost
from sglang_wavepp.planning.spans import Remainder

ALLOWANCE = 1 / 8
"""Of its own work, what a request gives at most."""
SHARE = 1 / 2
"""Of a wave, what may be given."""
SHORT = 1 / 4
"""Of what the first request still needs, what a short one may need at most."""


@dataclass(slots=True)
class Courtesy:
    """Remembers how much the first request has given."""

    _rid: str | None = None
    _left: float = 0.0

    def offer(self, queue: Sequence[Remainder], *, seconds: float, cost: WaveCost) -> float:
        """Seconds of work that the first request of the queue gives away in a wave of that much work."""
        head = queue[0]
        if head.rid != self._rid:
            self._rid = head.rid
            self._left = ALLOWANCE * cost.work(start=head.start, end=head.prompt)
        return max(0.0, min(self._left, SHARE * seconds))

    def guests(self, queue: Sequence[Remainder], *, cost: WaveCost) -> Iterator[Remainder]:
        """The short requests, earliest first."""
        head = queue[0]
        limit = SHORT * cost.work(start=head.start, end=head.prompt)
        return (item for item in queue[1:] if cost.work(start=item.start, end=item.prompt) <= limit)

    def given(self, seconds: float) -> None:
        """Guests got that much work into the wave."""
        self._left -= seconds
