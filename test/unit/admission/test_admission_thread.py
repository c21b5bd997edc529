"""The drivers over links in memory: a thread per rank, and the same rounds run by the LOOP."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from unit.admission.in_memory import Hub
from unit.admission.wording import record

from sglang_wavepp.admission.hint import Hint
from sglang_wavepp.admission.hold import Hold, Shortage
from sglang_wavepp.admission.leader import Admitted, RoundsLeader
from sglang_wavepp.admission.member import RoundsMember
from sglang_wavepp.admission.messages import Broadcast, InstallRecord
from sglang_wavepp.plane.wake import Wake
from sglang_wavepp.rank.admission_thread import AdmissionThread, InlineAdmission, RoundsTimeout
from sglang_wavepp.rank.handover import Handover
from sglang_wavepp.rank.rounds import FollowingRounds, LeadingRounds
from sglang_wavepp.telemetry.trace import NullTimeline

pytestmark = pytest.mark.unit


class Room:
    """A cache with a number of places, each as good as any other."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.held: set[str] = set()
        self.releases = 0
        self.fail: Exception | None = None

    def hint(self, record: InstallRecord) -> Hint:
        if self.fail is not None:
            raise self.fail
        return Hint(record.cache_limit)

    def hold(self, record: InstallRecord, limit: int) -> Hold | Shortage:
        if len(self.held) >= self.places:
            return Shortage.ROWS
        self.held.add(record.rid)
        return Hold(limit)

    def holds(self, rid: str) -> bool:
        return rid in self.held

    def trim(self, record: InstallRecord, limit: int) -> Hold | Shortage:
        return Hold(limit)

    def admitted(self, rid: str) -> None: ...

    def forget(self, rid: str) -> None: ...

    def release(self, rid: str) -> None:
        if rid in self.held:
            self.held.remove(rid)
            self.releases += 1


class Ranks:
    """`count` ranks; rank 0 leads."""

    def __init__(self, count: int, places: int = 9) -> None:
        self.rooms = [Room(places) for _ in range(count)]
        self.handovers = [Handover(wave_wake=Wake(), loop_wake=Wake()) for _ in range(count)]
        self.hub = Hub(count - 1)
        self.links = [self.hub, *self.hub.members]
        self.leader = RoundsLeader(ranks=count, max_batch=4, slow_interval=0.005)
        self.failures: list[tuple[int, BaseException]] = []
        members = [
            RoundsMember(rank=n, cache=room, takes_long=lambda record, n=n: n > 0 and record.rid == "slow")
            for n, room in enumerate(self.rooms)
        ]
        leading = LeadingRounds(
            leader=self.leader,
            member=members[0],
            sender=self.hub,
            handover=self.handovers[0],
            ranks=count,
            free_rows=lambda: 9,
            timeline=NullTimeline(),
        )
        following = [
            FollowingRounds(
                member=members[n],
                sender=self.hub.members[n - 1],
                handover=self.handovers[n],
                timeline=NullTimeline(),
            )
            for n in range(1, count)
        ]
        self.rounds = [leading, *following]
        self.threads = [
            AdmissionThread(
                rounds=self.rounds[n],
                link=self.links[n],
                handover=self.handovers[n],
                on_failure=lambda failure, n=n: self.failures.append((n, failure)),
            )
            for n in range(count)
        ]

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline, "it never came"
            assert not self.failures, self.failures
            time.sleep(0.001)


@pytest.fixture
def running() -> Iterator[Callable[..., Ranks]]:
    started: list[Ranks] = []

    def start(count: int = 3, places: int = 9) -> Ranks:
        ranks = Ranks(count, places)
        started.append(ranks)
        for thread in ranks.threads:
            thread.start()
        return ranks

    yield start
    for ranks in started:
        for thread in ranks.threads:
            thread.stop(timeout=10)
            assert not thread.is_alive(), "the thread does not stop"


