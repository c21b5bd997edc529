import time
from collections.abc import Sequence

import pytest

from sglang_wavepp.planning import mpu
from sglang_wavepp.planning.cost import GUESS, WaveCost
from sglang_wavepp.planning.grid import SpanGrid
from sglang_wavepp.planning.mpu import MpuPlanner
from sglang_wavepp.planning.spans import PlannedSpan, Remainder
from sglang_wavepp.planning.supply import Supply
from sglang_wavepp.planning.timed import pack_timed

GRID = SpanGrid(page=64)
STAGES = 4
RING = 2 * STAGES
LARGEST, SMALLEST = 8192, 512


def _planner(cost: WaveCost | None = None, **changes: float) -> MpuPlanner:
    settings = {"fills": 2, "progress_deadline": 0.5, "max_requests": 16, **changes}
    return MpuPlanner(
        max_tokens=LARGEST,
        min_tokens=SMALLEST,
        grid=GRID,
        stages=STAGES,
        cost=cost,
        max_requests=int(settings["max_requests"]),
        fills=int(settings["fills"]),
        progress_deadline=settings["progress_deadline"],
    )


def _flying(waves: int, length: int = 512) -> tuple[tuple[PlannedSpan, ...], ...]:
    return tuple((PlannedSpan(f"f{number}", 0, length),) for number in range(waves))


def _supply(
    *lengths: int,
    flying: Sequence[tuple[PlannedSpan, ...]] = (),
    arriving: Sequence[int] = (),
    now: float = 0.0,
) -> Supply:
    queue = [Remainder(f"r{number}", 0, length) for number, length in enumerate(lengths)]
    return Supply(
        queue=iter(queue),
        unplanned=sum(lengths),
        flying=flying,
        arriving_tokens=sum(arriving),
        arriving_requests=len(arriving),
        now=now,
    )


# --- without a cost: the halving sequence -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "budget"),
    [
        (12 * 8192, 8192),
        (11 * 8192, 4096),
        (12 * 4096, 4096),
        (12 * 2048, 2048),
        (12 * 512, 512),
        (1000, 512),
    ],
)
def test_the_largest_budget_that_makes_three_fills_of_waves(tokens: int, budget: int) -> None:
    planner = _planner()
    planner.plan(_supply(tokens))
    assert planner.budget == budget


def test_more_fills_ask_for_smaller_waves() -> None:
    planner = _planner(fills=3)
    planner.plan(_supply(12 * 4096))
    assert planner.budget == 2048


def test_tokens_in_admission_count_as_supply() -> None:
    planner = _planner()
    planner.plan(_supply(4 * 8192, arriving=[8 * 8192]))
    assert planner.budget == 8192


def test_below_a_full_ring_of_waves_it_thins_whatever_is_split() -> None:
    planner = _planner()
    planner.plan(_supply(*(8192 for _ in range(7))))
    assert planner.budget == 4096


def test_with_a_full_ring_it_does_not_split_what_fits() -> None:
    planner = _planner()
    planner.plan(_supply(*(8192 for _ in range(8))))
    assert planner.budget == 8192


def test_with_a_full_ring_it_may_split_an_eighth() -> None:
    planner = _planner()
    planner.plan(_supply(4096, *(16384 for _ in range(5))))
    assert planner.budget == 4096


def test_a_burst_is_answered_at_once_and_a_lull_after_a_ring_of_decisions() -> None:
    planner = _planner()
    planner.plan(_supply(1000))
    planner.plan(_supply(100 * 8192, flying=_flying(4)))
    assert planner.budget == 8192
    for _ in range(RING - 1):
        planner.plan(_supply(3 * 8192, flying=_flying(4)))
        assert planner.budget == 8192
    planner.plan(_supply(3 * 8192, flying=_flying(4)))
    assert planner.budget == 4096


def test_a_lull_that_is_hardly_one_changes_nothing() -> None:
    planner = _planner()
    planner.plan(_supply(12 * 8192))
    for _ in range(5 * RING):
        planner.plan(_supply(11 * 8192, flying=_flying(4)))
    assert planner.budget == 8192


# --- with a cost: waves of equal time -----------------------------------------------------------------------------


def test_a_lone_request_is_cut_as_the_makespan_wants() -> None:
    cost = WaveCost(per_wave=0.008, per_token=20e-6)
    planner, position, waves = _planner(cost), 0, 0
    flying: list[tuple[PlannedSpan, ...]] = []
    while position < 60_000:
        queue = iter([Remainder("a", position, 60_000)])
        plan = planner.plan(Supply(queue=queue, unplanned=60_000 - position, flying=flying))
        (span,) = plan.spans
        flying.append(plan.spans)
        position, waves = span.end, waves + 1
    assert waves == pytest.approx((3 * 60_000 * 20e-6 / 0.008) ** 0.5, abs=1)


def test_only_the_ratios_of_a_cost_count() -> None:
    plans = []
    for scale in (1.0, 1000.0):
        cost = WaveCost(8e-3 * scale, 17.5e-6 * scale, 1.4e-10 * scale)
        plans.append(_planner(cost).plan(_supply(100_000, 5_000)).spans)
    assert plans[0] == plans[1]


def test_a_cost_may_come_later_and_go_again() -> None:
    planner = _planner()
    before = planner.plan(_supply(30_000)).spans
    planner.cost = WaveCost(per_wave=0.2, per_token=1e-5)
    dear = planner.plan(_supply(30_000)).spans
    planner.cost = None
    assert planner.plan(_supply(30_000)).spans == before
    assert dear[0].length > before[0].length


