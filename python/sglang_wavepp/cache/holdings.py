"""What one rank holds for requests: leases that pin prefixes, and promises of room for the rest.

Leases are tree locks that no request of SGLang owns. Both threads of the rank come here: the admission thread holds,
trims and releases, the LOOP takes over, draws and ends. Nothing here copies, communicates or waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from sglang_wavepp.admission.hold import Hold, Shortage
from sglang_wavepp.admission.messages import InstallRecord
from sglang_wavepp.admission.pools import PoolLimits, positions
from sglang_wavepp.cache.ledger import CapacityLedger, LedgerError, Unpromised


@dataclass(frozen=True, slots=True)
class Match:
    """Where a walk ended.

    Attributes:
        endpoint: tokens that can be reused.
        node: the tree's name of the place.
        snapshot: name of the recurrent snapshot there, None when there is none to pin.
        reach: tokens up to which the attention cache holds the prompt, at most the walk's limit.
    """

    endpoint: int
    node: Hashable
    snapshot: Hashable | None
    reach: int = 0


class PrefixTree(Protocol):
    """One rank's prefix tree and the pool under it."""

    @property
    def mutex(self) -> AbstractContextManager[Any]:
        """Reentrant; whoever changes the tree or the pool holds it."""

    def look_ahead(self, record: InstallRecord, limit: int) -> None:
        """Do of the next `match` what needs no mutex. Changes nothing; called by the admission thread only."""

    def match(self, record: InstallRecord, limit: int) -> Match:
        """Longest prefix of at most `limit` tokens from which the request can resume; pins nothing."""

    def lock(self, node: Hashable) -> Any:
        """Keep everything up to this node; a receipt for `unlock`."""

    def unlock(self, receipt: Any) -> None:
        """Undo `lock`."""

    def available(self) -> int:
        """Tokens that are free or can be evicted."""

    def locked(self) -> int:
        """Tokens of the tree that can't be evicted."""

    def snapshots(self) -> int:
        """Recurrent snapshots in the tree, a slot each."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The prefix of a request that this rank keeps for it until the LOOP holds it itself.

    Attributes:
        endpoint: tokens of the prefix.
        node: the tree's id of the node at its end.
    """

    rid: str
    endpoint: int
    node: Hashable
    receipt: Any


@dataclass(slots=True)
class HoldingFigures:
    """What one rank's leases came to so far; for metrics.

    Attributes:
        leases: prefixes pinned and promised.
        trims: leases that were cut down to what all ranks have.
        reused_tokens: tokens of the leases that were handed over.
        short: attempts that found no room, by what was short.
    """

    leases: int = 0
    trims: int = 0
    reused_tokens: int = 0
    short: Counter[Shortage] = field(default_factory=Counter)


