import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_wavepp.planning.lanes import choose_lanes


@given(st.integers(1, 8), st.lists(st.integers(0, 9), max_size=12))
def test_lanes_that_only_grow_differ_by_one_request_at_most(lanes: int, arrivals: list[int]) -> None:
    loads = [0] * lanes
    for joining in arrivals:
        for lane in choose_lanes(loads, joining):
            loads[lane] += 1
        assert max(loads) - min(loads) <= 1
    assert sum(loads) == sum(arrivals)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=8))
def test_a_request_never_joins_a_fuller_lane_while_an_empty_one_waits(loads: list[int]) -> None:
    (lane,) = choose_lanes(loads, 1)
    assert loads[lane] == min(loads)


def test_no_lane_is_an_error() -> None:
    with pytest.raises(ValueError, match="lane"):
        choose_lanes([], 1)
