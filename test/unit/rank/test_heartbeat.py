from __future__ import annotations

import ctypes
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from sglang_wavepp.plane.gate import Gate, new_secret
from sglang_wavepp.plane.messages import RankId
from sglang_wavepp.plane.star import Hub, Spoke, member_identity
from sglang_wavepp.rank.heartbeat import Heartbeat, Silence, beat_interval

SECRET = new_secret()
FORK: Any = multiprocessing.get_context("fork")

pytestmark = pytest.mark.slow


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


# --- silence ------------------------------------------------------------------------------------------------


@given(
    steps=st.lists(st.tuples(st.floats(0.01, 1.0), st.sets(st.integers(1, 3))), max_size=60),
    timeout=st.floats(2, 8),
)
def test_exactly_the_ranks_that_said_nothing_for_the_timeout_count_as_dead(
    steps: list[tuple[float, set[int]]], timeout: float
) -> None:
    """With a watcher that looks often enough (within half a timeout)."""
    clock = Clock()
    silence = Silence(timeout, [1, 2, 3], clock)
    heard = dict.fromkeys([1, 2, 3], clock.now)
    for seconds, speakers in steps:
        clock.now += seconds
        for rank in speakers:
            silence.heard(rank)
            heard[rank] = clock.now
        expected = {rank: clock.now - at for rank, at in heard.items() if clock.now - at > timeout}
        assert silence.silent() == expected
        assert silence.remaining() == pytest.approx(max(0, min(heard.values()) + timeout - clock.now))


def test_time_in_which_the_watcher_did_not_run_counts_for_nobody() -> None:
    clock = Clock()
    silence = Silence(5, [1], clock)
    clock.now += 2
    assert silence.silent() == {}
    clock.now += 1000  # the machine slept
    assert silence.silent() == {}
    clock.now += 2.5
    assert silence.silent() == {}
    clock.now += 1
    assert silence.silent() == {1: 5.5}


def test_who_said_good_bye_is_never_dead_and_strangers_are_not_watched() -> None:
    clock = Clock()
    silence = Silence(5, [1], clock)
    silence.heard(7)
    silence.forget(1)
    for _ in range(10):
        clock.now += 1
        assert silence.silent() == {}
    assert silence.remaining() == float("inf")


def test_a_timeout_holds_several_beats() -> None:
    assert beat_interval(5) == 1
    assert beat_interval(1) == 0.2
    with pytest.raises(ValueError, match="positive"):
        Silence(0, [1])
    with pytest.raises(ValueError, match="less than 1 s"):
        Heartbeat(Hub(_dummy(), {}, name="x"), names={}, timeout=0.5, on_dead=print)


def _dummy() -> Any:
    return type("Socket", (), {})()


# --- real processes -----------------------------------------------------------------------------------------


def rank_of(index: int) -> RankId:
    return RankId(pp_rank=index, tp_rank=0, index=index)


def member(
    gate: Gate, index: int, endpoint: str, timeout: float, leader: str, on_dead: Callable[[str], None]
) -> Heartbeat:
    socket = gate.connected(zmq.DEALER, endpoint, identity=member_identity(rank_of(index)))
    spoke = Spoke(socket, name="heartbeat")
    spoke.hello()
    spoke.await_hello(deadline=time.monotonic() + 20)
    heartbeat = Heartbeat(spoke, names={0: leader}, timeout=timeout, on_dead=on_dead)
    heartbeat.start()
    return heartbeat


def _hold_the_interpreter(seconds: float) -> None:
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))  # PyDLL keeps the GIL


def _member_process(index: int, endpoints: Any, orders: Any, timeout: float) -> None:
    gate = Gate(SECRET)
    heartbeat = member(gate, index, endpoints.get(timeout=20), timeout, "pp0 tp0 (pid 1)", lambda _: None)
    while True:
        order = orders.get()
        if order in ("leave", "fail"):
            heartbeat.close(farewell=order == "leave")
            gate.close()
            return
        _hold_the_interpreter(order)
        time.sleep(0.3)


class Group:
    """Rank 0 in this process, ranks 1 and 2 in processes of their own."""

    def __init__(self, timeout: float) -> None:
        endpoints = FORK.Queue()
        self.orders = {index: FORK.Queue() for index in (1, 2)}
        self.processes = {
            index: FORK.Process(
                target=_member_process, args=(index, endpoints, self.orders[index], timeout), daemon=True
            )
            for index in (1, 2)
        }
        for process in self.processes.values():
            process.start()
        self.gate = Gate(SECRET)
        socket, endpoint = self.gate.bound(zmq.ROUTER, "127.0.0.1")
        for _ in self.processes:
            endpoints.put(endpoint)
        hub = Hub(socket, {index: rank_of(index) for index in self.processes}, name="heartbeat")
        hub.greet(deadline=time.monotonic() + 20)
        self.obituaries: queue.Queue[tuple[float, str]] = queue.Queue()
        names = {index: f"pp{index} tp0 (pid {process.pid})" for index, process in self.processes.items()}
        self.heartbeat = Heartbeat(hub, names=names, timeout=timeout, on_dead=self._dead)
        self.heartbeat.start()

    def _dead(self, message: str) -> None:
        self.obituaries.put((time.monotonic(), message))

    def close(self) -> None:
        self.heartbeat.close()
        for process in self.processes.values():
            process.kill()
            process.join()
        self.gate.close()


