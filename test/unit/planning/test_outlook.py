from hypothesis import given
from hypothesis import strategies as st

from sglang_wavepp.planning.outlook import Outlook
from sglang_wavepp.planning.spans import PlannedSpan, Remainder
from sglang_wavepp.planning.supply import Supply


def _outlook(*lengths: int, flying: tuple[tuple[PlannedSpan, ...], ...] = (), arriving: int = 0) -> Outlook:
    queue = [Remainder(f"r{number}", 64, 64 + length) for number, length in enumerate(lengths)]
    supply = Supply(queue=queue, unplanned=sum(lengths), flying=flying, arriving_tokens=arriving)
    return Outlook.of(supply, queue)


def test_work_is_what_is_unplanned_what_arrives_and_the_last_chunk_of_each_request_that_goes_on() -> None:
    flying = (
        (PlannedSpan("r0", 0, 32),),
        (PlannedSpan("r0", 32, 32), PlannedSpan("gone", 0, 500)),
    )
    assert _outlook(100, 200, flying=flying, arriving=1000).tokens == 100 + 200 + 32 + 1000


def test_two_pieces_above_half_a_budget_need_two_waves() -> None:
    outlook = _outlook(60, 60, 60)
    assert outlook.waves(200) == 1
    assert outlook.waves(100) == 3


def test_pieces_that_fit_the_larger_budget_only_would_be_split() -> None:
    assert _outlook(100, 60, 20).newly_split(larger=100, smaller=50) == 160
    assert _outlook(101, 60, 20).newly_split(larger=100, smaller=50) == 60


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=10), st.integers(1, 4000))
def test_a_smaller_budget_never_makes_fewer_waves(lengths: list[int], budget: int) -> None:
    outlook = _outlook(*lengths)
    assert outlook.waves(budget) >= outlook.waves(2 * budget)
    assert outlook.waves(budget) * budget >= sum(lengths)
