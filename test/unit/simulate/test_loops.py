"""SGLang's loop, the faultless ring and WavePP's LOOP, in cases that can be computed by hand."""

import pytest

from sglang_wavepp.planning.cost import WaveCost
from sglang_wavepp.planning.spans import PlannedSpan
from sglang_wavepp.planning.static import StaticPlanner
from sglang_wavepp.planning.supply import Plan, Supply
from sglang_wavepp.simulate.chunks import StockQueue
from sglang_wavepp.simulate.machine import Machine
from sglang_wavepp.simulate.outcome import Outcome
from sglang_wavepp.simulate.ring import run_ring
from sglang_wavepp.simulate.tick import TickLoop, TickRun
from sglang_wavepp.simulate.wavepp import WaveppRun
from sglang_wavepp.simulate.workload import Job, Phase, Workload

SECOND = WaveCost(per_wave=0.0, per_token=1e-3)
"""A thousand tokens take a second."""


def _machine(*stages: float, **changes: float) -> Machine:
    return Machine(
        stages=stages,
        cost=SECOND,
        max_tokens=1024,
        page=1,
        host=changes.get("host", 0.0),
        stock_host=changes.get("host", 0.0),
        empty_tick=0.0,
        latency=changes.get("latency", 0.0),
        admission=changes.get("admission", 0.0),
        transfer=changes.get("transfer", 0.0),
    )


def _workload(*lengths: int, concurrency: int) -> Workload:
    jobs = tuple(Job(0, length) for length in lengths)
    return Workload("w", concurrency, jobs, phases=(Phase(concurrency, len(jobs)),))


def _stock(machine: Machine, workload: Workload, chunk: int = 1000, **loop: object) -> Outcome:
    queue = StockQueue(chunk=chunk, page=1, max_requests=8)
    return TickRun(machine, workload, queue, TickLoop(**loop)).run()  # type: ignore[arg-type]


def _wavepp(machine: Machine, workload: Workload, budget: int = 1000) -> Outcome:
    return WaveppRun(machine, workload, StaticPlanner(budget, machine.grid, 8)).run()


@pytest.mark.parametrize("stages", [2, 3, 4, 8])
def test_one_wave_passes_all_stages(stages: int) -> None:
    machine, workload = _machine(*[1.0] * stages), _workload(1000, concurrency=1)
    queue = StockQueue(chunk=1000, page=1, max_requests=8)
    for outcome in (
        _stock(machine, workload),
        _stock(machine, workload, depth=stages),
        run_ring(machine, workload, queue, 2 * stages),
        _wavepp(machine, workload),
    ):
        assert outcome.seconds == pytest.approx(stages)
        assert outcome.tok_s == pytest.approx(1000 / stages)
        assert outcome.idle == 0


@pytest.mark.parametrize("stages", [2, 3, 4, 8])
@pytest.mark.parametrize("waves", [1, 5, 40])
def test_equal_waves_follow_each_other_without_a_gap(stages: int, waves: int) -> None:
    machine, workload = _machine(*[1.0] * stages), _workload(1000 * waves, concurrency=1)
    expected = pytest.approx(waves + stages - 1)
    assert _stock(machine, workload).seconds == expected
    assert _stock(machine, workload, depth=stages, own_stream=True).seconds == expected
    assert _wavepp(machine, workload).seconds == expected


def test_the_slowest_stage_sets_the_pace() -> None:
    machine, workload = _machine(1.0, 2.0, 1.0), _workload(10_000, concurrency=1)
    assert _wavepp(machine, workload).seconds == pytest.approx(1 + 10 * 2 + 1)


def test_a_closed_loop_sends_the_next_request_when_the_result_is_there() -> None:
    machine, workload = _machine(1.0, 1.0, latency=0.25, admission=0.5), _workload(1000, 1000, concurrency=1)
    outcome = _wavepp(machine, workload)
    assert outcome.times == (pytest.approx(2.75), pytest.approx(2.75))
    assert outcome.seconds == pytest.approx(5.5)
    assert outcome.p50_s == pytest.approx(2.75)


def test_transfers_delay_and_hosts_limit() -> None:
    assert _wavepp(
        _machine(1.0, 1.0, transfer=1e-4), _workload(1000, concurrency=1)
    ).seconds == pytest.approx(2.1)
    many = _wavepp(_machine(1.0, 1.0, host=3.0), _workload(10_000, concurrency=1))
    assert many.seconds == pytest.approx(1.5 + 9 * 3 + 2)


def test_no_more_waves_fly_than_the_ring_has_slots() -> None:
    class Counts:
        most = 0

        def plan(self, supply: Supply) -> Plan:
            self.most = max(self.most, len(supply.flying) + 1)
            item = next(iter(supply.queue), None)
            return Plan((PlannedSpan(item.rid, item.start, 100),) if item is not None else ())

    planner = Counts()
    WaveppRun(_machine(1.0, 1.0, 1.0), _workload(4000, concurrency=1), planner).run()
    assert planner.most == 6


