"""All ranks, and everything between them, with every delivery and every section of work as one explicit event."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from model.pipeline import oracle
from model.real.head import Head
from model.real.invariants import check_drained, check_pools, check_promises
from model.real.pools import enter_world
from model.real.rank import Rank
from model.real.world import World
from sglang.srt.mem_cache.base_prefix_cache import EvictParams

from sglang_wavepp.admission.decision import Verdict
from sglang_wavepp.admission.leader import RoundsLeader
from sglang_wavepp.admission.messages import Broadcast, Gather, Vote
from sglang_wavepp.admission.pools import smallest
from sglang_wavepp.plane.messages import AbortCommand, Command, DecodeWave, PrefillWave
from sglang_wavepp.planning.publisher import Publisher
from sglang_wavepp.rank.rounds import FollowingRounds, LeadingRounds
from sglang_wavepp.telemetry.trace import NullTimeline

EXPENSIVE = 100
"""Steps between two looks at a whole rank."""

Event = tuple[str, int, Callable[[], None]]
"""Name, rank that may have changed, and what to do."""


@dataclass
class Flag:
    """A wake-up without a file."""

    up: bool = False

    def signal(self) -> None:
        self.up = True

    def clear(self) -> None:
        self.up = False

    def fileno(self) -> int:
        raise AssertionError("nobody polls here")


@dataclass
class Wave:
    """An admission thread: what it does between two sleeps, in sections, and what ends its sleep."""

    rank: Rank
    rounds: LeadingRounds | FollowingRounds
    wake: Flag
    clock: Callable[[], float]
    inbox: deque[Broadcast | Gather | Vote] = field(default_factory=deque)
    until: float | None = 0.0
    work: Iterator[None] | None = None

    def awake(self) -> bool:
        """Whether it has anything to do, or would find out that it hasn't."""
        late = self.until is not None and self.until <= self.clock()
        return self.work is not None or self.wake.up or bool(self.inbox) or late

    def step(self) -> None:
        """The next section."""
        if self.work is None:
            self.work = self._turn()
        if next(self.work, self) is self:
            self.work = None

    def _turn(self) -> Iterator[None]:
        """As `AdmissionThread` does it."""
        self.wake.clear()
        self.rounds.take_asks()
        yield
        while self.inbox:
            message = self.inbox.popleft()
            if isinstance(self.rounds, LeadingRounds):
                assert isinstance(message, Vote)
                self.rounds.on_vote(message)
            else:
                assert not isinstance(message, Vote)
                self.rounds.on_message(message)
            yield
        self.until = None
        if isinstance(self.rounds, LeadingRounds):
            now = self.clock()
            due = self.rounds.next_due(now)
            if due is not None and due <= now:
                self.rounds.open(now)
                due = now
            self.until = due


@dataclass
class Loop:
    """A follower's LOOP."""

    rank: Rank
    wake: Flag
    before: Callable[[], int]
    """The last wave that the rank before has launched."""
    mail: deque[Command] = field(default_factory=deque)
    todo: deque[Command] = field(default_factory=deque)
    work: Iterator[None] | None = None

    def awake(self) -> bool:
        return self.work is not None or self.wake.up or bool(self.mail) or self._ready()

    def step(self) -> None:
        """The next section."""
        if self.work is None:
            self.wake.clear()
            self.rank.take_changes()
            self.todo.extend(self.mail)
            self.mail.clear()
            if not self._ready():
                return
            self.work = self.rank.apply(self.todo.popleft())
        if next(self.work, self) is self:
            self.work = None

    def _ready(self) -> bool:
        if not self.todo:
            return False
        match self.todo[0]:
            case PrefillWave(wave=wave, spans=spans):
                return wave <= self.before() and all(span.rid in self.rank.jobs for span in spans)
            case DecodeWave(wave=wave):
                return wave <= self.before()
            case AbortCommand(rid=rid):
                return rid in self.rank.jobs
            case _:
                return True


