"""One rank: applies rounds and commands, each in the order in which they come, to its pool."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from model.oracle.config import Config
from model.oracle.decide import Outcome, Verdict, decide
from model.oracle.escrows import Escrows
from model.oracle.forward import Forward
from model.oracle.leases import Leases
from model.oracle.messages import (
    Abort,
    Attempt,
    Broadcast,
    Command,
    Extension,
    Grant,
    Held,
    NoCapacity,
    Pending,
    Results,
    Retract,
    Span,
    Vote,
    Wave,
)
from model.oracle.pool import Pool
from model.oracle.request import Path, Request, Stage
from model.oracle.rules import Rules, Violation


@dataclass(frozen=True)
class SecondHalf:
    """The escrow of a request whose lease was made in a step of its own."""

    attempt: Attempt


@dataclass(frozen=True)
class Hint:
    rid: int
    epoch: int


Operation: TypeAlias = Extension | Attempt | SecondHalf | Hint


@dataclass(frozen=True)
class Admission:
    """Replicated state of a request in admission; None as verdict: hinted, not tried yet."""

    verdict: Verdict | None
    candidate: int


class Rank:
    """State of one rank; every public method is one step that nothing on this rank interrupts.

    Attributes:
        admission: of each request in admission, a function of the votes.
        applied_round: last round whose gather was applied.
        applied_command: last command that was applied.
        waves: waves computed.
        results: waves whose result is on its way to rank 0, on the last stage only.
        open: the round that was broadcast and not gathered.
        operations: what is left of it before the vote.
        decided: outcomes by round.
    """

    def __init__(self, index: int, rules: Rules, config: Config) -> None:
        self.index, self.rules = index, rules
        self.requests: dict[int, Request] = {}
        self.pool = Pool(config.pools[index], config.slots[index])
        self.escrows = Escrows(self.pool, self.requests, rules, config.entitlement)
        self.leases = Leases(self.pool, self.escrows, self.requests, rules, config)
        self.forward = Forward(self.pool, self.escrows, self.leases, rules)
        self.admission: dict[int, Admission] = {}
        self.applied_round = self.applied_command = self.waves = 0
        self.results: deque[Wave] | None = deque() if index == len(config.pools) - 1 else None
        self.open: Broadcast | None = None
        self.operations: deque[Operation] = deque()
        self.answers = Vote()
        self.voted = False
        self.decided: dict[int, tuple[Outcome, ...]] = {}
        self._blocked = False

    # --- rounds ---------------------------------------------------------------------------------------------

    def on_broadcast(self, broadcast: Broadcast) -> None:
        self.open, self.answers, self.voted, self._blocked = broadcast, Vote(), False, False
        for record in broadcast.records:
            self.requests[record.rid] = Request(record.rid, record.tokens, record.output)
        for rid, epoch in broadcast.aborts:
            request = self.requests.get(rid)
            if request is None:
                continue
            if request.epoch < epoch and self.rules.aborts_wait_for_retraction:
                request.doomed = True
            else:
                self.leases.release(request)
                del self.requests[rid]
        self.operations = deque([*broadcast.extensions, *broadcast.attempts])
        self.operations.extend(Hint(rid, epoch) for rid, epoch in broadcast.hints)

    def operate(self) -> None:
        """The next extension, attempt or hint of the open round."""
        operation = self.operations.popleft()
        try:
            if isinstance(operation, Extension):
                self._extend(operation)
            elif isinstance(operation, Hint):
                self._hint(operation)
            elif isinstance(operation, SecondHalf):
                self._fill_escrow(operation.attempt)
            else:
                self._attempt(operation)
        except Violation as found:
            raise Violation(f"rank {self.index}: {found}") from found

    def vote(self) -> Vote:
        self.voted = True
        self.answers.releases = self.pool.releases
        return self.answers

    def on_gather(self, votes: list[Vote]) -> tuple[Outcome, ...]:
        """Apply the open round's outcomes."""
        assert self.open is not None
        opened, self.open = self.open, None
        self.applied_round = opened.number
        for rid, _ in opened.hints:
            self._take_hint(rid, [vote.hints[rid] for vote in votes])
        outcomes = decide(opened.attempts, [vote.attempts for vote in votes], self.rules)
        self.decided[opened.number] = outcomes
        for outcome, attempt in zip(outcomes, opened.attempts, strict=True):
            self._take_outcome(outcome, attempt)
        return outcomes

    def _take_hint(self, rid: int, hints: list[int | None]) -> None:
        known = [hint for hint in hints if hint is not None]
        if len(known) < len(hints):
            return
        before = self.admission.get(rid)
        waits = before is not None and before.verdict is Verdict.WAIT
        self.admission[rid] = Admission(Verdict.WAIT if waits else None, min(known))

    def _take_outcome(self, outcome: Outcome, attempt: Attempt) -> None:
        verdict, endpoint = outcome.verdict, outcome.endpoint
        if verdict in (Verdict.TRIM, Verdict.PREPARE) and not (
            endpoint is not None and endpoint < attempt.candidate
        ):
            raise Violation(f"the endpoint of r{outcome.rid} did not fall")
        self.admission[outcome.rid] = Admission(verdict, attempt.candidate if endpoint is None else endpoint)
        request = self.requests.get(outcome.rid)
        if verdict in (Verdict.PENDING, Verdict.WAIT, Verdict.PREPARE) and (
            request is not None and request.stage is Stage.HELD and request.epoch == outcome.epoch
        ):
            self.leases.release(request)

    # --- operations of a round ------------------------------------------------------------------------------

    def _extend(self, extension: Extension) -> None:
        request = self.requests.get(extension.rid)
        granted = (
            request is not None and request.epoch == extension.epoch and request.stage is not Stage.QUEUED
        )
        if granted and request is not None and extension.target > request.holding.granted:
            more = extension.target - request.holding.granted
            fits = self.rules.claims == "recheck_at_commit" or self.escrows.available() >= more
            granted = fits and self.escrows.reserve(request, more)
            if granted:
                request.holding.granted = extension.target
        self.answers.extensions[extension.rid] = Grant(granted, self.applied_command)

    def _hint(self, hint: Hint) -> None:
        request = self.requests.get(hint.rid)
        stale = request is not None and (request.epoch != hint.epoch or request.stage is not Stage.QUEUED)
        if request is None or (stale and self.rules.epochs_in_votes):
            self.answers.hints[hint.rid] = None
        else:
            self.answers.hints[hint.rid] = self.leases.walk(request, request.prefill)

    def _may_try(self, attempt: Attempt) -> Request | None:
        request = self.requests.get(attempt.rid)
        if request is None or (request.epoch != attempt.epoch and self.rules.epochs_in_votes):
            self.answers.attempts[attempt.rid] = Pending()
            return None
        if self._blocked and self.rules.order == "strict":
            # Whoever comes later must not take what an earlier request waits for.
            self.answers.attempts[attempt.rid] = NoCapacity(self.pool.releases)
            return None
        return request

    def _attempt(self, attempt: Attempt) -> None:
        request = self._may_try(attempt)
        if request is None:
            return
        endpoint = self.leases.walk(request, attempt.candidate)
        if attempt.trims:
            held = self.leases.trim(request, endpoint)
        elif self.rules.prepare_in_one_step:
            held = self.leases.prepare(request, endpoint) or (
                self.leases.prepare_first(request, self.leases.shorter(request, endpoint))
            )
        else:
            held = self.leases.lease(request, endpoint) or any(
                self.leases.lease(request, e) for e in self.leases.shorter(request, endpoint)
            )
            if held:
                self.operations.appendleft(SecondHalf(attempt))
                return
        self._answer(request, attempt, endpoint, held)

    def _fill_escrow(self, attempt: Attempt) -> None:
        request = self._may_try(attempt)
        if request is None:
            return
        endpoint = request.holding.endpoint
        held = self.leases.fill_escrow(request)
        if not held:
            self.leases.release(request)
        self._answer(request, attempt, endpoint, held)

    def _answer(self, request: Request, attempt: Attempt, endpoint: int, held: bool) -> None:
        if not held and self.rules.lone_goes_lower and self.leases.is_alone(request):
            held = self.leases.prepare_first(request, self.leases.lower(request, endpoint))
        if not held:
            self._blocked = True
            self.answers.attempts[attempt.rid] = NoCapacity(self.pool.releases)
            return
        exact = request.holding.endpoint == attempt.candidate
        if exact and not self.escrows.recheck(request):
            self.leases.release(request)
            self.answers.attempts[attempt.rid] = NoCapacity(self.pool.releases)
            return
        request.holding.committed = exact
        self.answers.attempts[attempt.rid] = Held(request.holding.endpoint, exact)

    # --- commands -------------------------------------------------------------------------------------------

    def apply(self, command: Command) -> None:
        """The next command of rank 0's stream."""
        self.applied_command = command.number
        try:
            if isinstance(command, Wave):
                for span in command.spans:
                    self._span(span)
                self.waves = command.wave
                if self.results is not None:
                    self.results.append(command)
            elif isinstance(command, Results):
                for token in command.tokens:
                    self._take_token(token.rid, token.token, last=token.last)
            elif isinstance(command, Abort | Retract):
                self._take_back(command.rid, ends=isinstance(command, Abort))
        except Violation as found:
            raise Violation(f"rank {self.index}: {found}") from found

    def _span(self, span: Span) -> None:
        request = self.requests.get(span.rid)
        if request is None or request.epoch != span.epoch or request.stage is Stage.QUEUED:
            raise Violation(f"span for unadmitted r{span.rid}")
        self.forward.span(request, span)

    def _take_token(self, rid: int, token: int, *, last: bool) -> None:
        request = self.requests.get(rid)
        if request is None:
            raise Violation(f"result for unknown r{rid}")
        request.tokens.append(token)
        if last:
            self.forward.publish(request, request.holding.position)
            self.leases.release(request)
            del self.requests[rid]

    def _take_back(self, rid: int, *, ends: bool) -> None:
        request = self.requests.get(rid)
        if request is None:
            return
        self.leases.release(request)
        request.epoch += 1
        request.prefill = len(request.tokens)
        if ends or request.doomed:
            del self.requests[rid]

    # --- content --------------------------------------------------------------------------------------------

    def warm(self, tokens: Sequence[int], snapshots: Sequence[int] = ()) -> None:
        """Content from before, as far as there is room: a path, with recurrent snapshots at these positions.

        What is warmed first is evicted first.
        """
        for end in range(1, len(tokens) + 1):
            path = tuple(tokens[:end])
            if path not in self.pool.nodes:
                if not self.pool.free():
                    return
                self.pool.attach(path)
            self.pool.lock(path)
            self.pool.unlock(path)
            if end in snapshots and self.pool.free_slots() > 0 and not self.pool.nodes[path].snapshot:
                self.pool.keep_snapshot(path)

    # --- what must hold -------------------------------------------------------------------------------------

    def check(self) -> None:
        """After every step."""
        pool = self.pool
        if pool.free() < 0 or pool.owned < 0:
            raise Violation(f"rank {self.index}: pool over-committed")
        if self.rules.claims == "keep_whole" and self.escrows.available() < 0:
            raise Violation(f"rank {self.index}: escrows are short by {-self.escrows.available()}")
        if pool.slots and (self.escrows.available_slots() < 0 or pool.free_slots() < 0):
            raise Violation(f"rank {self.index}: recurrent slots are short")

    def audit(self) -> None:
        """Recount everything: references, snapshots, children, unlocked nodes, promises."""
        pool = self.pool
        locks: Counter[Path] = Counter()
        snapshot_locks: Counter[Path | None] = Counter()
        for request in self.requests.values():
            locks.update(map(request.path, range(1, request.holding.locked + 1)))
            snapshot_locks.update((request.holding.leased_snapshot, request.holding.own_snapshot))
        children = Counter(path[:-1] for path in pool.nodes)
        for path, node in pool.nodes.items():
            if node.locks != locks[path] or node.snapshot_locks != snapshot_locks[path]:
                raise Violation(f"rank {self.index}: leaked reference at {path}")
            if node.children != children[path]:
                raise Violation(f"rank {self.index}: {path} has another number of children")
        if pool.unlocked != sum(not node.locks for node in pool.nodes.values()):
            raise Violation(f"rank {self.index}: unlocked nodes miscounted")
        if pool.snapshots != sum(node.snapshot for node in pool.nodes.values()):
            raise Violation(f"rank {self.index}: snapshots miscounted")
        try:
            self.escrows.check()
        except Violation as found:
            raise Violation(f"rank {self.index}: {found}") from found

    def check_drained(self) -> None:
        """Nothing is held when every request has ended."""
        pool = self.pool
        left = any(node.locks or node.snapshot_locks for node in pool.nodes.values())
        if self.requests or self.escrows.reserved or pool.owned or pool.active_slots or left:
            raise Violation(f"rank {self.index}: leak after the last end: {sorted(self.requests)}")
