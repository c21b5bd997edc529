"""Fills a wave with the spans of the earliest requests, without small fragments of large ones."""

from __future__ import annotations

from collections.abc import Iterable

from sglang_wavepp.planning.grid import SpanGrid
from sglang_wavepp.planning.spans import PlannedSpan, Remainder


def pack(
    queue: Iterable[Remainder], *, budget: int, fragment: int, grid: SpanGrid, max_requests: int
) -> tuple[PlannedSpan, ...]:
    """Spans of at most `budget` tokens, earliest request first, at most one a request.

    The first request gets what the budget allows. A later one shares the wave when it is finished by it, or gets at
    least `fragment` tokens: a smaller piece would cost it a place in one more wave for little progress. Requests that
    don't fit are passed by those that do; the first one of the queue is never passed.

    Args:
        queue: what is left of the requests; read no further than the budget lasts.
        budget: tokens, at least one step of the grid.
    """
    left = budget
    spans: list[PlannedSpan] = []
    for item in queue:
        length = grid.longest(start=item.start, remaining=item.length, budget=left)
        if length <= 0 or (spans and length < item.length and length < fragment):
            continue
        spans.append(PlannedSpan(item.rid, item.start, length))
        left -= length
        if left < 1 or len(spans) == max_requests:
            break
    return tuple(spans)