def alone(rank: Rank) -> None:
    """Called where something is sent: who waits for another rank while it holds a tree can be waited for."""
    assert not rank.cache.mutex._is_owned(), f"rank {rank.index} sends while it holds its tree"  # type: ignore[attr-defined]


class Pipeline:
    """A world, its clients and its links."""

    def __init__(self, world: World, seed: int = 0) -> None:
        self.world, self.rng = world, random.Random(seed)
        self.now, self.steps, self.ends, self.last_end, self.flushed = 0.0, 0, 0, 0, 0
        self.frozen: str | None = None
        self.thaw = 0
        enter_world(world)
        wakes = [(Flag(), Flag()) for _ in range(world.ranks)]
        publisher = Publisher(world.publish_rule, block=world.block)
        self.ranks = [
            Rank(
                index,
                world,
                wave_wake=wave,
                loop_wake=loop,
                hashed=None if index else publisher.announce,
            )
            for index, (wave, loop) in enumerate(wakes)
        ]
        lead = self.ranks[0]
        limits = smallest(rank.limits for rank in self.ranks)
        self.leader = RoundsLeader(
            ranks=world.ranks, max_batch=world.batch, chain=lead.admission.chain, block=world.block
        )
        self.leading = LeadingRounds(
            leader=self.leader,
            member=lead.member,
            sender=self,
            handover=lead.handover,
            ranks=world.ranks,
            free_rows=lambda: lead.admission.free_rows,
            timeline=NullTimeline(),
            ahead=world.ahead,
            patience=lead.gain_to_wait_for,
        )
        self.to_followers: list[deque[Broadcast | Gather]] = [deque() for _ in self.ranks]
        self.to_leader: list[deque[Vote]] = [deque() for _ in self.ranks]
        self.commands: list[deque[Command]] = [deque() for _ in self.ranks]
        self.waves = [self._wave(rank, *wakes[rank.index]) for rank in self.ranks]
        self.loops = [
            Loop(rank, wakes[rank.index][1], lambda before=self.ranks[rank.index - 1]: before.launched)
            for rank in self.ranks[1:]
        ]
        self.loop_wake = wakes[0][1]
        self.head = Head(lead, world=world, limits=limits, send=self._send, rng=self.rng, publisher=publisher)
        self.work: Iterator[None] | None = None
        self.results: deque[int] = deque()
        self.to_come = world.requests
        self.tried: dict[str, int] = {}
        self.short: dict[str, dict[int, int]] = {}
        self.releases: list[int] = []
        self.current: Broadcast | None = None
        self.decided: dict[int, dict[str, tuple[Verdict, int | None]]] = {}
        self.verdicts: Counter[str] = Counter()
        self.eagerness: dict[str, float] = {}
        if world.warm:
            self._warm()

    def _wave(self, rank: Rank, wake: Flag, _: Flag) -> Wave:
        rounds: LeadingRounds | FollowingRounds = self.leading
        if rank.index:
            sender = _Voter(rank, self.to_leader[rank.index])
            rounds = FollowingRounds(
                member=rank.member, sender=sender, handover=rank.handover, timeline=NullTimeline()
            )
        return Wave(rank, rounds, wake, lambda: self.now)

    def _warm(self) -> None:
        step = self.world.step
        for rank in self.ranks:
            for root in self.head.roots:
                places = range(step, len(root) + 1, step)
                if places and self.rng.random() < 0.8:
                    rank.warm(root, self.rng.sample(places, self.rng.randint(1, min(len(places), 6))))

    # --- links ----------------------------------------------------------------------------------------------

    def broadcast(self, message: Broadcast) -> None:
        alone(self.ranks[0])
        self.current = message
        self.verdicts["held back"] += self.leader.holds_back
        order = self.head.order
        rids = [attempt.rid for attempt in message.attempts]
        assert rids == sorted(rids, key=order.index), "attempts are not in arrival order"
        for attempt in message.attempts:
            short = self.short.pop(attempt.rid, {})
            assert all(self.releases[rank] > counter for rank, counter in short.items()), (
                f"{attempt.rid} is tried again, though nothing came back"
            )
            lowered = self.tried.get(attempt.rid)
            assert lowered is None or attempt.candidate <= lowered, f"{attempt.rid} rose within an attempt"
        self._to_followers(message)

    def gather(self, message: Gather) -> None:
        alone(self.ranks[0])
        assert self.current is not None and self.current.round == message.round
        for vote in message.votes:
            if vote.applied_command < self.current.after_command:
                assert all(answer.kind == "pending" for answer in vote.attempts.values()), (
                    "held behind a fence"
                )
        outcomes = oracle(self.current, message)
        self.decided[message.round] = outcomes
        self.releases = [vote.releases for vote in message.votes]
        waiting: list[str] = []
        for attempt in self.current.attempts:
            verdict, endpoint = outcomes[attempt.rid]
            self.verdicts[verdict.value] += 1
            assert not waiting or verdict is not Verdict.ADMITTED, f"{attempt.rid} passed {waiting}"
            if verdict is Verdict.WAIT:
                if not waiting:
                    answers = [(vote, vote.attempts[attempt.rid]) for vote in message.votes]
                    self.short[attempt.rid] = {v.rank: v.releases for v, a in answers if a.kind == "nocap"}
                waiting.append(attempt.rid)
            if verdict is Verdict.PENDING:
                self.tried[attempt.rid] = attempt.candidate
            elif verdict is Verdict.LOWER:
                assert endpoint is not None and endpoint < attempt.candidate
                self.tried[attempt.rid] = endpoint
            else:
                self.tried.pop(attempt.rid, None)
        self._to_followers(message)

    def _to_followers(self, message: Broadcast | Gather) -> None:
        for wire in self.to_followers[1:]:
            wire.append(message)

    def _send(self, command: Command) -> None:
        alone(self.ranks[0])
        for wire in self.commands[1:]:
            wire.append(command)

    # --- events ---------------------------------------------------------------------------------------------

    def enabled(self) -> list[Event]:
        """Everything that can happen next."""
        found = [
            (f"wave {wave.rank.index}", wave.rank.index, wave.step) for wave in self.waves if wave.awake()
        ]
        for rank, loop in enumerate(self.loops, 1):
            if loop.awake():
                found.append((f"loop {rank}", rank, loop.step))
            if self.to_followers[rank]:
                found.append((f"message {rank}", rank, lambda k=rank: self._deliver(k)))
            if self.to_leader[rank]:
                found.append((f"vote {rank}", 0, lambda k=rank: self._deliver_vote(k)))
            if self.commands[rank]:
                found.append((f"command {rank}", rank, lambda k=rank: self._deliver_command(k)))
        return found + self._head_events()

    def _head_events(self) -> list[Event]:
        head = self.head
        if self.work is not None:
            return [("work 0", 0, self._go_on)]
        found: list[Event] = []
        if self.to_come:
            found.append(("arrive", 0, self.arrive))
        if self.loop_wake.up:
            found.append(("admissions", 0, lambda: self.begin(self._take_admissions())))
        wave = self._sampled()
        if wave is not None:
            found.append(("result", 0, lambda: self.begin(head.result(wave))))
        if head.has_slot():
            if head.unplanned():
                found.append(("prefill", 0, lambda: self.begin(head.launch_prefill())))
            if head.decoding():
                found.append(("decode", 0, lambda: self.begin(head.launch_decode())))
        return found

    def begin(self, work: Iterator[None]) -> None:
        """Rank 0's LOOP does something, of which this step is the first section."""
        assert self.work is None
        self.work = work
        self._go_on()

    def _go_on(self) -> None:
        assert self.work is not None
        if next(self.work, self) is self:
            self.work = None

    def finish_work(self) -> None:
        """Let rank 0's LOOP come to the end of what it is doing."""
        while self.work is not None:
            self._go_on()

    def _take_admissions(self) -> Iterator[None]:
        self.loop_wake.clear()
        yield
        yield from self.head.take_admissions()

    def _sampled(self) -> int | None:
        """The oldest wave that has gone through all ranks."""
        wave = next(iter(self.ranks[0].flights), None)
        return wave if wave is not None and wave <= self.ranks[-1].launched else None

    def arrive(self) -> None:
        self.to_come -= 1
        self.head.arrive()

    def _deliver(self, rank: int) -> None:
        self.waves[rank].inbox.append(self.to_followers[rank].popleft())

    def _deliver_vote(self, rank: int) -> None:
        self.waves[0].inbox.append(self.to_leader[rank].popleft())

    def _deliver_command(self, rank: int) -> None:
        self.loops[rank - 1].mail.append(self.commands[rank].popleft())

    def tick(self) -> None:
        """Let time pass to the next moment that an admission thread sleeps to."""
        assert self._sleeps(), f"nothing can ever happen again: {self.picture()}"
        self.now = min(wave.until for wave in self.waves if wave.until is not None and wave.until > self.now)

    # --- running --------------------------------------------------------------------------------------------

    def step(self, *names: str) -> bool:
        """Do one of the named things, any without names. False when none of them can be done."""
        found = self.enabled()
        if names:
            found = [event for event in found if event[0] in names]
            if not found:
                return False
        if found:
            self._do(self.rng.choice(found))
        else:
            self.steps += 1
            self.tick()
        return True

    def _do(self, event: Event) -> None:
        self.steps += 1
        _, rank, call = event
        call()
        self.check(rank)

    def settle(self, *but: str, most: int = 4000) -> None:
        """Go on until only these things can be done, or nothing; time does not pass."""
        for _ in range(most):
            names = [name for name, _, _ in self.enabled() if name not in but]
            if not names:
                return
            self.step(self.rng.choice(names))
        raise AssertionError(f"still {names}: {self.picture()}")

    def until(self, done: Callable[[], bool], *but: str, most: int = 4000) -> None:
        """Do anything but these until it is done; time passes."""
        for _ in range(most):
            if done():
                return
            names = [name for name, _, _ in self.enabled() if name not in but]
            if names:
                self.step(self.rng.choice(names))
            else:
                self.tick()
        raise AssertionError(f"never: {self.picture()}")

    def done(self) -> bool:
        return not self.to_come and not self.head.bookings and not self.enabled()

    def run(self) -> Counter[str]:
        """A whole random history, in which now and then one actor is kept from acting."""
        rng, world = self.rng, self.world
        while not self.done():
            self._chance()
            found = self.enabled()
            if self.steps >= self.thaw:
                self._freeze([None, *(name for name, _, _ in found)])
            free = [event for event in found if event[0] != self.frozen]
            if free and rng.random() < 0.995:
                self._do(self._choose(free))
            elif not found or self._sleeps():
                self.steps += 1
                self.tick()
            else:
                self._do(self._choose(found))
            ends = sum(self.head.ended.values())
            if ends != self.ends:
                self.ends, self.last_end = ends, self.steps
            assert self.steps - self.last_end < world.patience, f"nobody ends any more: {self.picture()}"
        self.check_drained()
        return self.statistics()

    def _freeze(self, names: Sequence[str | None]) -> None:
        self.frozen = self.rng.choice(names)
        self.thaw = self.steps + self.rng.choice((5, 20, 60, 200))

    def _choose(self, found: list[Event]) -> Event:
        """Each history has actors that are in a hurry and others that take their time."""
        for name, _, _ in found:
            if name not in self.eagerness:
                self.eagerness[name] = self.rng.choice((0.03, 0.2, 1, 1, 4))
                self.eagerness[name] *= {"prefill": self.world.haste, "arrive": 0.1}.get(name, 1)
        return self.rng.choices(found, [self.eagerness[name] for name, _, _ in found])[0]

    def _sleeps(self) -> bool:
        return any(wave.until is not None and wave.until > self.now for wave in self.waves)

    def _chance(self) -> None:
        roll, world = self.rng.random(), self.world
        if roll < world.chaos:
            self.evict(self.rng.choice(self.ranks))
        roll -= world.chaos
        if self.work is not None:
            return
        if 0 <= roll < world.aborts:
            self.begin(self.head.abort_any())
        elif 0 <= roll - world.aborts < world.flushes and self.may_flush():
            self.flushed = self.ends
            self._freeze(["command 1", f"loop {self.world.ranks - 1}", None])
            self.begin(self._flush())

    def may_flush(self) -> bool:
        """Whether a flush is worth it: somebody has left something, and somebody else will come."""
        return self.head.is_idle() and self.ends > self.flushed and self.to_come > 0

    def _flush(self) -> Iterator[None]:
        """Requests that arrive right behind it meet ranks that have not applied it yet."""
        yield from self.head.flush()
        while self.to_come and self.rng.random() < 0.6:
            self.arrive()

    def evict(self, rank: Rank) -> None:
        """Content goes that nobody needs to go: mostly a little of it."""
        share = self.rng.choice((1, 4, 16))
        tokens = -(-rank.cache.full_evictable_size() // share) * self.rng.randint(0, 1)
        slots = 0 if self.world.slots is None else -(-rank.cache.mamba_evictable_size() // share)
        if tokens or slots:
            rank.cache.evict(EvictParams(num_tokens=tokens, mamba_num=slots))
        self.check(rank.index)

    # --- what must hold -------------------------------------------------------------------------------------

    def check(self, index: int) -> None:
        """After a step of this rank."""
        check_promises(self.ranks[index])
        if self.steps % EXPENSIVE == 0:
            for rank in self.ranks:
                check_promises(rank)
            check_pools(self.ranks[self.steps // EXPENSIVE % self.world.ranks])

    def check_drained(self) -> None:
        """At the end of a history."""
        assert all(self.head.ended[rid] == 1 for rid in self.head.order), self.head.ended
        for rank in self.ranks:
            check_drained(rank)
            assert all(decided == self.decided[n] for n, decided in rank.member.decided.items())
            assert len(rank.member.decided) == len(self.decided)
        assert self.leader.idle()
        assert not len(self.head.publisher)

    def statistics(self) -> Counter[str]:
        """What this history met."""
        found = self.head.stat + self.verdicts
        found["steps"] += self.steps
        for rank in self.ranks:
            admission = rank.admission
            found["trims"] += admission.figures.trims
            found["stale"] += admission.hint_figures.stale_tokens
            for shortage, count in admission.figures.short.items():
                found[f"short of {shortage.value}"] += count
            for name in ("substituted", "evicted", "spared"):
                found[name] += getattr(admission.escrows.figures, name)
        return found

    def picture(self) -> str:
        """Where everything stands."""
        ranks = [
            f"rank {k.index}: free {k.tree.free()}, available {k.tree.available()}, held {k.admission.held},"
            f" jobs {sorted(k.jobs)}, applied {k.handover.last_applied_command}"
            for k in self.ranks
        ]
        queue = list(self.leader._queue)
        books = {
            rid: (b.phase.name, b.next, b.in_flight, b.aborting) for rid, b in self.head.bookings.items()
        }
        names = [name for name, _, _ in self.enabled()]
        return "; ".join([*ranks, f"admission {queue}", f"head {books}", f"step {self.steps}", f"{names}"])


@dataclass
class _Voter:
    rank: Rank
    wire: deque[Vote]

    def vote(self, message: Vote) -> None:
        alone(self.rank)
        self.wire.append(message)
