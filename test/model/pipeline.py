"""A pipeline of ranks without SGLang, ZMQ or threads, in which every delivery and every step is one explicit event.

The state machines, the ledger, the leases and the hand-over are the product's; the trees, the links and the executors
are naive. `enabled()` lists what can happen next, in any order; `check()` looks at everything that must always hold.
"""

from __future__ import annotations

import random
from array import array
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from model.naive_tree import NaiveTree, Path

from sglang_wavepp.admission.decision import Outcome, Verdict
from sglang_wavepp.admission.fits import clip_output, refusal
from sglang_wavepp.admission.hint import HintProbe
from sglang_wavepp.admission.leader import RoundsLeader
from sglang_wavepp.admission.member import RoundsMember
from sglang_wavepp.admission.messages import Broadcast, Gather, InstallRecord, Vote
from sglang_wavepp.admission.pools import PoolLimits, smallest
from sglang_wavepp.cache.holdings import Holdings
from sglang_wavepp.cache.lease import LeaseAdmission
from sglang_wavepp.cache.two_walk import TwoWalkAdmission
from sglang_wavepp.rank.handover import Handover
from sglang_wavepp.rank.rounds import FollowingRounds, LeadingRounds
from sglang_wavepp.telemetry.trace import NullTimeline

SLOTS_PER_REQUEST = 4  # running state, tracking, two that rotate


@dataclass(frozen=True)
class World:
    """Sizes of a run; one entry per rank in `pools` and `slots`."""

    pools: tuple[int, ...] = (8, 10)
    slots: tuple[int, ...] | None = None
    rows: int = 3
    batch: int = 2
    chunk: int = 2
    grid: int = 2
    requests: int = 6
    longest: int = 5
    output: int = 3
    vocabulary: int = 2
    aborts: float = 0.02
    chaos: float = 0.02
    fences: float = 0.01
    warm: int = 0
    patience: int = 4000
    admission: str = "two-walk"
    headroom: int = 0
    ahead: int | None = None


class Quiet:
    """A wake-up that nobody waits for."""

    def signal(self) -> None: ...

    def clear(self) -> None: ...

    def fileno(self) -> int:
        raise AssertionError("the model has no poller")


@dataclass
class Running:
    """A request in one rank's executor: what it owns of that rank's tree and pool."""

    record: InstallRecord
    own: Path | None = None
    at: int = 0
    private: int = 0
    slots: int = 0
    tokens: list[int] = field(default_factory=list)


@dataclass
class Command:
    kind: str
    seq: int
    rid: str = ""
    start: int = 0
    length: int = 0


class WatchedMember(RoundsMember):
    """Keeps what this rank decided, so that all ranks can be compared."""

    def __init__(self, *, rank: int, cache: Holdings) -> None:
        super().__init__(rank=rank, cache=cache)
        self.decided: dict[int, dict[str, tuple[Verdict, int | None]]] = {}

    def on_gather(self, gather: Gather) -> tuple[Outcome, ...]:
        outcomes = super().on_gather(gather)
        self.decided[gather.round] = {o.rid: (o.verdict, o.endpoint) for o in outcomes}
        return outcomes


