"""The product beside the model: whatever a rank of the model does, the product's rank does too, and both must agree.

The product's part is its decision, its rank's part in the rounds, its ledger, leases and escrows, over a naive tree. A
request reserves its whole output, a page is a token, and a request may need three recurrent slots, so that the two
are about the same thing. Which content goes is the product's choice where it makes one, and the model follows.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from model.naive_tree import NaiveTree
from model.oracle.config import Config
from model.oracle.decide import Outcome, Verdict
from model.oracle.messages import (
    Answer,
    Attempt,
    Broadcast,
    Command,
    Held,
    NoCapacity,
    Record,
    Span,
    Vote,
)
from model.oracle.rank import Hint, Rank
from model.oracle.request import Path, Request, Stage
from model.oracle.rules import Rules
from model.oracle.script import ByHand, quiet
from model.oracle.simulation import Simulation

from sglang_wavepp.admission import decision, messages
from sglang_wavepp.admission.hint import HintProbe
from sglang_wavepp.admission.hold import Hold, Shortage
from sglang_wavepp.admission.member import RoundsMember
from sglang_wavepp.admission.pools import PoolLimits
from sglang_wavepp.cache.lease import LeaseAdmission
from sglang_wavepp.cache.two_walk import TwoWalkAdmission

WHOLE_OUTPUT = 1 << 20
ROWS = 1 << 20
"""Rows are the leader's affair in the model, so no rank may run out of them."""

Product: TypeAlias = LeaseAdmission | TwoWalkAdmission
MakeProduct: TypeAlias = Callable[[NaiveTree, PoolLimits, int], Product]
"""From a rank's tree, its limits and the headroom."""


class Difference(AssertionError):
    """The product did something else than the model."""


def expect(what: str, product: object, model: object) -> None:
    """Raises Difference unless both are the same."""
    if product != model:
        raise Difference(f"{what}: the product has {product}, the model {model}")


def lease(tree: NaiveTree, limits: PoolLimits, headroom: int) -> Product:
    """The product's default: hints from an index, leases, escrows."""
    admission = LeaseAdmission(
        tree=tree, limits=limits, probe=HintProbe(tree.index, block=1, step=1), block=1, headroom=headroom
    )
    tree.book = admission.escrows
    return admission


def two_walk(tree: NaiveTree, limits: PoolLimits, headroom: int) -> Product:
    """The product's plain way: hints walk the tree, and nothing names victims."""
    assert not headroom, "it has none"
    return TwoWalkAdmission(tree=tree, limits=limits)


def name(rid: int) -> str:
    """The product's id of a request of the model."""
    return f"r{rid}"


def install_record(record: Record) -> messages.InstallRecord:
    return messages.InstallRecord(
        rid=name(record.rid),
        epoch=0,
        token_ids=array("q", record.tokens),
        max_new_tokens=record.output,
        cache_limit=len(record.tokens) - 1,
        extra_key=None,
        cache_salt=None,
        request={},
    )


def in_words_of_the_product(answer: Answer) -> messages.AttemptVote:
    if isinstance(answer, Held):
        return messages.AttemptVote(kind="held", endpoint=answer.endpoint, committed=answer.committed)
    return messages.AttemptVote(kind="nocap" if isinstance(answer, NoCapacity) else "pending")


VERDICTS = {
    Verdict.PENDING: decision.Verdict.PENDING,
    Verdict.WAIT: decision.Verdict.WAIT,
    Verdict.ADMITTED: decision.Verdict.ADMITTED,
    Verdict.TRIM: decision.Verdict.LOWER,
}


def outcomes_of_the_product(outcomes: Sequence[Outcome]) -> tuple[decision.Outcome, ...]:
    """The model's outcomes as the product says them."""
    return tuple(decision.Outcome(name(o.rid), o.epoch, VERDICTS[o.verdict], o.endpoint) for o in outcomes)


@dataclass
class Running:
    """What a request of the product holds of the tree and the pool beside its promise."""

    tokens: list[int]
    locked: int
    snapshot: Path | None
    private: int = 0


