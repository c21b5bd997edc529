from hypothesis import given
from hypothesis import strategies as st

from sglang_wavepp.planning.cost import WaveCost
from sglang_wavepp.planning.courtesy import ALLOWANCE, SHARE, Courtesy
from sglang_wavepp.planning.spans import Remainder

COST = WaveCost(per_wave=0, per_token=1.0)


def test_only_requests_that_need_far_less_are_guests() -> None:
    queue = [Remainder("long", 0, 400), Remainder("a", 0, 100), Remainder("b", 0, 101), Remainder("c", 0, 5)]
    assert [item.rid for item in Courtesy().guests(queue, cost=COST)] == ["a", "c"]


@given(st.integers(100, 10_000), st.lists(st.floats(1, 500), max_size=60))
def test_a_request_gives_an_eighth_of_its_work_and_half_of_a_wave_at_most(
    length: int, waves: list[float]
) -> None:
    courtesy, given_away = Courtesy(), 0.0
    queue = [Remainder("long", 0, length), Remainder("short", 0, 1)]
    for seconds in waves:
        offered = courtesy.offer(queue, seconds=seconds, cost=COST)
        assert 0 <= offered <= SHARE * seconds
        courtesy.given(offered)
        given_away += offered
    assert given_away <= ALLOWANCE * length * (1 + 1e-9)


def test_the_next_request_has_an_allowance_of_its_own() -> None:
    courtesy = Courtesy()
    courtesy.offer([Remainder("a", 0, 800)], seconds=1000, cost=COST)
    courtesy.given(100)
    assert courtesy.offer([Remainder("a", 0, 800)], seconds=1000, cost=COST) == 0
    assert courtesy.offer([Remainder("b", 0, 80)], seconds=1000, cost=COST) == 10
