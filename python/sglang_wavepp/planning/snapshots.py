"""Which positions of a prompt are published to the prefix cache while the prompt is being computed.

Publishing the state of a request behind a span costs a hybrid model a recurrent slot, which the cache then keeps as a
snapshot and takes from another one when none is free. One snapshot a span would make the price of small waves grow as
they get smaller. So a span publishes only at positions that others are likely to resume from: where the prompt leaves
what somebody else has computed too, at the multiples of a period, and at the end of the prompt. The positions don't
depend on how a prompt is cut into spans, so requests that compute the same prefix keep the same ones.

What a span does not publish stays the request's own and goes into the cache with the next position that is published.
Models without recurrent layers pay with their host's time, which grows with the positions that were published before;
a span that publishes one of them publishes all that it computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sglang_wavepp.planning.spans import PlannedSpan

NOWHERE = 0
"""A span that publishes nothing, or leaves it to the end of its request."""


@dataclass(frozen=True, slots=True)
class PublishRule:
    """The rule of one server; positions are tokens from the start of the prompt.

    Attributes:
        grid: positions are multiples of it, as are the ends of spans.
        period: distance between positions that are published for their own sake, a multiple of `grid`.
        inside: whether a position inside a span can be published; otherwise only its end.
        whole: whether content is of use up to any position, as it is without recurrent layers. Then a span that holds
            a position publishes all that it computed.
    """

    grid: int
    period: int
    inside: bool = True
    whole: bool = False

    def __post_init__(self) -> None:
        if self.grid < 1 or self.period < self.grid or self.period % self.grid:
            raise ValueError(f"a period is a positive multiple of the grid, got {self}")

    @classmethod
    def sparse(cls, *, grid: int, period: int, inside: bool) -> PublishRule:
        """A rule whose period is cut down to the grid, to one step at least."""
        return cls(grid=grid, period=max(grid, period // grid * grid), inside=inside)

    @classmethod
    def dense(cls, *, grid: int, period: int) -> PublishRule:
        """The rule for models without recurrent layers; the period as in `sparse`."""
        return replace(cls.sparse(grid=grid, period=period, inside=False), whole=True)

    def position(self, span: PlannedSpan, *, prompt: int, branches: Iterable[int] = ()) -> int:
        """What a span publishes: the position, in `(span.start, span.end]`, or `NOWHERE`.

        One position a span: the deepest branch in it, else the deepest multiple of the period. A request publishes
        the end of its prompt itself, with its first token, as far as the grid allows; where its last span is too
        short to bring a grid step, the span before publishes its end instead. A branch in the last span goes before
        the end of the prompt, because two requests had it in common.

        Args:
            prompt: tokens of the request's prompt.
            branches: positions up to which the prompt is known to be somebody else's too.
        """
        if self.whole:
            return span.end if span.end < prompt and self._holds(span, branches) else NOWHERE
        floors = (each // self.grid * self.grid for each in branches)
        branch = max((each for each in floors if self._can(each, span)), default=NOWHERE)
        if span.end >= prompt:
            return branch if branch < prompt // self.grid * self.grid else NOWHERE
        if branch != NOWHERE:
            return branch
        if prompt - span.end < self.grid:
            return span.end
        multiple = span.end // self.period * self.period
        if multiple <= span.start:
            return NOWHERE
        return multiple if self.inside else span.end

    def _holds(self, span: PlannedSpan, branches: Iterable[int]) -> bool:
        multiple = span.end // self.period * self.period
        return multiple > span.start or any(span.start < each <= span.end for each in branches)

    def _can(self, position: int, span: PlannedSpan) -> bool:
        return span.start < position <= span.end and (self.inside or position == span.end)


def common_end(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading entries two hash chains share.

    An entry of a chain stands for everything before it too, so the shared ones are found by bisection.
    """
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high) // 2
        if one[middle] == other[middle]:
            low = middle + 1
        else:
            high = middle
    return low