def test_threads_admit_in_arrival_order(running: Callable[..., Ranks]) -> None:
    ranks = running()
    names = [f"r{n}" for n in range(20)]
    admitted: list[Admitted] = []
    for name in names:
        ranks.handovers[0].announce(record(name))

    def serve() -> bool:
        for one in ranks.handovers[0].pop_admitted():
            admitted.append(one)
            for room in ranks.rooms:
                room.release(one.rid)
        return len(admitted) == len(names)

    ranks.until(serve)
    assert [one.rid for one in admitted] == names
    assert all(one.endpoint == 9 for one in admitted)
    ranks.until(lambda: all(len(h._installed) == len(names) for h in ranks.handovers[1:]))
    assert [r.rid for r in ranks.handovers[1].pop_changes()[0]] == names
    assert ranks.handovers[0].pop_changes() == ([], []), "rank 0's LOOP made its requests itself"
    assert [thread.name for thread in ranks.threads] == ["WAVE"] * 3


def test_others_pass_a_request_until_every_follower_has_built_it(running: Callable[..., Ranks]) -> None:
    ranks = running(3)
    for name in ("slow", "b"):
        ranks.handovers[0].announce(record(name))
    ranks.until(lambda: [x.rid for x in ranks.handovers[0]._admitted] == ["b"])
    ranks.handovers[2].built("slow")
    time.sleep(0.05)
    assert [x.rid for x in ranks.handovers[0]._admitted] == ["b"], "rank 1 has not built it"
    ranks.handovers[1].built("slow")
    ranks.until(lambda: [x.rid for x in ranks.handovers[0]._admitted] == ["b", "slow"])


def test_who_waits_is_admitted_when_a_follower_gets_room(running: Callable[..., Ranks]) -> None:
    ranks = running(2)
    ranks.rooms[1].places = 1
    for name in ("a", "b"):
        ranks.handovers[0].announce(record(name))
    ranks.until(lambda: [x.rid for x in ranks.handovers[0]._admitted] == ["a"])
    time.sleep(0.02)
    assert [x.rid for x in ranks.handovers[0]._admitted] == ["a"]
    ranks.rooms[1].release("a")
    ranks.until(lambda: [x.rid for x in ranks.handovers[0]._admitted] == ["a", "b"])


def test_aborts_come_back_on_every_rank(running: Callable[..., Ranks]) -> None:
    ranks = running(2, places=0)
    ranks.handovers[0].announce(record("a"))
    ranks.until(lambda: bool(ranks.handovers[1]._installed))
    ranks.handovers[0].abort("a")
    ranks.until(lambda: all(h._withdrawn == ["a"] for h in ranks.handovers))
    ranks.until(ranks.leader.idle)


def test_idle_threads_sleep(running: Callable[..., Ranks]) -> None:
    ranks = running(2)
    ranks.handovers[0].announce(record("a"))
    ranks.until(lambda: bool(ranks.handovers[0]._admitted))
    time.sleep(0.02)
    rounds, before = len(ranks.hub.sent), time.process_time()
    time.sleep(0.2)
    assert len(ranks.hub.sent) == rounds
    assert time.process_time() - before < 0.05, "a thread spins"


def test_waiting_threads_hardly_work(running: Callable[..., Ranks]) -> None:
    ranks = running(2, places=0)
    ranks.handovers[0].announce(record("a"))
    ranks.until(lambda: ranks.leader.waiting() == 1)
    rounds, since = ranks.leader.round, time.monotonic()
    ranks.until(lambda: ranks.leader.round >= rounds + 10)
    assert time.monotonic() - since > 9 * 0.005, "rounds come faster than every 5 ms"


@pytest.mark.parametrize("where", [0, 1])
def test_a_failure_reaches_whoever_ends_the_server(where: int) -> None:
    ranks = Ranks(2)
    ranks.rooms[where].fail = OSError("the tree is broken")
    for thread in ranks.threads:
        thread.start()
    ranks.handovers[0].announce(record("a"))
    deadline = time.monotonic() + 20
    while not ranks.failures and time.monotonic() < deadline:
        time.sleep(0.001)
    [(rank, failure)] = ranks.failures
    assert rank == where
    assert "the tree is broken" in str(failure)
    assert failure.__traceback__ is not None
    for thread in ranks.threads:
        thread.stop(timeout=10)


