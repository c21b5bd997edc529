"""Fills a wave with spans until it holds a given time of work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sglang_wavepp.planning.cost import WaveCost
from sglang_wavepp.planning.grid import SpanGrid
from sglang_wavepp.planning.spans import PlannedSpan, Remainder


@dataclass(frozen=True, slots=True)
class TimedPacking:
    """Limits of a wave.

    Attributes:
        max_tokens: of a wave, `M`.
        min_tokens: of a span that isn't its request's last one, as far as `max_tokens` allows.
        max_requests: of a wave.
        grid: where spans may end.
    """

    max_tokens: int
    min_tokens: int
    max_requests: int
    grid: SpanGrid

    def pack(self, queue: Sequence[Remainder], *, seconds: float, cost: WaveCost) -> tuple[PlannedSpan, ...]:
        """Spans of about `seconds` of work, earliest request first, at most one a request.

        The first request gets what the time allows, and at least `min_tokens`; alone in the queue, it is cut into
        equal times, so that no small rest is left. Later ones fill up: what fits whole, or a piece of at least
        `min_tokens`.
        """
        left, room = seconds, self.max_tokens
        if len(queue) == 1:
            work = cost.work(start=queue[0].start, end=queue[0].prompt)
            left = work / max(1, round(work / seconds)) if seconds > 0 else 0.0
        spans: list[PlannedSpan] = []
        for item in queue:
            length = self._length(item, left, room, cost, first=not spans)
            if length <= 0:
                continue
            spans.append(PlannedSpan(item.rid, item.start, length))
            room -= length
            left -= cost.work(start=item.start, end=item.start + length)
            if left <= 0 or room < 1 or len(spans) == self.max_requests:
                break
        return tuple(spans)

    def tokens(self, start: int, *, seconds: float, cost: WaveCost) -> int:
        """Tokens from `start` on that a wave of that time holds, on the grid, within the limits."""
        step = self.grid.step
        fit = self.max_tokens if seconds == float("inf") else cost.tokens(start=start, seconds=seconds)
        return max(-(-self.min_tokens // step) * step, min(fit, self.max_tokens) // step * step)

    def _length(self, item: Remainder, left: float, room: int, cost: WaveCost, *, first: bool) -> int:
        budget = room
        if cost.work(start=item.start, end=item.prompt) > left:
            budget = min(room, cost.tokens(start=item.start, seconds=left))
            if first:
                budget = min(room, max(budget, self.min_tokens))
        length = self.grid.longest(start=item.start, remaining=item.length, budget=budget)
        if not first and length < item.length and length < self.min_tokens:
            return 0
        return length