class ProductRank:
    """One rank of the product: its admission, and a LOOP that locks, draws and publishes as the model's does."""

    def __init__(self, make: MakeProduct, config: Config, index: int, headroom: int) -> None:
        slots = config.slots[index] or None
        limits = PoolLimits(
            tokens=config.pools[index],
            page_size=1,
            rows=ROWS,
            context=1 << 20,
            recurrent_slots=slots,
            slots_per_request=config.entitlement if slots else 0,
        )
        self.tree = NaiveTree(config.pools[index], slots)
        self.admission = make(self.tree, limits, headroom)
        self.running: dict[int, Running] = {}

    def start(self, request: Request) -> None:
        """First span: the request's own references, then the lease ends."""
        found = self.admission.take(name(request.rid))
        expect(f"endpoint at the first span of r{request.rid}", found.endpoint, request.holding.endpoint)
        own = self.running[request.rid] = Running(request.tokens, 0, None)
        self._lock(own, found.endpoint)
        if self.tree.slots is not None and found.endpoint:
            self._move_snapshot(own, request.path(found.endpoint))
        self.admission.hand_over(name(request.rid))
        self.tree.private_slots += self.tree.slots is not None

    def draw(self, rid: int, start: int, length: int) -> None:
        """Places for a span come out of the promise; whoever stands behind it makes room."""
        self.admission.draw(name(rid), start + length)
        if isinstance(self.admission, LeaseAdmission):
            expect("free places after a draw are enough", self.tree.free() >= length, True)
        self.tree.allocate(length)
        self.admission.draw(name(rid), start)  # a lower position changes nothing
        self.running[rid].private += length

    def publish(self, rid: int, upto: int) -> None:
        """Private tokens become content that the request locks; duplicates are freed first."""
        own = self.running[rid]
        for end in range(own.locked + 1, upto + 1):
            self.tree.private_tokens -= 1
            own.private -= 1
            self.tree.attach(tuple(own.tokens[:end]))
        self._lock(own, max(own.locked, upto))

    def keep_snapshot(self, rid: int, path: Path) -> None:
        """The request's last recurrent snapshot is here now."""
        self.tree.keep_snapshot(path, True)
        self._move_snapshot(self.running[rid], path)

    def end(self, rid: int) -> None:
        """Finished or aborted."""
        own = self.running.pop(rid, None)
        if own is not None:
            for end in range(1, own.locked + 1):
                self.tree.nodes[tuple(own.tokens[:end])].locks -= 1
            self._move_snapshot(own, None)
            self.tree.private_tokens -= own.private
            self.tree.private_slots -= self.tree.slots is not None
        self.admission.end(name(rid))

    def _lock(self, own: Running, upto: int) -> None:
        for end in range(own.locked + 1, upto + 1):
            path = tuple(own.tokens[:end])
            self.tree.nodes[path].locks += 1
            if path in self.tree.held:
                self.tree.claims.append(path)
        own.locked = upto

    def _move_snapshot(self, own: Running, path: Path | None) -> None:
        if path is not None:
            self.tree.nodes[path].snapshot_locks += 1
        if own.snapshot is not None:
            self.tree.nodes[own.snapshot].snapshot_locks -= 1
        own.snapshot = path


