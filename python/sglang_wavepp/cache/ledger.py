"""Who was promised how much of one rank's pools: arithmetic only, always under the cache's mutex.

In every component what is free or can be freed covers what is promised. Tokens are promised until they are
drawn. Recurrent slots and rows are promised as a whole for as long as a request lives, because what a request
uses of them at any moment moves around; a snapshot that leases pin is paid for once, by the first of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

from sglang_wavepp.admission.hold import Shortage
from sglang_wavepp.admission.pools import PoolLimits


class LedgerError(RuntimeError):
    """The books do not balance: somebody took what was promised to another, or ended twice."""


@dataclass(frozen=True, slots=True)
class Unpromised:
    """What is neither used nor promised; `slots` is None without recurrent layers."""

    tokens: int
    rows: int
    slots: int | None

    def exceeds(self, other: Unpromised) -> bool:
        """Whether any component has more than in `other`."""
        more_slots = self.slots is not None and other.slots is not None and self.slots > other.slots
        return self.tokens > other.tokens or self.rows > other.rows or more_slots


@dataclass(slots=True)
class _Promise:
    total: int
    drawn: int
    snapshot: Hashable | None


class CapacityLedger:
    """Promises of one rank. `available` is always free plus evictable tokens, read under the same mutex."""

    def __init__(self, limits: PoolLimits) -> None:
        self.limits = limits
        self.releases = 0
        self._promises: dict[str, _Promise] = {}
        self._pinned: Counter[Hashable] = Counter()
        self._reserved = 0

    @property
    def reserved_tokens(self) -> int:
        """Tokens promised and not drawn, in whole pages."""
        return self._reserved

    def __len__(self) -> int:
        """Requests that hold a promise."""
        return len(self._promises)

    def __contains__(self, rid: str) -> bool:
        return rid in self._promises

    def unpromised(self, available: int) -> Unpromised:
        """What a new request could be promised."""
        limits = self.limits
        slots = None
        if limits.recurrent_slots is not None:
            entitled = limits.slots_per_request * len(self._promises)
            slots = limits.recurrent_slots - entitled - len(self._pinned)
        return Unpromised(available - self._reserved, limits.rows - len(self._promises), slots)

    def reserve(
        self, rid: str, *, endpoint: int, total: int, snapshot: Hashable | None, available: int
    ) -> Shortage | None:
        """Promise a request the room from its endpoint to its last position, in all components or not at all.

        Args:
            rid: request.
            endpoint: tokens of the prefix that it reuses, in whole pages.
            total: positions that it stores at most.
            snapshot: recurrent snapshot that its lease pins, None without one.
            available: free plus evictable tokens, after the prefix was pinned.

        Returns:
            What is short, None when promised.

        Raises:
            LedgerError: the request has a promise already, or the endpoint isn't in whole pages.
        """
        if rid in self._promises:
            raise LedgerError(f"request {rid} has a promise already")
        if endpoint % self.limits.page_size:
            raise LedgerError(f"endpoint {endpoint} of {rid} isn't in pages of {self.limits.page_size}")
        now = self.unpromised(available)
        demand = max(self.limits.paged(total) - endpoint, 0)
        if now.rows < 1:
            return Shortage.ROWS
        if now.slots is not None:
            pays = int(snapshot is not None and snapshot not in self._pinned)
            if now.slots < self.limits.slots_per_request + pays:
                return Shortage.SLOTS
        if now.tokens < demand:
            return Shortage.TOKENS
        self._promises[rid] = _Promise(max(self.limits.paged(total), endpoint), endpoint, snapshot)
        self._reserved += demand
        if snapshot is not None:
            self._pinned[snapshot] += 1
        return None

    def undrawn_of(self, rid: str) -> int:
        """Tokens promised to a request that it has not drawn."""
        promise = self._of(rid)
        return promise.total - promise.drawn

    def undrawn(self) -> dict[str, int]:
        """`undrawn_of` of every request that holds a promise."""
        return {rid: promise.total - promise.drawn for rid, promise in self._promises.items()}

    def pins(self, snapshot: Hashable) -> bool:
        """Whether a lease pins this recurrent snapshot, so that another one can without paying."""
        return snapshot in self._pinned

    def draw(self, rid: str, upto: int) -> int:
        """The request owns room up to this position now; the same or a lower position changes nothing.

        Belongs into one critical section with the allocation.

        Returns:
            Tokens that it didn't own before.

        Raises:
            LedgerError: without a promise, or beyond it.
        """
        promise = self._of(rid)
        position = self.limits.paged(upto)
        if position > promise.total:
            raise LedgerError(f"request {rid} draws up to {position} of the {promise.total} tokens promised")
        fresh = max(position - promise.drawn, 0)
        self._reserved -= fresh
        promise.drawn += fresh
        return fresh

    def unpin(self, rid: str) -> None:
        """The lease ended, the promise stays: its snapshot is now the request's own and among its slots."""
        self._unpin(self._of(rid))

    def end(self, rid: str) -> None:
        """The request gave back what it held; its promise ends.

        Raises:
            LedgerError: it has none.
        """
        promise = self._of(rid)
        self._unpin(promise)
        self._reserved -= promise.total - promise.drawn
        del self._promises[rid]
        self.releases += 1

    def check(self, available: int) -> None:
        """Verify that every promise can be kept.

        Raises:
            LedgerError: names the component that is short.
        """
        promised = sum(promise.total - promise.drawn for promise in self._promises.values())
        if promised != self._reserved:
            raise LedgerError(
                f"{self._reserved} tokens are booked as promised, the requests add up to {promised}"
            )
        now = self.unpromised(available)
        if now.tokens < 0 or now.rows < 0 or (now.slots is not None and now.slots < 0):
            raise LedgerError(f"promised more than there is: {now} left of {self.limits}")

    def _of(self, rid: str) -> _Promise:
        promise = self._promises.get(rid)
        if promise is None:
            raise LedgerError(f"request {rid} has no promise")
        return promise

    def _unpin(self, promise: _Promise) -> None:
        if promise.snapshot is not None:
            self._pinned[promise.snapshot] -= 1
            if not self._pinned[promise.snapshot]:
                del self._pinned[promise.snapshot]
            promise.snapshot = None
