"""What a rank's LOOP does with an admitted request: first span, tokens, checkpoints, recurrent snapshots."""

from __future__ import annotations

from model.oracle.escrows import Escrows
from model.oracle.leases import Leases
from model.oracle.messages import Span
from model.oracle.pool import Pool
from model.oracle.request import Request, Stage
from model.oracle.rules import Rules, Violation


class Forward:
    """Everything is drawn from the request's escrow; a rank that has to improvise breaks the protocol."""

    def __init__(self, pool: Pool, escrows: Escrows, leases: Leases, rules: Rules) -> None:
        self._pool = pool
        self._escrows = escrows
        self._leases = leases
        self._rules = rules

    def span(self, request: Request, span: Span) -> None:
        """Compute a span.

        Raises:
            Violation: the request isn't where the span starts, or runs short.
        """
        if request.stage is Stage.HELD:
            self.start(request)
        holding = request.holding
        if holding.position != span.start:
            raise Violation(f"r{request.rid} is at {holding.position}, its span starts at {span.start}")
        self._escrows.draw(request, span.length)
        holding.position += span.length
        if holding.position <= request.prefill:
            self.publish(request, holding.position)
        if self._pool.slots and span.snapshot:
            self.snapshot(request, holding.position)

    def start(self, request: Request) -> None:
        """The LOOP takes the prefix over; on a recurrent stage it needs a running state.

        The snapshot that it resumed from stays pinned until the request has one of its own.
        """
        if not request.holding.committed:
            raise Violation(f"span for uncommitted r{request.rid}")
        request.stage = Stage.RUNNING
        request.holding.position = request.holding.endpoint
        if self._pool.slots:
            request.holding.slots_due -= 1
            self._take_slot(request)
            self._pool.active_slots += 1
            request.holding.active_slots = 1
            if self._rules.leased_snapshot_counts_until == "first_span":
                self._leases.stop_paying(request)

    def publish(self, request: Request, end: int) -> None:
        """Computed tokens become cached content, locked by the request; what is there already frees the duplicate."""
        for position in range(request.holding.locked + 1, end + 1):
            path = request.path(position)
            self._pool.owned -= 1
            request.holding.private -= 1
            if path not in self._pool.nodes:
                self._pool.attach(path)
            self._escrows.lock(request, position - 1, position)
        request.holding.locked = max(request.holding.locked, end)

    def snapshot(self, request: Request, position: int) -> None:
        """Keep the recurrent state at this position, and let go of the snapshot before it."""
        holding, path = request.holding, request.path(position)
        node, first = self._pool.nodes[path], request.holding.own_snapshot is None
        if not node.snapshot:
            if holding.slots_due < 1:
                raise Violation(f"r{request.rid} has no spare slot")
            holding.slots_due -= 1
            self._take_slot(request)
            self._pool.keep_snapshot(path)
            if not first:
                holding.slots_due += 1  # two rotate: the one before becomes evictable
        elif first:
            holding.slots_due -= 1
        node.snapshot_locks += 1
        if holding.own_snapshot is not None:
            self._let_go(holding.own_snapshot)
        if holding.leased_snapshot is not None:
            self._let_go(holding.leased_snapshot)
            self._leases.stop_paying(request)
            holding.leased_snapshot = None
        holding.own_snapshot = path

    def _let_go(self, path: tuple[int, ...]) -> None:
        self._pool.nodes[path].snapshot_locks -= 1
        self._pool.releases += 1

    def _take_slot(self, request: Request) -> None:
        if self._pool.free_slots() < 1 and not self._pool.drop_oldest_snapshot():
            raise Violation(f"no recurrent slot for r{request.rid}")