class ShadowedRank(Rank):
    """A rank of the model that does each operation on the product's rank as well.

    Attributes:
        product: the other side.
        records: requests in admission, as the product knows them.
        touched: something may have changed since the two were compared.
    """

    def __init__(self, index: int, rules: Rules, config: Config, make: MakeProduct) -> None:
        super().__init__(index, rules, config)
        self.product = ProductRank(make, config, index, rules.headroom)
        self.records: dict[int, messages.InstallRecord] = {}
        self.touched = True
        self._releases = 0
        self._room_at_refusal: tuple[int, int, int] | None = None
        """Counter of releases in the vote that refused, and the room there was at that moment."""

    # --- rounds ---------------------------------------------------------------------------------------------

    def on_broadcast(self, broadcast: Broadcast) -> None:
        self.touched = True
        self._releases = self.product.admission.releases
        self._expect_news()
        super().on_broadcast(broadcast)
        self.records |= {record.rid: install_record(record) for record in broadcast.records}
        for rid, _ in broadcast.aborts:
            if self.records.pop(rid, None) is not None:
                self.product.admission.release(name(rid))
                self.product.admission.forget(name(rid))

    def operate(self) -> None:
        self.touched = True
        super().operate()

    def on_gather(self, votes: list[Vote]) -> tuple[Outcome, ...]:
        self.touched = True
        opened = self.open
        assert opened is not None
        outcomes = super().on_gather(votes)
        said = decision.decide(*self._as_messages(opened, votes))
        expect(f"outcomes of round {opened.number}", said, outcomes_of_the_product(outcomes))
        return outcomes

    def _as_messages(
        self, opened: Broadcast, votes: list[Vote]
    ) -> tuple[tuple[messages.Attempt, ...], tuple[messages.Vote, ...]]:
        attempts = tuple(
            messages.Attempt(rid=name(a.rid), epoch=a.epoch, candidate=a.candidate) for a in opened.attempts
        )
        return attempts, tuple(
            messages.Vote(
                round=opened.number,
                rank=rank,
                applied_command=0,
                releases=vote.releases,
                hints={},
                attempts={name(rid): in_words_of_the_product(a) for rid, a in vote.attempts.items()},
            )
            for rank, vote in enumerate(votes)
        )

    def _take_outcome(self, outcome: Outcome, attempt: Attempt) -> None:
        super()._take_outcome(outcome, attempt)
        if outcome.verdict in (Verdict.PENDING, Verdict.WAIT):
            self.product.admission.release(name(outcome.rid))
        elif outcome.verdict is Verdict.ADMITTED:
            self.records.pop(outcome.rid, None)

    def _hint(self, hint: Hint) -> None:
        super()._hint(hint)
        walked = self.answers.hints[hint.rid]
        if walked is not None:
            said = self.product.admission.hint(self.records[hint.rid])
            expect(f"hint of r{hint.rid} on rank {self.index}", said.endpoint, walked)

    def _attempt(self, attempt: Attempt) -> None:
        tried_nobody = self._blocked
        super()._attempt(attempt)
        answer = self.answers.attempts[attempt.rid]
        if tried_nobody or not isinstance(answer, Held | NoCapacity):
            return
        admission, record = self.product.admission, self.records[attempt.rid]
        expect(f"r{attempt.rid} is held already", admission.holds(record.rid), attempt.trims)
        act = admission.trim if attempt.trims else admission.hold
        got = act(record, min(attempt.candidate, record.cache_limit))
        said = (
            messages.AttemptVote(
                kind="held", endpoint=got.endpoint, committed=got.endpoint == attempt.candidate
            )
            if isinstance(got, Hold)
            else messages.AttemptVote(kind="nocap")
        )
        expect(f"vote of rank {self.index} on r{attempt.rid}", said, in_words_of_the_product(answer))
        if isinstance(got, Shortage):
            self._room_at_refusal = (
                self._releases,
                self.escrows.available(),
                self.escrows.available_slots(),
            )

    def _expect_news(self) -> None:
        """The counter of releases has grown if there is more room than at the last refusal."""
        if self._room_at_refusal is None:
            return
        then, tokens, slots = self._room_at_refusal
        more = self.escrows.available() > tokens or self.escrows.available_slots() > slots
        if more and self._releases <= then:
            raise Difference(f"rank {self.index} has room again, and its counter of releases does not say so")

    # --- commands -------------------------------------------------------------------------------------------

    def apply(self, command: Command) -> None:
        self.touched = True
        super().apply(command)

    def _span(self, span: Span) -> None:
        request = self.requests.get(span.rid)
        assert request is not None, "the model alone is checked for that"
        if request.stage is Stage.HELD:
            self.product.start(request)
        self.product.draw(span.rid, span.start, span.length)
        self._follow_evictions()
        super()._span(span)
        if request.holding.position <= request.prefill:
            self.product.publish(span.rid, request.holding.position)
        self._lose_snapshots()
        if request.holding.own_snapshot not in (None, self.product.running[span.rid].snapshot):
            assert request.holding.own_snapshot is not None
            self.product.keep_snapshot(span.rid, request.holding.own_snapshot)

    def _take_token(self, rid: int, token: int, *, last: bool) -> None:
        request = self.requests.get(rid)
        assert request is not None, "the model alone is checked for that"
        position = request.holding.position
        super()._take_token(rid, token, last=last)
        if last:
            self.product.publish(rid, position)
            self.product.end(rid)

    def _take_back(self, rid: int, *, ends: bool) -> None:
        assert ends, "nothing is retracted that has reserved all it will need"
        known = rid in self.requests
        super()._take_back(rid, ends=ends)
        if known:
            self.product.end(rid)

    # --- content --------------------------------------------------------------------------------------------

    def warm(self, tokens: Sequence[int], snapshots: Sequence[int] = ()) -> None:
        super().warm(tokens, snapshots)
        for path, node in self.pool.nodes.items():
            self.product.tree.attach(path)
            self.product.tree.keep_snapshot(path, node.snapshot)

    def lose(self, path: Path) -> None:
        """Both lose this content."""
        self.touched = True
        self.product.tree.detach(path)
        self.escrows.evict(path)

    def _follow_evictions(self) -> None:
        gone = [path for path in self.pool.nodes if path not in self.product.tree.nodes]
        for path in sorted(gone, key=len, reverse=True):
            expect(f"references to {path}, which was evicted", 0, self.pool.nodes[path].locks)
            self.escrows.evict(path)

    def _lose_snapshots(self) -> None:
        tree = self.product.tree
        for path, node in self.pool.nodes.items():
            if tree.nodes[path].snapshot and not node.snapshot:
                expect(f"references to the snapshot at {path}", tree.nodes[path].snapshot_locks, 0)
                tree.keep_snapshot(path, False)

    # --- what must be alike ---------------------------------------------------------------------------------

    def check(self) -> None:
        super().check()
        if self.touched:
            self.compare()
            self.touched = False

    def compare(self) -> None:
        """Ledger, leases, promises, content and references of both."""
        tree, ledger = self.product.tree, self.product.admission._ledger
        where = f"rank {self.index}: "
        room = ledger.unpromised(tree.available())
        expect(where + "free and evictable, less what is promised", room.tokens, self.escrows.available())
        if tree.slots is not None:
            expect(where + "recurrent slots left", room.slots, self.escrows.available_slots())
            expect(where + "recurrent slots in use", tree.private_slots, self.pool.active_slots)
        alive = {rid: q for rid, q in self.requests.items() if q.stage is not Stage.QUEUED}
        expect(
            where + "promised and not drawn",
            ledger.undrawn(),
            {name(rid): request.holding.need for rid, request in alive.items()},
        )
        expect(
            where + "leases",
            {rid: held.endpoint for rid, held in self.product.admission._leases.items()},
            {name(rid): q.holding.endpoint for rid, q in alive.items() if q.stage is Stage.HELD},
        )
        expect(where + "tokens outside the tree", tree.private_tokens, self.pool.owned)
        expect(
            where + "content",
            {path: (node.locks, node.snapshot, node.snapshot_locks) for path, node in tree.nodes.items()},
            {p: (n.locks, n.snapshot, n.snapshot_locks) for p, n in self.pool.nodes.items()},
        )
        self.product.admission.check()

    def check_drained(self) -> None:
        super().check_drained()
        admission = self.product.admission
        admission.check_idle()
        if isinstance(admission, LeaseAdmission):
            expect(f"requests whose hashes rank {self.index} keeps", admission.hashed, 0)