@pytest.fixture
def group(request: pytest.FixtureRequest) -> Iterator[Group]:
    group = Group(request.param)
    yield group
    group.close()


@pytest.mark.parametrize("group", [1.0], indirect=True)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_stops_is_named_in_time(group: Group, how: signal.Signals) -> None:
    pid = group.processes[2].pid
    time.sleep(0.5)
    stopped = time.monotonic()
    os.kill(pid, how)
    at, message = group.obituaries.get(timeout=10)
    assert at - stopped < 3
    assert message.startswith(f"pp2 tp0 (pid {pid}) has been silent for 1.")
    assert message.endswith(" s (--wavepp-rounds-timeout 1)")
    with pytest.raises(queue.Empty):
        group.obituaries.get(timeout=1.2)


@pytest.mark.parametrize("group", [3.0], indirect=True)
def test_a_rank_whose_interpreter_is_busy_is_not_dead_but_one_that_hangs_is(group: Group) -> None:
    for _ in range(3):
        group.orders[1].put(1.0)
    with pytest.raises(queue.Empty):
        group.obituaries.get(timeout=3.9)
    group.orders[1].put(30.0)
    assert group.obituaries.get(timeout=6)[1].startswith("pp1 tp0")


@pytest.mark.parametrize("group", [1.0], indirect=True)
def test_a_rank_that_leaves_without_good_bye_is_dead(group: Group) -> None:
    group.orders[2].put("fail")
    _, message = group.obituaries.get(timeout=20)
    assert message.startswith("pp2 tp0 (pid ")


@pytest.mark.parametrize("group", [1.0], indirect=True)
def test_a_rank_that_leaves_in_order_is_not_dead(group: Group) -> None:
    group.orders[1].put("leave")
    group.processes[1].join(5)
    assert group.processes[1].exitcode == 0
    with pytest.raises(queue.Empty):
        group.obituaries.get(timeout=2)


def _leader_process(endpoints: Any) -> None:
    gate = Gate(SECRET)
    socket, endpoint = gate.bound(zmq.ROUTER, "127.0.0.1")
    endpoints.put(endpoint)
    hub = Hub(socket, {1: rank_of(1)}, name="heartbeat")
    hub.greet(deadline=time.monotonic() + 20)
    Heartbeat(hub, names={1: "pp1 tp0 (pid 1)"}, timeout=1, on_dead=lambda _: None).start()
    threading.Event().wait()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_followers_notice_that_rank_0_stopped(how: signal.Signals) -> None:
    endpoints = FORK.Queue()
    leader = FORK.Process(target=_leader_process, args=(endpoints,), daemon=True)
    leader.start()
    gate = Gate(SECRET)
    obituaries: queue.Queue[str] = queue.Queue()
    name = f"pp0 tp0 (pid {leader.pid})"
    heartbeat = member(gate, 1, endpoints.get(timeout=20), 1, name, obituaries.put)
    with pytest.raises(queue.Empty):
        obituaries.get(timeout=1.5)
    os.kill(leader.pid, how)
    assert obituaries.get(timeout=3).startswith(f"{name} has been silent for 1.")
    heartbeat.close()
    leader.kill()
    leader.join()
    gate.close()


def test_on_dead_may_close_the_heartbeat() -> None:
    gate = Gate(SECRET)
    socket, _ = gate.bound(zmq.ROUTER, "127.0.0.1")
    closed = threading.Event()
    heartbeat: Heartbeat

    def on_dead(_: str) -> None:
        heartbeat.close()
        closed.set()

    hub = Hub(socket, {1: rank_of(1)}, name="heartbeat")
    heartbeat = Heartbeat(hub, names={1: "pp1 tp0"}, timeout=1, on_dead=on_dead)
    heartbeat.start()
    assert closed.wait(3)
    heartbeat.close()
    gate.close()


def test_an_idle_group_costs_next_to_nothing() -> None:
    """All threads of rank 0 and of a member, both in this process, at the shortest interval."""
    gate = Gate(SECRET)
    socket, endpoint = gate.bound(zmq.ROUTER, "127.0.0.1")
    hub = Hub(socket, {1: rank_of(1)}, name="heartbeat")
    greeting = threading.Thread(target=lambda: hub.greet(deadline=time.monotonic() + 20))
    greeting.start()
    follower = member(gate, 1, endpoint, 1, "pp0 tp0", print)
    greeting.join()
    leader = Heartbeat(hub, names={1: "pp1 tp0"}, timeout=1, on_dead=print)
    leader.start()
    time.sleep(0.3)
    cpu, wall = time.process_time(), time.monotonic()
    time.sleep(3)
    share = (time.process_time() - cpu) / (time.monotonic() - wall)
    follower.close()
    leader.close()
    gate.close()
    print(f"two ranks: {share:.3%} of a core")
    assert share < 0.01