class NaiveRank:
    """One rank: its cache, its admission and a LOOP that applies commands."""

    def __init__(self, index: int, world: World) -> None:
        slots = None if world.slots is None else world.slots[index]
        self.index, self.world = index, world
        self.limits = PoolLimits(
            tokens=world.pools[index],
            page_size=1,
            rows=world.rows,
            context=1 << 20,
            recurrent_slots=slots,
            slots_per_request=0 if slots is None else SLOTS_PER_REQUEST,
        )
        self.tree = NaiveTree(world.pools[index], slots)
        self.admission = self._admission(world)
        self.member = WatchedMember(rank=index, cache=self.admission)
        self.handover = Handover(wave_wake=Quiet(), loop_wake=Quiet())
        self.running: dict[str, Running] = {}
        self.inbox: deque[Broadcast | Gather] = deque()
        self.commands: deque[Command] = deque()

    def _admission(self, world: World) -> TwoWalkAdmission | LeaseAdmission:
        if world.admission == "two-walk":
            return TwoWalkAdmission(tree=self.tree, limits=self.limits)
        probe = HintProbe(self.tree.index, block=1, step=1)
        lease = LeaseAdmission(
            tree=self.tree, limits=self.limits, probe=probe, block=1, headroom=world.headroom
        )
        self.tree.book = lease.escrows
        return lease

    def install(self, record: InstallRecord) -> None:
        assert record.rid not in self.running
        self.running[record.rid] = Running(record, tokens=list(record.token_ids))

    def apply(self, command: Command) -> None:
        if self.index:
            installed, withdrawn = self.handover.pop_changes()
            for record in installed:
                self.install(record)
            for rid in withdrawn:
                del self.running[rid]
        if command.kind == "span":
            self._span(self.running[command.rid], command.start, command.length)
        elif command.kind in ("end", "abort"):
            q = self.running.pop(command.rid)
            if command.kind == "end" and self.tree.slots is None:
                self._checkpoint(q, tuple(q.tokens[: q.at]))
            self._end(q)
        self.handover.applied_command(command.seq)
        self.admission.check()

    def _span(self, q: Running, start: int, length: int) -> None:
        tree, rid, text = self.tree, q.record.rid, tuple(q.tokens)
        if q.own is None:
            lease = self.admission.take(rid)
            assert lease.endpoint == start, (
                f"rank {self.index} holds {lease.endpoint} of {rid}, span at {start}"
            )
            q.own, q.at = tree.lock(text[:start]), start
            self.admission.hand_over(rid)
            if tree.slots is not None:
                for _ in range(2):
                    tree.take_slot()
                q.slots = 2
        assert q.at == start, f"rank {self.index} has {rid} at {q.at}, span at {start}"
        if start + length > len(text):  # decode: the token that was sampled last
            assert length == 1
            q.tokens.append((sum(text) * 7 + len(text)) % self.world.vocabulary)
            text = tuple(q.tokens)
        self.admission.draw(rid, start + length)
        if isinstance(self.admission, LeaseAdmission):
            assert tree.free() >= length, "the escrow left the allocator to evict"
        tree.allocate(length)
        self.admission.draw(rid, start)  # a lower position changes nothing
        q.at, q.private = start + length, q.private + length
        keeps = tree.slots is None or (q.at % self.world.grid == 0 and q.at <= len(q.record.token_ids))
        if q.at <= len(q.record.token_ids) and keeps:
            self._checkpoint(q, text[: q.at])

    def _checkpoint(self, q: Running, path: Path) -> None:
        tree = self.tree
        tree.publish(path, q.private)
        q.private = 0
        tree.pin(path)  # against the eviction of the path by its own slot
        if tree.slots is not None:
            if not tree.nodes[path].snapshot:
                tree.take_slot()
                tree.publish_snapshot(path)
            tree.nodes[path].snapshot_locks += 1
        assert q.own is not None
        tree.unlock(q.own)
        q.own = path

    def _end(self, q: Running) -> None:
        rid = q.record.rid
        if q.own is None:
            self.admission.end(rid)
            return
        self.tree.unlock(q.own)
        self.tree.private_tokens -= q.private
        self.tree.private_slots -= q.slots
        self.admission.end(rid)


