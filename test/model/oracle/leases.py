"""Prepare, trim and release: how a request comes to hold a prefix and the room for the rest on one rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from model.oracle.config import Config
from model.oracle.escrows import Escrows
from model.oracle.pool import Pool
from model.oracle.request import Holding, Request, Stage
from model.oracle.rules import Rules


class Leases:
    """Each method is one critical section."""

    def __init__(
        self, pool: Pool, escrows: Escrows, requests: Mapping[int, Request], rules: Rules, config: Config
    ) -> None:
        self._pool = pool
        self._escrows = escrows
        self._requests = requests
        self._rules = rules
        self._config = config

    # --- endpoints ------------------------------------------------------------------------------------------

    def walk(self, request: Request, limit: int) -> int:
        """Longest endpoint of at most `limit` tokens; at least one token stays to be computed."""
        endpoint = 0
        for position in range(1, min(limit, request.prefill - 1) + 1):
            node = self._pool.nodes.get(request.path(position))
            if node is None:
                break
            if not self._pool.slots or node.snapshot:
                endpoint = position
        return endpoint

    def shorter(self, request: Request, endpoint: int) -> list[int]:
        """What a lease may take instead of an endpoint that does not fit, highest first."""
        rule = self._rules.shorter_lease
        lower = self.lower(request, endpoint) if rule != "never" else []
        if rule == "any":
            return lower
        return [e for e in lower if e and self._pool.nodes[request.path(e)].snapshot_leases]

    def lower(self, request: Request, endpoint: int) -> list[int]:
        """Endpoints below, highest first, at last 0."""
        return [
            position
            for position in range(endpoint - 1, -1, -1)
            if not position or not self._pool.slots or self._pool.nodes[request.path(position)].snapshot
        ]

    def is_alone(self, request: Request) -> bool:
        """Nothing else is alive here, so nothing would ever be given back."""
        return all(other is request or other.stage is Stage.QUEUED for other in self._requests.values())

    # --- hold -----------------------------------------------------------------------------------------------

    def prepare(self, request: Request, endpoint: int) -> bool:
        """Lease and escrow, or nothing."""
        if not self.lease(request, endpoint):
            return False
        if self.fill_escrow(request):
            return True
        self.release(request)
        return False

    def prepare_first(self, request: Request, endpoints: Iterable[int]) -> bool:
        """The first of these endpoints that fits."""
        return any(self.prepare(request, endpoint) for endpoint in endpoints)

    def stop_paying(self, request: Request) -> None:
        """From now on its snapshot is among the slots that the request is entitled to."""
        holding = request.holding
        if holding.pays and holding.leased_snapshot is not None:
            self._pool.nodes[holding.leased_snapshot].snapshot_leases -= 1
            holding.pays = False

    def lease(self, request: Request, endpoint: int) -> bool:
        """Pin the prefix if that, and the escrow to come, leaves every other escrow whole."""
        pins, slots = self._costs(request, endpoint)
        demand = self._demand(request, endpoint)
        if not self._leaves_headroom(request, pins, demand):
            return False
        later = self._rules.prepare_in_one_step
        escrow_slots = self._config.entitlement if later else 0
        if self._rules.claims == "keep_whole" and self._escrows.available() < pins + (demand if later else 0):
            return False
        if self._pool.slots and self._escrows.available_slots() < slots + escrow_slots:
            return False
        self._pin(request, endpoint)
        return True

    def fill_escrow(self, request: Request) -> bool:
        """Reserve what a leased request needs beyond its endpoint."""
        demand = self._demand(request, request.holding.endpoint)
        if self._rules.claims == "keep_whole" and self._escrows.available() < demand:
            return False
        if self._pool.slots and self._escrows.available_slots() < self._config.entitlement:
            return False
        if not self._escrows.reserve(request, demand):
            return False
        self._escrows.entitle(request)
        request.holding.granted = request.prefill + self._output_reserve(request)
        return True

    def trim(self, request: Request, endpoint: int) -> bool:
        """Go down to `endpoint` from a hold that was not admitted; False when that doesn't fit: nothing is held.

        Released and prepared again in one critical section, which is the net effect of acquiring the earlier
        snapshot before the later one is given back.
        """
        if not self._rules.trim_on_net_effect and self._lacks_a_spare_slot(request, endpoint):
            self.release(request)
            return False
        need = request.holding.need
        self.release(request)
        if self._rules.recompute_demand:
            return self.prepare(request, endpoint)
        self._pin(request, endpoint)
        self._escrows.entitle(request)
        request.holding.granted = request.prefill + self._output_reserve(request)
        return self._escrows.reserve(request, need)

    def release(self, request: Request) -> None:
        """Give everything back: escrow first, then lease and references."""
        holding, pool = request.holding, self._pool
        self._escrows.forget(request)
        pool.owned -= holding.private
        pool.active_slots -= holding.active_slots
        for path in (holding.leased_snapshot, holding.own_snapshot):
            if path is not None:
                pool.nodes[path].snapshot_locks -= 1
        self.stop_paying(request)
        self._escrows.unlock(request, 0, holding.locked)
        request.holding = Holding()
        request.stage = Stage.QUEUED
        pool.releases += 1

    # --- details --------------------------------------------------------------------------------------------

    def _pin(self, request: Request, endpoint: int) -> None:
        self._escrows.lock(request, 0, endpoint)
        request.holding.endpoint = request.holding.locked = endpoint
        request.stage = Stage.HELD
        if self._pool.slots and endpoint:
            node = self._pool.nodes[request.path(endpoint)]
            node.snapshot_locks += 1
            node.snapshot_leases += 1
            request.holding.leased_snapshot = request.path(endpoint)
            request.holding.pays = True

    def _output_reserve(self, request: Request) -> int:
        # The last output token is never computed on, so it needs no place.
        return min(self._config.reserve, request.remaining - 1)

    def _demand(self, request: Request, endpoint: int) -> int:
        return request.prefill - endpoint + self._output_reserve(request)

    def _costs(self, request: Request, endpoint: int) -> tuple[int, int]:
        """Evictable tokens and recurrent slots that a pin at `endpoint` makes unavailable."""
        nodes = self._pool.nodes
        pins = sum(not nodes[request.path(position)].locks for position in range(1, endpoint + 1))
        if not self._pool.slots or not endpoint:
            return pins, 0
        return pins, self._escrows.snapshot_cost(request.path(endpoint))

    def _leaves_headroom(self, request: Request, pins: int, demand: int) -> bool:
        rules, pool = self._rules, self._pool
        if not rules.headroom or (rules.lone_ignores_headroom and self.is_alone(request)):
            return True
        used = len(pool.nodes) - pool.unlocked + pool.owned + pins
        if rules.headroom_counts == "pins_and_reservations":
            used += self._escrows.reserved + demand
        return pool.tokens - used >= rules.headroom

    def _lacks_a_spare_slot(self, request: Request, endpoint: int) -> bool:
        moves = self._pool.slots and endpoint and endpoint != request.holding.endpoint
        if not moves or self._pool.nodes[request.path(endpoint)].snapshot_locks:
            return False
        return self._escrows.available_slots() < 1
