"""Admission on one rank by two walks of its tree: one for the hint, one that validates, pins and reserves.

Leases are tree locks that no request of SGLang owns. Both threads of the rank come here: the admission thread
walks, holds and releases, the LOOP takes over and ends. Nothing here allocates, evicts, copies or waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams, TreeLock
from sglang.srt.mem_cache.radix_cache import RadixKey

from sglang_wavepp.admission.hold import Hold, Shortage
from sglang_wavepp.admission.pools import PoolLimits, positions
from sglang_wavepp.cache.guarded_cache import GuardedRadixCache
from sglang_wavepp.cache.ledger import CapacityLedger, LedgerError, Unpromised
from sglang_wavepp.plane.messages import InstallRecord


@dataclass(frozen=True, slots=True)
class Lease:
    """The prefix of a request that this rank keeps for it until the LOOP holds it itself.

    Attributes:
        endpoint: tokens of the prefix.
        node: the tree's id of the node at its end.
    """

    rid: str
    endpoint: int
    node: int
    lock: TreeLock | None


class TwoWalkAdmission:
    """Leases and reservations of one rank.

    Args:
        cache: the rank's cache; its mutex guards everything here.
        limits: sizes of the rank's pools.
        grid: endpoints are multiples of it: the page size, for a hybrid model the grid of recurrent
            snapshots.
    """

    def __init__(self, *, cache: GuardedRadixCache, limits: PoolLimits, grid: int) -> None:
        if grid < 1 or grid % limits.page_size:
            raise ValueError(f"the grid must be a multiple of the page size {limits.page_size}, got {grid}")
        self.mutex = cache.mutex
        self._cache = cache
        self._allocator = cache.token_to_kv_pool_allocator
        self._grid = grid
        self._hybrid = limits.recurrent_slots is not None
        self._ledger = CapacityLedger(limits)
        self._leases: dict[str, Lease] = {}
        self._last_seen = self._unpromised()
        self._news = 0

    # --- admission thread -----------------------------------------------------------------------------------

    def walk(self, record: InstallRecord) -> int:
        """Longest endpoint of the request, at most its cache limit; pins nothing."""
        endpoint, _ = self._match(record, record.cache_limit)
        return endpoint

    def hold(self, record: InstallRecord, limit: int) -> Hold | Shortage:
        """Pin the longest prefix of at most `limit` tokens and reserve the rest; on a shortage nothing
        changes.

        Raises:
            LedgerError: the request is held already.
        """
        with self.mutex:
            shortage = self._try_hold(record, min(limit, record.cache_limit))
            if shortage is not None and not len(self._ledger):
                # Nobody here would ever give anything back. All tokens of the tree that the request doesn't
                # pin can be evicted, so only slots can be short, and every shorter prefix pins one snapshot
                # like the longest: the next endpoint that can fit is 0.
                shortage = self._try_hold(record, 0)
            if shortage is not None:
                self._last_seen = self._unpromised()
                return shortage
            return Hold(self._leases[record.rid].endpoint)

    def release(self, rid: str) -> None:
        """End a request before its first span: reservation first, then lease. Nothing when it holds
        nothing.
        """
        with self.mutex:
            lease = self._leases.pop(rid, None)
            if lease is None:
                return
            self._ledger.end(rid)
            self._cache.unlock(lease.lock)

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
        """The lease of an admitted request, which stays until `hand_over`.

        Raises:
            LedgerError: this rank holds no lease for it.
        """
        with self.mutex:
            lease = self._leases.get(rid)
            if lease is None:
                raise LedgerError(f"request {rid} has no lease on this rank")
            return lease

    def hand_over(self, rid: str) -> None:
        """The LOOP has locked the prefix for the request itself: the lease ends, the reservation stays.

        Raises:
            LedgerError: this rank holds no lease for it.
        """
        with self.mutex:
            lease = self.take(rid)
            del self._leases[rid]
            self._ledger.unpin(rid)
            self._cache.unlock(lease.lock)

    def draw(self, rid: str, upto: int) -> None:
        """The request was given room up to this position, in the same critical section.

        Raises:
            LedgerError: beyond its reservation, or without one.
        """
        with self.mutex:
            self._ledger.draw(rid, upto)

    def end(self, rid: str) -> None:
        """The request ended and its row, tokens and slots are back, or it ends before its first span.

        Raises:
            LedgerError: it holds no reservation.
        """
        with self.mutex:
            if rid in self._leases:
                self.release(rid)
            else:
                self._ledger.end(rid)

    # --- checks ---------------------------------------------------------------------------------------------

    @property
    def held(self) -> int:
        """Requests with a reservation, leased or running."""
        return len(self._ledger)

    def idle(self) -> bool:
        """Whether no request holds a lease or a reservation here."""
        with self.mutex:
            return not self._leases and not len(self._ledger)

    def check(self) -> None:
        """Verify that every promise can be kept.

        Raises:
            LedgerError: names the component that is short.
        """
        with self.mutex:
            self._ledger.check(self._available())

    def check_idle(self) -> None:
        """Verify that nothing leaked: nothing is held, and free plus cached places are the whole pool.

        Raises:
            LedgerError: with the numbers.
        """
        with self.mutex:
            size = int(self._allocator.size) // self._ledger.limits.page_size * self._ledger.limits.page_size
            locked = int(self._cache.full_protected_size())
            if not self.idle() or locked or self._available() != size:
                raise LedgerError(
                    f"idle, but {len(self._leases)} leases and {len(self._ledger)} reservations are held,"
                    f" {locked} tokens are locked, {self._available()} of {size} are free or cached"
                )

    # --- the tree -------------------------------------------------------------------------------------------

    def _available(self) -> int:
        return int(self._allocator.available_size()) + int(self._cache.full_evictable_size())

    def _unpromised(self) -> Unpromised:
        return self._ledger.unpromised(self._available())

    def _match(self, record: InstallRecord, limit: int) -> tuple[int, Any]:
        """Endpoint and tree node of the longest usable prefix of at most `limit` tokens."""
        limit = max(min(limit, len(record.token_ids) - 1), 0)
        while True:
            key = RadixKey(
                record.token_ids, extra_key=record.extra_key, limit=limit, cache_salt=record.cache_salt
            )
            found = self._cache.match_prefix(MatchPrefixParams(key=key, cow_mamba=False))
            endpoint = int(found.device_prefix_len)
            if endpoint % self._grid == 0:
                return endpoint, found.last_device_node
            limit = endpoint - 1  # a state off the grid can't be resumed from: the next shorter one

    def _try_hold(self, record: InstallRecord, limit: int) -> Shortage | None:
        endpoint, node = self._match(record, limit)
        lock = self._cache.lock(node)
        shortage = self._ledger.reserve(
            record.rid,
            endpoint=endpoint,
            total=positions(prompt=len(record.token_ids), max_new_tokens=record.max_new_tokens),
            snapshot=node if self._hybrid and endpoint else None,
            available=self._available(),
        )
        if shortage is None:
            self._leases[record.rid] = Lease(record.rid, endpoint, node, lock)
        else:
            self._cache.unlock(lock)
        return shortage