class Holdings:
    """Leases and promises of one rank.

    Args:
        tree: the rank's tree; its mutex guards everything here.
        limits: sizes of the rank's pools.
    """

    def __init__(self, *, tree: PrefixTree, limits: PoolLimits) -> None:
        self.mutex = tree.mutex
        self._tree = tree
        self._ledger = CapacityLedger(limits)
        self._leases: dict[str, Lease] = {}
        self._reach: dict[str, int] = {}
        self.figures = HoldingFigures()
        self._last_seen = self._unpromised()
        self._news = 0

    # --- admission thread -----------------------------------------------------------------------------------

    def hold(self, record: InstallRecord, limit: int) -> Hold | Shortage:
        """Pin the longest prefix of at most `limit` tokens and promise the rest; on a shortage nothing changes.

        Raises:
            LedgerError: the request is held already.
        """
        self._tree.look_ahead(record, cap(record, limit))
        with self.mutex:
            if record.rid in self._ledger:
                raise LedgerError(f"request {record.rid} is held already")
            return self._conclude(record, self._try_hold(record, limit))

    def trim(self, record: InstallRecord, limit: int) -> Hold | Shortage:
        """Pin less of a prefix that is held, judged by its net effect; on a shortage nothing is held any more.

        The earlier place is locked before the later one is let go, so that what both share never comes loose.

        Raises:
            LedgerError: the request holds no lease here.
        """
        self._tree.look_ahead(record, cap(record, limit))
        with self.mutex:
            later = self.take(record.rid)
            self.figures.trims += 1
            found = self._tree.match(record, cap(record, min(limit, later.endpoint)))
            receipt = self._tree.lock(found.node)
            self.release(record.rid)
            return self._conclude(record, self._promise(record, found, receipt))

    def release(self, rid: str) -> None:
        """End a request before its first span: promise first, then lease. Nothing when it holds nothing."""
        with self.mutex:
            lease = self._leases.pop(rid, None)
            if lease is None:
                return
            self._end_promise(rid)
            self._tree.unlock(lease.receipt)

    def holds(self, rid: str) -> bool:
        """Whether the request has a lease here."""
        return rid in self._leases

    def forget(self, rid: str) -> None:
        """The request left admission without being admitted, and holds nothing."""
        self._reach.pop(rid, None)

    def admitted(self, rid: str) -> None:
        """All ranks hold the request: it left admission."""

    @property
    def releases(self) -> int:
        """Grows whenever there is more room than at the last reading or the last shortage, and at each end.

        Room also comes back without an end, when a checkpoint drops pages that the tree has already.
        """
        with self.mutex:
            now = self._unpromised()
            if now.exceeds(self._last_seen):
                self._news += 1
            self._last_seen = now
            return self._news + self._ledger.releases

    @property
    def free_rows(self) -> int:
        """Request rows that are not promised."""
        return self._ledger.limits.rows - len(self._ledger)

    # --- LOOP -----------------------------------------------------------------------------------------------

    def take(self, rid: str) -> Lease:
        """The lease of a request, which stays until `hand_over`.

        Raises:
            LedgerError: this rank holds no lease for it.
        """
        with self.mutex:
            lease = self._leases.get(rid)
            if lease is None:
                raise LedgerError(f"request {rid} has no lease on this rank")
            return lease

    def hand_over(self, rid: str) -> None:
        """The LOOP has locked the prefix for the request itself: the lease ends, the promise stays.

        Raises:
            LedgerError: this rank holds no lease for it.
        """
        with self.mutex:
            lease = self.take(rid)
            del self._leases[rid]
            self.figures.reused_tokens += lease.endpoint
            self._ledger.unpin(rid)
            self._tree.unlock(lease.receipt)

    def chain(self, rid: str) -> Sequence[int] | None:
        """Hashes of the full blocks of the request's prompt, None where nobody needs them."""
        return None

    def reach(self, rid: str) -> int:
        """Tokens up to which this rank's attention cache held the request's prompt when it was last hinted.

        Beyond the request's endpoint, they are what other requests computed too and nobody can resume from yet.
        """
        return self._reach.get(rid, 0)

    def draw(self, rid: str, upto: int) -> None:
        """`draw_all` for one request."""
        self.draw_all({rid: upto})

    def draw_all(self, uptos: Mapping[str, int]) -> None:
        """One allocation, next in the same critical section, gives these requests room up to these positions.

        Args:
            uptos: position by request.

        Raises:
            LedgerError: beyond a promise, or without one.
        """
        with self.mutex:
            for rid, upto in uptos.items():
                self._ledger.draw(rid, upto)

    def end(self, rid: str) -> None:
        """The request ended and its row, tokens and slots are back, or it ends before its first span.

        Raises:
            LedgerError: it holds no promise.
        """
        with self.mutex:
            if rid in self._leases:
                self.release(rid)
            else:
                self._end_promise(rid)
            self.forget(rid)

    # --- checks ---------------------------------------------------------------------------------------------

    @property
    def leased(self) -> int:
        """Leases held now."""
        return len(self._leases)

    @property
    def snapshots(self) -> int:
        """Recurrent snapshots in the cache."""
        return self._tree.snapshots()

    @property
    def reserved_tokens(self) -> int:
        """Tokens promised and not drawn."""
        return self._ledger.reserved_tokens

    @property
    def held(self) -> int:
        """Requests with a promise, leased or running."""
        return len(self._ledger)

    def idle(self) -> bool:
        """Whether no request holds a lease or a promise here."""
        with self.mutex:
            return not self._leases and not len(self._ledger)

    def check(self) -> None:
        """Verify that every promise can be kept.

        Raises:
            LedgerError: names the component that is short.
        """
        with self.mutex:
            self._ledger.check(self._tree.available())

    def check_idle(self) -> None:
        """Verify that nothing leaked: nothing is held, and free plus cached places are the whole pool.

        Raises:
            LedgerError: with the numbers.
        """
        with self.mutex:
            size = self._ledger.limits.usable_tokens
            available, locked = self._tree.available(), self._tree.locked()
            if not self.idle() or locked or available != size:
                raise LedgerError(
                    f"idle, but {len(self._leases)} leases and {len(self._ledger)} promises are held,"
                    f" {locked} tokens are locked, {available} of {size} are free or cached"
                )

    # --- steps ----------------------------------------------------------------------------------------------

    def _unpromised(self) -> Unpromised:
        return self._ledger.unpromised(self._tree.available())

    def _conclude(self, record: InstallRecord, shortage: Shortage | None) -> Hold | Shortage:
        if shortage is not None and not len(self._ledger):
            # Nobody here would ever give anything back. All tokens that the request doesn't pin can be evicted, so
            # only slots can be short, and every shorter prefix pins one snapshot as the longest does: the next
            # endpoint that can fit is 0.
            shortage = self._try_hold(record, 0)
        if shortage is not None:
            self.figures.short[shortage] += 1
            self._last_seen = self._unpromised()
            return shortage
        self.figures.leases += 1
        return Hold(self._leases[record.rid].endpoint)

    def _try_hold(self, record: InstallRecord, limit: int) -> Shortage | None:
        found = self._tree.match(record, cap(record, limit))
        return self._promise(record, found, self._tree.lock(found.node))

    def _promise(self, record: InstallRecord, found: Match, receipt: Any) -> Shortage | None:
        """Promise the room behind a prefix that is locked, which makes it a lease; else unlock it."""
        shortage = self._ledger.reserve(
            record.rid,
            endpoint=found.endpoint,
            total=positions(prompt=len(record.token_ids), max_new_tokens=record.max_new_tokens),
            snapshot=found.snapshot,
            available=self._tree.available(),
        )
        if shortage is None:
            self._leases[record.rid] = Lease(record.rid, found.endpoint, found.node, receipt)
        else:
            self._tree.unlock(receipt)
        return shortage

    def _end_promise(self, rid: str) -> None:
        self._ledger.end(rid)


def cap(record: InstallRecord, limit: int) -> int:
    """At least one token of the prompt is computed, whatever is cached."""
    return max(min(limit, record.cache_limit, len(record.token_ids) - 1), 0)