class Pipeline:
    """Rank 0's executor and clients, and everything between the ranks."""

    def __init__(self, world: World, seed: int = 0) -> None:
        self.world, self.rng = world, random.Random(seed)
        self.ranks = [NaiveRank(index, world) for index in range(len(world.pools))]
        self.limits = smallest(rank.limits for rank in self.ranks)
        self.leader = RoundsLeader(ranks=len(self.ranks), max_batch=world.batch)
        self.votes: deque[Vote] = deque()
        lead = self.ranks[0]
        self.leading = LeadingRounds(
            leader=self.leader,
            member=lead.member,
            sender=self,
            handover=lead.handover,
            ranks=len(self.ranks),
            free_rows=lambda: lead.admission.free_rows,
            timeline=NullTimeline(),
            ahead=world.ahead,
        )
        self.following = [
            FollowingRounds(member=rank.member, sender=self, handover=rank.handover, timeline=NullTimeline())
            for rank in self.ranks[1:]
        ]
        self.now, self.seq, self.steps, self.last_end = 0.0, 0, 0, 0
        self.to_come = world.requests
        self.texts: list[tuple[int, ...]] = []
        self.records: dict[str, InstallRecord] = {}
        self.order: list[str] = []
        self.admitted: dict[str, int] = {}
        self.positions: dict[str, int] = {}
        self.aborting: set[str] = set()
        self.ended: Counter[str] = Counter()
        self.stat: Counter[str] = Counter()
        self.tried: dict[str, int] = {}
        self.beside: dict[str, set[str]] = {}
        self.decided: dict[int, dict[str, tuple[Verdict, int | None]]] = {}
        self.current: Broadcast | None = None
        for _ in range(world.warm):
            self.warm_up()

    def warm_up(self) -> None:
        """A text that every rank has seen to another depth, with snapshots at other places."""
        length = self.world.longest
        text = tuple(self.rng.randrange(self.world.vocabulary) for _ in range(length))
        self.texts.append(text)
        for rank in self.ranks:
            depth = self.rng.randint(length // 2, length)
            rank.tree.warm(
                text[:depth], self.rng.sample(range(1, length + 1), self.rng.randint(2, length // 2))
            )

    # --- links ----------------------------------------------------------------------------------------------

    def broadcast(self, message: Broadcast) -> None:
        self.current = message
        self._check_broadcast(message)
        for rank in self.ranks[1:]:
            rank.inbox.append(message)

    def gather(self, message: Gather) -> None:
        self._check_gather(message)
        for rank in self.ranks[1:]:
            rank.inbox.append(message)

    def vote(self, message: Vote) -> None:
        self.votes.append(message)

    # --- clients --------------------------------------------------------------------------------------------

    def arrive(self) -> None:
        self.to_come -= 1
        base = self.rng.choice(self.texts) if self.texts and self.rng.random() < 0.7 else ()
        length = self.rng.randint(1, self.world.longest)
        text = list(base[: length - self.rng.randint(0, 1)])
        text += [self.rng.randrange(self.world.vocabulary) for _ in range(length - len(text))]
        self.submit(text, self.rng.randint(1, self.world.output))

    def submit(self, text: list[int], output: int) -> str | None:
        output = clip_output(prompt=len(text), max_new_tokens=output, limits=self.limits)
        if refusal(prompt=len(text), max_new_tokens=output, limits=self.limits) is not None:
            self.stat["refused"] += 1
            return None
        rid = f"r{len(self.order)}"
        record = InstallRecord(
            rid=rid,
            epoch=0,
            token_ids=array("q", text),
            max_new_tokens=output,
            cache_limit=len(text) - 1,
            extra_key=None,
            cache_salt=None,
            request={},
        )
        self.texts.append(tuple(text))
        self.order.append(rid)
        self.records[rid] = record
        self.ranks[0].install(record)
        self.ranks[0].handover.announce(record)
        return rid

    def abort_one(self) -> None:
        live = [rid for rid in self.order if not self.ended[rid] and rid not in self.aborting]
        if live:
            self.abort(self.rng.choice(live))

    def abort(self, rid: str) -> None:
        if rid in self.admitted:
            self.emit("abort", rid)
            self._ended(rid, "aborted running")
        else:
            self.aborting.add(rid)
            self.ranks[0].handover.abort(rid)

    # --- rank 0's executor ----------------------------------------------------------------------------------

    def emit(self, kind: str, rid: str = "", start: int = 0, length: int = 0) -> None:
        self.seq += 1
        command = Command(kind, self.seq, rid, start, length)
        for rank in self.ranks[1:]:
            rank.commands.append(command)
        self.ranks[0].apply(command)
        if kind in ("end", "abort"):
            self.ranks[0].handover.capacity_changed()

    def fence(self) -> None:
        self.emit("fence")
        self.ranks[0].handover.fence(self.seq)

    def pop(self) -> None:
        handover = self.ranks[0].handover
        for admitted in handover.pop_admitted():
            assert admitted.rid not in self.admitted and not self.ended[admitted.rid]
            assert admitted.aborted == (admitted.rid in self.aborting), (
                "an abort was lost, or came from nowhere"
            )
            self.stat["admitted"] += 1
            self.admitted[admitted.rid] = admitted.endpoint
            self.positions[admitted.rid] = admitted.endpoint
            if admitted.aborted:
                self.emit("abort", admitted.rid)
                self._ended(admitted.rid, "aborted at admission")
        for rid in handover.pop_withdrawn():
            assert rid in self.aborting and rid not in self.admitted
            del self.ranks[0].running[rid]
            self._ended(rid, "withdrawn")

    def run_span(self) -> None:
        rid = self.rng.choice(sorted(self.positions))
        record, at = self.records[rid], self.positions[rid]
        prompt, end = len(record.token_ids), len(record.token_ids) + record.max_new_tokens - 1
        if at >= end or (at >= prompt and self.rng.random() < 0.2):  # the second: a stop token
            self.emit("end", rid)
            self._ended(rid, "finished")
            return
        length = 1 if at >= prompt else min(self.world.chunk, prompt - at)
        if self.world.slots is not None and at + length < prompt:
            length = max((at + length) // self.world.grid * self.world.grid, at + 1) - at
        self.positions[rid] = at + length
        self.emit("span", rid, at, length)
        if at < prompt:
            self.ranks[0].handover.settled(length)

    def _ended(self, rid: str, how: str) -> None:
        self.ended[rid] += 1
        self.aborting.discard(rid)
        at, prompt = self.positions.pop(rid, None), len(self.records[rid].token_ids)
        if at is not None and at < prompt:
            self.ranks[0].handover.settled(prompt - at)
        self.stat[how] += 1
        self.last_end = self.steps

    # --- events ---------------------------------------------------------------------------------------------

    def enabled(self) -> list[tuple[str, Callable[[], None]]]:
        """Everything that can happen next, by name."""
        lead = self.ranks[0]
        found: list[tuple[str, Callable[[], None]]] = []
        if self.to_come:
            found.append(("arrive", self.arrive))
        if lead.handover._asks:
            found.append(("asks", self.leading.take_asks))
        due = self.leading.next_due(self.now)
        if due is not None and due <= self.now:
            found.append(("round", lambda: self._open()))
        if self.votes:
            found.append(("vote", lambda: self.leading.on_vote(self.votes.popleft())))
        for rank, rounds in zip(self.ranks[1:], self.following, strict=True):
            if rank.inbox:
                found.append(
                    (f"message {rank.index}", lambda k=rank, r=rounds: r.on_message(k.inbox.popleft()))
                )
            if rank.commands:
                found.append((f"command {rank.index}", lambda k=rank: k.apply(k.commands.popleft())))
        if lead.handover._admitted or lead.handover._withdrawn:
            found.append(("pop", self.pop))
        if self.positions:
            found.append(("span", self.run_span))
        return found

    def _open(self) -> None:
        self.stat["rounds"] += 1
        assert self.leading.open(self.now), "a round was due, with nothing to say"

    def tick(self) -> None:
        """Nothing can happen before the next round is due: let that time pass."""
        due = self.leading.next_due(self.now)
        assert due is not None and due > self.now, f"nothing can ever happen again: {self.picture()}"
        self.now = due

    def step(self, name: str | None = None) -> None:
        """Do one thing: the named one if it is enabled, else any."""
        self.steps += 1
        found = self.enabled()
        if not found:
            self.tick()
        else:
            chosen = [call for label, call in found if label == name] or [call for _, call in found]
            self.rng.choice(chosen)()
        self.check()

    def done(self) -> bool:
        return not self.to_come and all(self.ended[rid] for rid in self.order) and not self.enabled()

    def drain(self) -> None:
        """Run to the end without more aborts, and look for leaks."""
        while not self.done():
            self.step()
            assert self.steps - self.last_end < self.world.patience, f"nobody ends any more: {self.picture()}"
        self.check_drained()

    def run(self) -> Counter[str]:
        """A whole random history, in which now and then one actor is kept from acting."""
        frozen, thaw = None, 0
        while not self.done():
            roll = self.rng.random()
            if roll < self.world.aborts:
                self.abort_one()
            elif roll < self.world.aborts + self.world.chaos:
                self.rng.choice(self.ranks).tree.lose_something(self.rng.choice)
            elif roll < self.world.aborts + self.world.chaos + self.world.fences:
                self.fence()
            if self.steps >= thaw:
                names = [name for name, _ in self.enabled()]
                frozen = self.rng.choice([None, *names])
                thaw = self.steps + self.rng.choice((5, 20, 60))
            free = [name for name, _ in self.enabled() if name != frozen]
            self.step(self.rng.choice(free) if free else None)
            assert self.steps - self.last_end < self.world.patience, f"nobody ends any more: {self.picture()}"
        self.check_drained()
        return self.stat

    # --- what must hold -------------------------------------------------------------------------------------

    def check(self) -> None:
        for rank in self.ranks:
            rank.admission.check()
            assert rank.tree.free() >= 0
            if rank.tree.slots is not None:
                assert rank.tree.snapshots() + rank.tree.private_slots <= rank.tree.slots

    def check_drained(self) -> None:
        assert all(self.ended[rid] == 1 for rid in self.order), self.ended
        for rank in self.ranks:
            rank.admission.check_idle()
            assert not isinstance(rank.admission, LeaseAdmission) or not rank.admission.hashed
            assert not any(node.locks or node.snapshot_locks for node in rank.tree.nodes.values())
            assert rank.tree.private_tokens == rank.tree.private_slots == 0
            assert rank.member.known == 0
            assert all(decided == self.decided[n] for n, decided in rank.member.decided.items())
            assert len(rank.member.decided) == len(self.decided)
        assert self.leader.idle()
        assert self.leader._lowering == 0

    def _check_broadcast(self, message: Broadcast) -> None:
        rids = [attempt.rid for attempt in message.attempts]
        assert len(rids) <= self.world.batch
        assert rids == sorted(rids, key=self.order.index), "attempts are not in arrival order"
        if rids:
            first = self.order.index(rids[0])
            ahead = [
                r for r, e in self.leader._queue.items() if self.order.index(r) < first and not e.aborting
            ]
            assert not ahead, f"round {message.round} attempts {rids[0]} before {ahead}"
        for attempt in message.attempts:
            lowered = self.tried.get(attempt.rid)
            assert lowered is None or attempt.candidate <= lowered, f"{attempt.rid} rose within an attempt"

    def _check_gather(self, message: Gather) -> None:
        assert self.current is not None and self.current.round == message.round
        for vote in message.votes:
            if vote.applied_command < self.current.after_command:
                assert all(answer.kind == "pending" for answer in vote.attempts.values()), (
                    "held behind a fence"
                )
        outcomes = oracle(self.current, message)
        self.decided[message.round] = outcomes
        not_admitted: list[str] = []
        for attempt in self.current.attempts:
            verdict, endpoint = outcomes[attempt.rid]
            self.stat[verdict.value] += 1
            if verdict is Verdict.ADMITTED:
                assert not any(outcomes[r][0] is Verdict.WAIT for r in not_admitted), (
                    "a waiting request was passed"
                )
                for rid in not_admitted:
                    self.stat["passed"] += 1
                    beside = self.beside.setdefault(rid, {other.rid for other in self.current.attempts})
                    assert attempt.rid in beside, (
                        f"{attempt.rid} was named behind {rid}, which {beside} had passed"
                    )
                self.tried.pop(attempt.rid, None)
                continue
            not_admitted.append(attempt.rid)
            if verdict is Verdict.WAIT:
                self.tried.pop(attempt.rid, None)
            elif verdict is Verdict.LOWER:
                assert endpoint is not None and endpoint < attempt.candidate
                self.tried[attempt.rid] = endpoint
            else:
                self.tried[attempt.rid] = attempt.candidate

    def picture(self) -> str:
        ranks = [
            f"rank {k.index}: free {k.tree.free()}, available {k.tree.available()}, held {k.admission.held}"
            for k in self.ranks
        ]
        return "; ".join(
            [*ranks, f"in admission {list(self.leader._queue)}", f"steps {self.steps}", str(self.stat)]
        )


def oracle(broadcast: Broadcast, gather: Gather) -> dict[str, tuple[Verdict, int | None]]:
    """The outcome table once more, in other words than the product's."""
    result: dict[str, tuple[Verdict, int | None]] = {}
    for attempt in broadcast.attempts:
        column = [vote.attempts[attempt.rid] for vote in gather.votes]
        held = [answer.endpoint for answer in column if answer.kind == "held"]
        if len(held) < len(column):
            worst = Verdict.PENDING if any(a.kind == "pending" for a in column) else Verdict.WAIT
            result[attempt.rid] = (worst, None)
        elif set(held) == {attempt.candidate}:
            result[attempt.rid] = (Verdict.ADMITTED, attempt.candidate)
        else:
            result[attempt.rid] = (Verdict.LOWER, min(held))
    return result
