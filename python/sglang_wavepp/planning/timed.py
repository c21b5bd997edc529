"""Fills a wave with spans until it holds a given time of work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from sglang_wavepp.planning.cost import WaveCost
from sglang_wavepp.planning.courtesy import SHARE, Courtesy
from sglang_wavepp.planning.grid import SpanGrid
from sglang_wavepp.planning.spans import PlannedSpan, Remainder

STRETCH = 0.1
"""Of its time, what a wave may be longer so that the rest of the only request needs no wave more."""


@dataclass(frozen=True, slots=True)
class WaveLimits:
    """What a wave may hold.

    Attributes:
        max_tokens: of a wave, `M`: a multiple of the grid step.
        min_tokens: of a span that isn't its request's last one, at most `max_tokens`.
        max_requests: spans in a wave, at most.
        grid: where spans may end.
    """

    max_tokens: int
    min_tokens: int
    max_requests: int
    grid: SpanGrid

    @property
    def least(self) -> int:
        """`min_tokens`, rounded up to the grid: with it, any request gets ahead."""
        return -(-self.min_tokens // self.grid.step) * self.grid.step

    def tokens(self, start: int, *, seconds: float, cost: WaveCost) -> int:
        """Tokens from `start` on that a wave of that time holds, on the grid, within the limits."""
        fit = self.max_tokens if math.isinf(seconds) else cost.tokens(start=start, seconds=seconds)
        return max(self.least, min(fit, self.max_tokens) // self.grid.step * self.grid.step)


def pack_timed(
    queue: Sequence[Remainder],
    *,
    seconds: float,
    cost: WaveCost,
    limits: WaveLimits,
    courtesy: Courtesy,
    alone: bool = False,
    floor: float = 0.0,
) -> tuple[PlannedSpan, ...]:
    """Spans of about `seconds` of work, earliest request first, at most one a request.

    The first request gets what the time allows, to the nearest place on the grid, less what it gives to short ones, and
    at least `min_tokens`. Later ones fill up: what fits whole, or a piece of at least `min_tokens`.

    Args:
        queue: the first requests, at least one.
        alone: whether the first request is all there is. It is then cut into equal times, so that no small rest is
            left for a wave of its own.
        floor: seconds of work that the first request gets at least, as far as the largest wave allows.
    """
    head = queue[0]
    least = limits.min_tokens
    if floor > 0:
        least = max(least, cost.tokens(start=head.start, seconds=floor) + limits.grid.step)
    if alone:
        work = cost.work(start=head.start, end=head.prompt)
        pieces = max(1, math.ceil(work / seconds - STRETCH)) if seconds > 0 else math.inf
        wave = _Filling(cost, limits, left=work / pieces, room=limits.max_tokens)
        wave.add(head, at_least=least)
        return wave.spans(queue)
    wave = _Filling(cost, limits, left=seconds, room=limits.max_tokens)
    offered = courtesy.offer(queue, seconds=seconds, cost=cost)
    if offered > 0 and limits.max_requests > 1 and limits.least < limits.max_tokens:
        room = min(int(SHARE * limits.max_tokens), limits.max_tokens - limits.least)
        aside = _Filling(cost, limits, left=offered, room=room, places=1, rounds=False)
        for item in courtesy.guests(queue, cost=cost):
            if not aside.add(item):
                break
        given = offered - aside.left
        courtesy.given(given)
        wave = _Filling(
            cost,
            limits,
            left=seconds - given,
            room=limits.max_tokens - sum(aside.lengths.values()),
            lengths=aside.lengths,
        )
    more = wave.add(head, at_least=least)
    for item in queue[1:]:
        if not more:
            break
        more = wave.add(item)
    return wave.spans(queue)


@dataclass(slots=True)
class _Filling:
    """A wave in the making.

    Attributes:
        left: seconds of work that still fit.
        room: tokens that still fit.
        places: spans that are kept for others.
        rounds: whether a span goes to the nearest place on the grid, rather than to the last one within the time.
    """

    cost: WaveCost
    limits: WaveLimits
    left: float
    room: int
    places: int = 0
    rounds: bool = True
    lengths: dict[str, int] = field(default_factory=dict)

    def add(self, item: Remainder, *, at_least: int = 0) -> bool:
        """Take as much of a request as fits, if it is worth a span; whether anything may still fit.

        Args:
            at_least: tokens that are taken however long they last.
        """
        if item.rid in self.lengths:
            return True
        budget = self.room
        if not math.isinf(self.left) and self.cost.work(start=item.start, end=item.prompt) > self.left:
            fit = self.cost.tokens(start=item.start, seconds=self.left)
            if self.rounds:
                fit += self.limits.grid.step // 2
            budget = min(budget, max(at_least, fit))
        length = self.limits.grid.longest(start=item.start, remaining=item.length, budget=budget)
        if length > 0 and (at_least or length == item.length or length >= self.limits.min_tokens):
            self.lengths[item.rid] = length
            self.room -= length
            self.left -= self.cost.work(start=item.start, end=item.start + length)
        return self.left > 0 and self.room > 0 and len(self.lengths) < self.limits.max_requests - self.places

    def spans(self, queue: Sequence[Remainder]) -> tuple[PlannedSpan, ...]:
        """The wave, in the order of the queue."""
        return tuple(
            PlannedSpan(item.rid, item.start, self.lengths[item.rid])
            for item in queue
            if item.rid in self.lengths
        )
