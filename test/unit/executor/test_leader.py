"""The LOOP of rank 0 with a stage that only spends time: what is charged to prefill waves, and when it sleeps."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_wavepp.executor import leader as leader_module
from sglang_wavepp.executor.keys import give_key
from sglang_wavepp.executor.leader import Leader
from sglang_wavepp.executor.slots import Flight, Ring
from sglang_wavepp.planning.spans import PlannedSpan
from sglang_wavepp.planning.supply import Plan
from sglang_wavepp.rank.rounds import nothing

pytestmark = pytest.mark.unit

GRAMMARS = SimpleNamespace(
    grammar_queue=[],
    has_waiting_grammars=lambda: False,
    SGLANG_GRAMMAR_MAX_POLL_ITERATIONS=1,
    SGLANG_GRAMMAR_POLL_INTERVAL=1.0,
)
PLANNING, PREFILL_LAUNCH, DECODE_LAUNCH, PREFILL_RESULT, DECODE_RESULT = 0.5, 3.0, 50.0, 1.0, 20.0


class Clock:
    """Processor time that the test lays out."""

    def __init__(self) -> None:
        self.now = 0.0

    def spend(self, seconds: float) -> None:
        self.now += seconds


class Costs:
    """Remembers what was charged to which wave."""

    def __init__(self) -> None:
        self.charged: dict[int, float] = {}

    def launched(self, wave: int, seconds: float) -> None:
        self.charged[wave] = seconds

    def landed(self, wave: int, spans: Any, stopwatch: Any, seconds: float) -> None:
        assert spans
        self.charged[wave] += seconds


class Rank:
    """Rank 0 with one request in prefill and one in a decode lane."""

    def __init__(self, clock: Clock, *, admitted: bool = True) -> None:
        self.clock = clock
        self.costs = Costs()
        self.results: deque[int] = deque()
        self.ring = Ring(8)
        self.prefilling, self.decoding = request("a"), request("d")
        self.lane = SimpleNamespace(in_flight=False, requests=lambda: [self.decoding])
        stage = SimpleNamespace(
            ring=self.ring,
            lanes=[self.lane],
            entries=SimpleNamespace(add=nothing),
            launch_prefill=self._launch_prefill,
            launch_decode=self._launch_decode,
            apply_result=self._apply,
        )
        self.leader = Leader(
            scheduler=scheduler(),
            stage=stage,  # type: ignore[arg-type]
            commands=SimpleNamespace(send=lambda _: None),  # type: ignore[arg-type]
            results=SimpleNamespace(receive=self._receive, socket=None),  # type: ignore[arg-type]
            handover=handover(),
            admission=SimpleNamespace(serve=lambda: False, sources=tuple, patience_ms=nothing),  # type: ignore[arg-type]
            planner=SimpleNamespace(plan=self._plan),  # type: ignore[arg-type]
            costs=self.costs,  # type: ignore[arg-type]
            publisher=SimpleNamespace(position=lambda _: 0),  # type: ignore[arg-type]
            limits=SimpleNamespace(),  # type: ignore[arg-type]
            record=lambda _: None,  # type: ignore[arg-type,return-value]
            timeouts=False,
        )
        for req in (self.prefilling, self.decoding):
            self.leader._bookings.arrive(req).queued = False
        if admitted:
            self.leader._bookings.admit("a", 0)

    def _plan(self, _: Any) -> Plan:
        (left,) = self.leader._bookings.remainders()
        self.clock.spend(PLANNING)
        return Plan(spans=(PlannedSpan("a", left.start, 64),))

    def _launch_prefill(self, command: Any, _: Any) -> None:
        self.clock.spend(PREFILL_LAUNCH)
        batch = SimpleNamespace(reqs=[self.prefilling])
        self.ring.take(Flight(command.wave, command.slot, batch, middle=frozenset({"a"})))

    def _launch_decode(self, command: Any, _: Any) -> None:
        self.clock.spend(DECODE_LAUNCH)
        self.lane.in_flight = True
        self.ring.take(Flight(command.wave, command.slot, SimpleNamespace(reqs=[self.decoding]), lane=0))

    def _receive(self) -> Any:
        if not self.results:
            return None
        return SimpleNamespace(wave=self.results.popleft(), token_ids=(1,), logprobs=None)

    def _apply(self, command: Any) -> list[Any]:
        flight = self.ring.give_back(command.wave)
        self.clock.spend(PREFILL_RESULT if flight.lane is None else DECODE_RESULT)
        self.lane.in_flight &= flight.lane is None
        return []


def request(key: str) -> Any:
    req = SimpleNamespace(rid=key, origin_input_ids=range(640))
    give_key(req, key)
    return req


def scheduler() -> Any:
    receiver = SimpleNamespace(
        recv_from_tokenizer=None,
        recv_from_rpc=None,
        _pull_raw_reqs=list,
        unwrap_pickle_wrapper=lambda _: None,
    )
    return SimpleNamespace(
        _engine_paused=False,
        gracefully_exit=False,
        grammar_manager=GRAMMARS,
        waiting_queue=[],
        request_receiver=receiver,
        process_input_requests=lambda _: None,
        flush_wrapper=SimpleNamespace(_pending=None),
    )


def handover() -> Any:
    return SimpleNamespace(
        settled=lambda _: None,
        counted=1 << 40,
        loop_wake=SimpleNamespace(signal=nothing, clear=nothing, fileno=nothing),
        pop_admitted=tuple,
        pop_withdrawn=tuple,
        arriving=SimpleNamespace(tokens=0, blocked=0),
        applied_command=lambda _: None,
        computed=lambda *_, **__: None,
    )


def test_decode_waves_are_not_charged_to_prefill_waves(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(leader_module.time, "thread_time", lambda: clock.now)
    rank = Rank(clock)
    prefill: list[int] = []
    for _ in range(3):
        while rank.leader._launch() and len(rank.ring) < 4:
            pass
        flights = rank.ring.flights()
        assert {flight.lane for flight in flights} == {None, 0}
        prefill += [flight.wave for flight in flights if flight.lane is None]
        rank.results.extend(flight.wave for flight in flights)
        assert rank.leader._take_results()
    assert rank.costs.charged == dict.fromkeys(prefill, PLANNING + PREFILL_LAUNCH + PREFILL_RESULT)


def test_the_loop_sleeps_until_something_happens_while_requests_await_admission(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The admission thread then has the interpreter to itself."""
    rank = Rank(Clock(), admitted=False)
    rank.lane.in_flight = True
    slept: list[int | None] = []

    class Poller:
        def poll(self, patience: int | None) -> None:
            slept.append(patience)
            rank.leader._stopped = True

    monkeypatch.setattr(leader_module.zmq, "Poller", Poller)
    rank.leader.run()
    assert slept == [None] and rank.leader._bookings.in_admission == 2