class MemberRank(ShadowedRank):
    """A rank whose rounds are the product's `RoundsMember`; the operations of a round and its vote are one step.

    Args:
        board: the product's votes by round and rank, shared by all ranks.
    """

    def __init__(
        self,
        index: int,
        rules: Rules,
        config: Config,
        make: MakeProduct,
        board: dict[int, dict[int, messages.Vote]],
    ) -> None:
        super().__init__(index, rules, config, make)
        self.member = RoundsMember(rank=index, cache=self.product.admission)
        self._board = board

    def on_broadcast(self, broadcast: Broadcast) -> None:
        self.touched = True
        Rank.on_broadcast(self, broadcast)
        aborted = {rid for rid, _ in broadcast.aborts}
        attempts, _ = self._as_messages(broadcast, [])
        # The product's leader never announces what was aborted before the broadcast.
        records = tuple(install_record(r) for r in broadcast.records if r.rid not in aborted)
        for record in records:
            assert record.rid not in {known.rid for known in self.records.values()}
        self._board.setdefault(broadcast.number, {})[self.index] = self.member.on_broadcast(
            messages.Broadcast(
                round=broadcast.number,
                records=records,
                aborts=tuple((name(rid), epoch) for rid, epoch in broadcast.aborts),
                attempts=attempts,
                hints=tuple((name(rid), epoch) for rid, epoch in broadcast.hints),
                after_command=0,
            ),
            applied_command=self.applied_command,
        )

    def _hint(self, hint: Hint) -> None:
        Rank._hint(self, hint)

    def _attempt(self, attempt: Attempt) -> None:
        Rank._attempt(self, attempt)

    def vote(self) -> Vote:
        assert self.open is not None
        said = self._board[self.open.number][self.index]
        votes = {name(rid): in_words_of_the_product(a) for rid, a in self.answers.attempts.items()}
        expect(f"votes of rank {self.index} in round {self.open.number}", said.attempts, votes)
        hints = {rid: None if hint is None else hint.endpoint for rid, hint in said.hints.items()}
        expect(
            f"hints of rank {self.index} in round {self.open.number}",
            hints,
            {name(rid): hint for rid, hint in self.answers.hints.items()},
        )
        return super().vote()

    def on_gather(self, votes: list[Vote]) -> tuple[Outcome, ...]:
        self.touched = True
        opened = self.open
        assert opened is not None
        outcomes = Rank.on_gather(self, votes)
        said = self._board[opened.number]
        gather = messages.Gather(round=opened.number, votes=tuple(said[rank] for rank in range(len(votes))))
        expect(
            f"outcomes of round {opened.number} on rank {self.index}",
            self.member.on_gather(gather),
            outcomes_of_the_product(outcomes),
        )
        return outcomes

    def _take_outcome(self, outcome: Outcome, attempt: Attempt) -> None:
        Rank._take_outcome(self, outcome, attempt)

    def check_drained(self) -> None:
        super().check_drained()
        expect(f"requests in admission on rank {self.index}", self.member.known, 0)