def test_a_rank_that_never_votes_is_named_in_time() -> None:
    ranks = Ranks(3)
    ranks.threads[0] = AdmissionThread(
        rounds=ranks.rounds[0],
        link=ranks.hub,
        handover=ranks.handovers[0],
        on_failure=lambda failure: ranks.failures.append((0, failure)),
        timeout=0.05,
        names={2: "pp2 tp0 (pid 7)"},
    )
    for thread in ranks.threads[:2]:
        thread.start()
    ranks.handovers[0].announce(record("a"))
    deadline = time.monotonic() + 20
    while not ranks.failures and time.monotonic() < deadline:
        time.sleep(0.001)
    [(_, failure)] = ranks.failures
    assert isinstance(failure, RoundsTimeout)
    assert 2 in failure.ranks
    assert "pp2 tp0 (pid 7)" in str(failure)
    for thread in ranks.threads[:2]:
        thread.stop(timeout=10)


def test_a_vote_out_of_turn_is_a_failure() -> None:
    ranks = Ranks(2)
    leading = ranks.rounds[0]
    assert isinstance(leading, LeadingRounds)
    ranks.handovers[0].announce(record("a"))
    leading.take_asks()
    leading.open(0.0)
    ranks.rounds[1].on_message(ranks.hub.members[0].receive())  # type: ignore[union-attr,arg-type]
    vote = ranks.hub.receive()
    assert vote is not None
    leading.on_vote(vote)
    with pytest.raises(RuntimeError, match="rank 1 votes in round 1"):
        leading.on_vote(vote)


def test_a_follower_tells_its_loop_before_it_votes() -> None:
    ranks = Ranks(2)
    seen: list[int] = []
    follower = ranks.rounds[1]
    assert isinstance(follower, FollowingRounds)
    follower._sender = type(
        "Spy", (), {"vote": lambda _, __: seen.append(len(ranks.handovers[1]._installed))}
    )()
    follower.on_message(
        Broadcast(round=1, records=(record("a"),), aborts=(), attempts=(), hints=(), after_command=0)
    )
    assert seen == [1], "rank 0 may name the request in a command as soon as all votes are in"


def test_one_rank_alone_needs_no_link(running: Callable[..., Ranks]) -> None:
    ranks = running(1)
    ranks.handovers[0].announce(record("a"))
    ranks.until(lambda: [x.rid for x in ranks.handovers[0]._admitted] == ["a"])


def test_inline_runs_whole_rounds_between_two_steps_of_the_loop() -> None:
    ranks = Ranks(3)
    inline = [
        InlineAdmission(rounds=r, link=k, timeout=20) for r, k in zip(ranks.rounds, ranks.links, strict=True)
    ]
    stopping = False

    def follow(index: int) -> None:
        while not stopping:
            inline[index].serve()
            time.sleep(0.001)

    followers = [threading.Thread(target=follow, args=(n,), daemon=True) for n in (1, 2)]
    for thread in followers:
        thread.start()
    lead = inline[0]
    assert lead.next_due(time.monotonic()) is None
    assert not lead.run_round(), "nothing was asked"
    for name in ("a", "b"):
        ranks.handovers[0].announce(record(name))
    assert lead.next_due(time.monotonic()) is not None
    assert lead.run_round()
    assert not ranks.leader.awaiting_votes
    assert lead.run_round()
    assert [x.rid for x in ranks.handovers[0].pop_admitted()] == ["a", "b"]
    assert not lead.run_round()
    stopping = True
    for thread in followers:
        thread.join(10)
    assert [r.rid for r in ranks.handovers[2].pop_changes()[0]] == ["a", "b"]
    with pytest.raises(RuntimeError, match="only rank 0"):
        inline[1].run_round()


def test_inline_names_the_ranks_that_do_not_vote() -> None:
    ranks = Ranks(3)
    ranks.handovers[0].announce(record("a"))
    inline = InlineAdmission(rounds=ranks.rounds[0], link=ranks.hub, timeout=0.05, names={2: "pp2 tp0"})
    with pytest.raises(RoundsTimeout, match=r"rank 1, pp2 tp0 within 0\.05 s") as raised:
        inline.run_round()
    assert raised.value.ranks == (1, 2)