def test_the_ring_of_stock_holds_back_unequal_waves_and_a_deeper_one_does_not() -> None:
    machine = _machine(1.0, 1.0, 1.0, 1.0)
    workload = _workload(*([1000, 100] * 20), concurrency=40)
    queues = [StockQueue(chunk=1000, page=1, max_requests=1) for _ in range(2)]
    shallow = TickRun(machine, workload, queues[0], TickLoop()).run()
    deep = TickRun(machine, workload, queues[1], TickLoop(depth=4, own_stream=True)).run()
    assert deep.seconds == pytest.approx(20 * 1.1 + 3, rel=0.05)
    assert shallow.seconds > 1.2 * deep.seconds


def test_an_output_that_is_to_come_holds_up_forwards_unless_transfers_have_their_own_stream() -> None:
    machine = _machine(2.0, 1.0, 1.0, latency=0.3)
    lengths = [500, 1000, 100, 1000, 500, 1000, 100, 1000, 1000, 1000, 500, 500]
    shared, own = (
        TickRun(
            machine,
            _workload(*lengths, concurrency=2),
            StockQueue(chunk=1000, page=1, max_requests=1),
            TickLoop(depth=3, own_stream=stream),
        ).run()
        for stream in (False, True)
    )
    assert shared.seconds > 1.1 * own.seconds


def test_the_faultless_ring_has_as_many_slots_as_it_is_given() -> None:
    machine = _machine(1.0, 1.0, 1.0, 1.0)
    workload = _workload(*([1000, 100] * 20), concurrency=40)
    for slots in (1, 4, 8):
        run = run_ring(machine, workload, StockQueue(chunk=1000, page=1, max_requests=1), slots)
        for number, wave in enumerate(run.waves):
            flying = sum(1 for other in run.waves[:number] if other.ends[-1] > wave.launched)
            assert flying < slots


def test_stock_learns_of_a_request_only_when_its_host_does_not_wait_for_a_result() -> None:
    machine = _machine(1.0, 1.0)
    jobs = (Job(0, 1000), Job(0, 1000))
    late = Workload("w", 0, jobs, times=(0.0, 0.5))
    stock = _stock(machine, late)
    wavepp = _wavepp(machine, late)
    assert wavepp.times[1] == pytest.approx(2.5)
    assert stock.times[1] == pytest.approx(3.5)


def test_the_output_of_middle_chunks_need_not_be_waited_for() -> None:
    machine = _machine(1.0, 1.0, 1.0, 1.0)
    workload = _workload(*([1000, 100] * 20), concurrency=40)
    plain, skipping = (
        TickRun(
            machine,
            _workload(20_000, concurrency=1),
            StockQueue(chunk=1000, page=1, max_requests=1),
            TickLoop(skip_output=skip),
        ).run()
        for skip in (False, True)
    )
    assert skipping.seconds <= plain.seconds
    assert max(wave.launched for wave in skipping.waves) < max(wave.launched for wave in plain.waves)
    assert workload.tokens == 22_000


@pytest.mark.parametrize(("length", "seen"), [(1000, (5, 5, 5000)), (900_000, (4, 6, 5_400_000))])
def test_admission_stops_at_four_waves_that_are_not_planned(length: int, seen: tuple[int, int, int]) -> None:
    """A request counts as one wave at most."""

    class Looks:
        seen: tuple[int, int, int] | None = None

        def plan(self, supply: Supply) -> Plan:
            items = list(supply.queue)
            if self.seen is None:
                self.seen = (len(items), supply.arriving_requests, supply.arriving_tokens)
            first = items[0]
            return Plan((PlannedSpan(first.rid, first.start, min(first.length, 1000)),))

    planner = Looks()
    WaveppRun(_machine(1.0), _workload(*[length] * 10, concurrency=10), planner).run()
    assert planner.seen == seen


@pytest.mark.parametrize(
    ("spans", "says"),
    [
        ((PlannedSpan("0", 5, 10),), "start"),
        ((PlannedSpan("7", 0, 10),), "start"),
        ((PlannedSpan("0", 0, 1500),), "too large"),
    ],
)
def test_a_wrong_plan_ends_the_run(spans: tuple[PlannedSpan, ...], says: str) -> None:
    class Wrong:
        def plan(self, supply: Supply) -> Plan:
            return Plan(spans)

    with pytest.raises(RuntimeError, match=says):
        WaveppRun(_machine(1.0), _workload(2000, concurrency=1), Wrong()).run()


def test_a_planner_that_never_plans_ends_the_run() -> None:
    class Idle:
        def plan(self, supply: Supply) -> Plan:
            return Plan()

    with pytest.raises(RuntimeError, match="nothing will happen"):
        WaveppRun(_machine(1.0), _workload(100, concurrency=1), Idle()).run()
