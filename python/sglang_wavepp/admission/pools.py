"""How much one rank's pools can hold, and what all ranks can hold together.

Ranks may have pools of different size. Whatever must be true on every rank is therefore judged by the
smallest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """Sizes of one rank's empty pools.

    Attributes:
        tokens: token places of the KV pool.
        page_size: tokens a page; places are given out in whole pages.
        rows: requests that may hold room at once.
        context: positions a request may have, prompt and output together.
        recurrent_slots: places for recurrent states, None without recurrent layers in the model.
        slots_per_request: recurrent slots an admitted request is entitled to: its running state, its tracking
            slots, and two that rotate while a snapshot replaces the one before it.

    Raises:
        ValueError: a size that no pool can have.
    """

    tokens: int
    page_size: int
    rows: int
    context: int
    recurrent_slots: int | None = None
    slots_per_request: int = 0

    def __post_init__(self) -> None:
        if self.page_size < 1 or self.tokens < 0 or self.rows < 0 or self.context < 0:
            raise ValueError(f"pool sizes must not be negative, got {self}")
        if self.recurrent_slots is not None and (self.recurrent_slots < 0 or self.slots_per_request < 1):
            raise ValueError(f"a model with recurrent layers needs slots for each request, got {self}")

    @property
    def usable_tokens(self) -> int:
        """Token places in whole pages."""
        return self.tokens // self.page_size * self.page_size

    def paged(self, tokens: int) -> int:
        """`tokens` rounded up to whole pages."""
        return -(-tokens // self.page_size) * self.page_size


def smallest(ranks: Iterable[PoolLimits]) -> PoolLimits:
    """The limits that hold on every rank.

    Raises:
        ValueError: no rank is given, or the ranks differ in what must be alike (page size, recurrent layers).
    """
    known = tuple(ranks)
    if not known:
        raise ValueError("limits of at least one rank are needed")
    first = known[0]
    slots: int | None = None
    for limits in known:
        alike = (limits.page_size, limits.slots_per_request, limits.recurrent_slots is None)
        if alike != (first.page_size, first.slots_per_request, first.recurrent_slots is None):
            raise ValueError(f"ranks must have alike pools, got {first} and {limits}")
        if limits.recurrent_slots is not None:
            slots = limits.recurrent_slots if slots is None else min(slots, limits.recurrent_slots)
    return PoolLimits(
        tokens=min(limits.tokens for limits in known),
        page_size=first.page_size,
        rows=min(limits.rows for limits in known),
        context=min(limits.context for limits in known),
        recurrent_slots=slots,
        slots_per_request=first.slots_per_request,
    )


def positions(*, prompt: int, max_new_tokens: int) -> int:
    """Positions whose state a request stores at most: the last output token is never computed on."""
    return prompt + max(max_new_tokens, 1) - 1
