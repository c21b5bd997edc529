"""The ledger of one rank: what is promised, in tokens and in recurrent slots, beside what is free and evictable."""

from __future__ import annotations

from collections.abc import Mapping

from model.oracle.pool import Pool
from model.oracle.request import Path, Request
from model.oracle.rules import Rules, Violation
from model.oracle.victims import Victims

PLENTY = 99
"""Slots of a stage without recurrent layers."""


class Escrows:
    """Promises of one rank. Whoever locks or evicts a node goes through here, so that no escrow loses its backing.

    Args:
        requests: of this rank, by id.
        entitlement: recurrent slots that an admitted request may come to need.

    Attributes:
        reserved: tokens promised and not drawn.
    """

    def __init__(self, pool: Pool, requests: Mapping[int, Request], rules: Rules, entitlement: int) -> None:
        self.reserved = 0
        self._pool = pool
        self._requests = requests
        self._rules = rules
        self._entitlement = entitlement
        self._victims = Victims(pool, requests)
        self._concrete = rules.victims == "concrete"

    # --- what is left ---------------------------------------------------------------------------------------

    def available(self) -> int:
        """Tokens that are free or evictable and promised to nobody."""
        return self._pool.free() + self._pool.unlocked - self.reserved

    def available_slots(self) -> int:
        """Recurrent slots that are promised to nobody."""
        pool, holdings = self._pool, [request.holding for request in self._requests.values()]
        if not pool.slots:
            return PLENTY
        if self._rules.slots == "entitlement":
            entitled = sum(self._entitlement for h in holdings if h.slots_due or h.active_slots)
            return pool.slots - entitled - sum(node.snapshot_leases > 0 for node in pool.nodes.values())
        loose = sum(node.snapshot and not node.snapshot_locks for node in pool.nodes.values())
        return pool.free_slots() + loose - sum(h.slots_due for h in holdings)

    def snapshot_cost(self, path: Path) -> int:
        """Recurrent slots that a lease of the snapshot at `path` takes from `available_slots`."""
        node = self._pool.nodes[path]
        if self._rules.slots == "entitlement":
            return int(not node.snapshot_leases)
        return int(not node.snapshot_locks)

    # --- promises -------------------------------------------------------------------------------------------

    def reserve(self, request: Request, tokens: int) -> bool:
        """Promise tokens; False when no victims are found for them, and nothing has changed."""
        if self._concrete and not self._victims.take(request, tokens):
            return False
        request.holding.need += tokens
        self.reserved += tokens
        return True

    def entitle(self, request: Request) -> None:
        """Promise the recurrent slots."""
        if self._pool.slots:
            request.holding.slots_due = self._entitlement

    def recheck(self, request: Request) -> bool:
        """Replace victims that others have claimed; False when that fails."""
        return self._victims.replace_claimed(request)

    def draw(self, request: Request, tokens: int) -> None:
        """Free the places and hand them to the request.

        Raises:
            Violation: it draws more than it was promised, or the promise can't be kept.
        """
        if request.holding.need < tokens:
            raise Violation(f"the escrow of r{request.rid} has {request.holding.need}, needs {tokens}")
        if self._concrete:
            self._free_victims(request, tokens)
        else:
            self._free_oldest(request, tokens)
        request.holding.need -= tokens
        self.reserved -= tokens
        request.holding.private += tokens
        self._pool.owned += tokens

    def forget(self, request: Request) -> None:
        """The promise ends; the caller resets the holding."""
        self._victims.forget(request)
        self.reserved -= request.holding.need

    def _free_oldest(self, request: Request, tokens: int) -> None:
        while self._pool.free() < tokens:
            path = self._pool.oldest_leaf()
            if path is None:
                raise Violation(f"r{request.rid} runs short at consumption")
            self.evict(path)

    def _free_victims(self, request: Request, tokens: int) -> None:
        if not self._victims.replace_claimed(request):
            raise Violation(f"r{request.rid} runs short: another has claimed its victim")
        while request.holding.credit < tokens:
            victim = self._victims.deepest_of(request)
            for path in self._victims.below(victim):
                owner = self._pool.nodes[path].victim_of
                if owner not in (None, request.rid) and self._rules.held_child == "error":
                    raise Violation(f"a victim of r{request.rid} has a child held by r{owner}")
                self.evict(path)
            self.evict(victim)
        request.holding.credit -= tokens

    # --- tree -----------------------------------------------------------------------------------------------

    def lock(self, request: Request, start: int, end: int) -> None:
        """Reference nodes `(start, end]` of the request's path; victims among them are replaced at once."""
        for position in range(start + 1, end + 1):
            path = request.path(position)
            node = self._pool.lock(path)
            if node.victim_of is not None and self._rules.claims == "keep_whole":
                self._victims.claimed(path, node)

    def unlock(self, request: Request, start: int, end: int) -> None:
        for position in range(start + 1, end + 1):
            self._pool.unlock(request.path(position))

    def evict(self, path: Path) -> None:
        self._victims.detached(path, self._pool.detach(path))

    def check(self) -> None:
        """Sums and victims, recounted."""
        if self.reserved != sum(request.holding.need for request in self._requests.values()):
            raise Violation(
                f"{self.reserved} tokens are booked as promised, the requests add up to another number"
            )
        if self._concrete:
            self._victims.check()