def test_work_in_admission_makes_waves_larger() -> None:
    alone, busy = _planner(GUESS), _planner(GUESS)
    alone.plan(_supply(30_000))
    busy.plan(_supply(30_000, arriving=[300_000] * 10))
    assert busy.budget > alone.budget


@pytest.mark.parametrize("host", [0.1, 0.1003, 0.1006, 0.1009])
def test_waves_are_not_shorter_than_hosts_need(host: float) -> None:
    cost = WaveCost(per_wave=0.001, per_token=20e-6)
    planner = _planner(cost)
    planner.host = host
    spans = planner.plan(_supply(30_000, arriving=[10])).spans
    assert cost.of(spans) >= host


def test_waves_grow_while_work_keeps_coming() -> None:
    planner, flying, budgets = _planner(GUESS), list(_flying(1)), []
    for number in range(2 * RING):
        queue = iter([Remainder(f"q{number}", 0, 20_000)])
        plan = planner.plan(Supply(queue=queue, unplanned=20_000, flying=flying, arriving_tokens=100_000))
        flying = [*flying, plan.spans][-RING:]
        budgets.append(planner.budget)
    assert budgets == sorted(budgets)
    assert budgets[-1] > budgets[0]


@pytest.mark.parametrize(("arriving", "alone"), [([], True), ([5000], False)])
def test_a_request_is_cut_into_equal_times_only_when_nothing_follows(
    monkeypatch: pytest.MonkeyPatch, arriving: list[int], alone: bool
) -> None:
    asked = []

    def spy(*args: object, **options: object) -> tuple[PlannedSpan, ...]:
        asked.append(options["alone"])
        return pack_timed(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(mpu, "pack_timed", spy)
    _planner(GUESS).plan(_supply(30_000, arriving=arriving))
    _planner(GUESS).plan(_supply(30_000, 20))
    assert asked == [alone, False]


def test_without_a_cost_a_small_rest_is_no_fragment_of_the_next_request() -> None:
    planner = _planner()
    spans = planner.plan(_supply(6000, 100_000)).spans
    assert planner.budget == 8192
    assert spans == (PlannedSpan("r0", 0, 6000),)


@pytest.mark.parametrize("cost", [None, GUESS])
def test_the_smallest_server_plans_too(cost: WaveCost | None) -> None:
    planner = MpuPlanner(
        max_tokens=1, min_tokens=1, grid=SpanGrid(page=1), max_requests=1, stages=1, cost=cost
    )
    assert planner.plan(_supply(5)).spans == (PlannedSpan("r0", 0, 1),)


# --- waiting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cost", [None, GUESS])
def test_a_small_wave_waits_once_for_a_request_in_admission(cost: WaveCost | None) -> None:
    planner = _planner(cost)
    supply = {"flying": _flying(STAGES), "arriving": [900], "now": 7.0}
    first = planner.plan(_supply(100, **supply))
    assert first.spans == () and first.ask_again == 7.5
    assert planner.plan(_supply(100, **supply)).spans == (PlannedSpan("r0", 0, 100),)


@pytest.mark.parametrize("cost", [None, GUESS])
@pytest.mark.parametrize(
    ("length", "flying", "arriving"),
    [(100, STAGES - 1, [900]), (100, STAGES, []), (6000, STAGES, [900])],
)
def test_nothing_waits_without_need(
    cost: WaveCost | None, length: int, flying: int, arriving: list[int]
) -> None:
    assert _planner(cost).plan(_supply(length, flying=_flying(flying), arriving=arriving)).spans


def test_a_wave_that_can_take_no_more_requests_does_not_wait() -> None:
    planner = _planner(max_requests=1)
    assert planner.plan(_supply(100, flying=_flying(STAGES), arriving=[900])).spans


def test_an_empty_queue_launches_nothing_and_needs_no_reminder() -> None:
    plan = _planner(GUESS).plan(_supply(flying=_flying(2), arriving=[5]))
    assert plan.spans == () and plan.ask_again is None


# --- limits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{"max_requests": 0}, {"fills": 0}, {"progress_deadline": -1.0}])
def test_impossible_settings_are_errors(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        _planner(**changes)


@pytest.mark.parametrize("cost", [None, GUESS])
def test_a_wave_of_many_tiny_requests_is_full(cost: WaveCost | None) -> None:
    planner = _planner(cost, max_requests=500)
    spans = planner.plan(_supply(*(20 for _ in range(1000)), arriving=[10_000_000])).spans
    assert sum(span.length for span in spans) > LARGEST / 2


def test_a_decision_reads_no_more_of_the_queue_than_a_few_waves() -> None:
    read = 0

    def endless() -> object:
        nonlocal read
        while True:
            read += 1
            yield Remainder(f"r{read}", 0, 13_000)

    for cost, most in ((None, 65), (GUESS, 9)):
        read = 0
        queue: object = endless()
        _planner(cost).plan(Supply(queue=queue, unplanned=10**9))  # type: ignore[arg-type]
        assert read <= most


def test_a_decision_takes_no_time() -> None:
    lengths = [13_000] * 64
    planner, best = _planner(GUESS), float("inf")
    for _ in range(50):
        supply = _supply(*lengths, flying=_flying(RING))
        started = time.thread_time()
        planner.plan(supply)
        best = min(best, time.thread_time() - started)
    assert best < 500e-6, f"{best * 1e6:.0f} us"  # about 40 on an idle machine