class ShadowedSimulation(Simulation):
    """A history of the model, with the product beside it.

    Args:
        make: the product's way of admission.
        members: the product's rounds decide what is tried; else each operation of a round is a step of its own.
    """

    def __init__(
        self,
        config: Config,
        seed: int = 0,
        *,
        make: MakeProduct = lease,
        members: bool = False,
        headroom: int = 0,
    ) -> None:
        self._make = make
        self._members = members
        self._board: dict[int, dict[int, messages.Vote]] = {}
        rules = Rules(headroom=headroom, shorter_lease="leased_snapshot" if make is lease else "never")
        super().__init__(rules, replace(config, reserve=WHOLE_OUTPUT), seed)

    def make_rank(self, index: int) -> Rank:
        if self._members:
            return MemberRank(index, self.rules, self.config, self._make, self._board)
        return ShadowedRank(index, self.rules, self.config, self._make)

    def _receive_broadcast(self, rank: Rank) -> None:
        super()._receive_broadcast(rank)
        if self._members:
            while rank.operations:
                rank.operate()
            self._vote(rank)

    def lose_content(self, rank: Rank) -> None:
        assert isinstance(rank, ShadowedRank)
        tree = rank.product.tree
        leaves = [
            (node.used, path)
            for path, node in rank.pool.nodes.items()
            if not node.locks and not node.children and path not in tree.held
        ]
        if leaves:
            rank.lose(min(leaves)[1])


class ShadowedScript(ByHand, ShadowedSimulation):
    """A history of the model written by hand, with the product beside it; see `Script`."""

    def __init__(
        self, config: Config, *, cached: Iterable[tuple[int, Sequence[int], Sequence[int]]] = ()
    ) -> None:
        ShadowedSimulation.__init__(self, quiet(config))
        for rank, tokens, snapshots in cached:
            self.ranks[rank].warm(tokens, snapshots)
