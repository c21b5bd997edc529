from hypothesis import given
from hypothesis import strategies as st

from sglang_wavepp.planning.hysteresis import Hysteresis

RING = 8


def test_a_burst_applies_at_once() -> None:
    kept = Hysteresis(ring=RING, position=4)
    assert kept.decide(2, may_go_down=False) == 2
    assert kept.decide(0, may_go_down=False) == 0


def test_one_step_up_needs_half_a_ring_of_decisions_in_a_row() -> None:
    kept = Hysteresis(ring=RING, position=3)
    assert [kept.decide(2, may_go_down=False) for _ in range(RING // 2)] == [3, 3, 3, 2]


def test_one_step_down_needs_a_ring_of_decisions_in_a_row() -> None:
    kept = Hysteresis(ring=RING, position=0)
    assert [kept.decide(3, may_go_down=True) for _ in range(RING)] == [0] * (RING - 1) + [1]


def test_a_decision_that_asks_for_something_else_starts_the_count_anew() -> None:
    kept = Hysteresis(ring=RING, position=0)
    for _ in range(RING - 1):
        kept.decide(1, may_go_down=True)
    kept.decide(0, may_go_down=True)
    assert [kept.decide(1, may_go_down=True) for _ in range(RING)][-2:] == [0, 1]


def test_without_a_margin_it_stays() -> None:
    kept = Hysteresis(ring=RING, position=0)
    assert {kept.decide(1, may_go_down=False) for _ in range(3 * RING)} == {0}


def test_an_empty_pipeline_takes_what_is_wanted() -> None:
    kept = Hysteresis(ring=RING, position=0)
    kept.restart(4)
    assert kept.position == 4


@given(st.integers(1, 12), st.lists(st.integers(0, 5), max_size=80), st.integers(0, 5))
def test_what_is_wanted_for_long_enough_is_reached(ring: int, before: list[int], wanted: int) -> None:
    kept = Hysteresis(ring=ring)
    for each in before:
        kept.decide(each, may_go_down=True)
    for _ in range(5 * ring):
        kept.decide(wanted, may_go_down=True)
    assert kept.position == wanted
