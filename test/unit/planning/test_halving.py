from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_wavepp.planning.halving import halvings


@given(st.sampled_from((1, 16, 64, 192)), st.integers(1, 300), st.integers(1, 300))
def test_budgets_are_aligned_halve_and_go_down_to_the_smallest(step: int, a: int, b: int) -> None:
    smallest, largest = step * min(a, b), step * max(a, b) + step // 2
    budgets = halvings(largest=largest, smallest=smallest, step=step)
    assert budgets[0] == largest // step * step
    assert all(budget % step == 0 and budget >= smallest for budget in budgets)
    for larger, smaller in pairwise(budgets):
        assert smaller == larger // 2 // step * step
    assert budgets[-1] // 2 // step * step < smallest


def test_the_usual_sequence() -> None:
    assert halvings(largest=16384, smallest=2048, step=64) == (16384, 8192, 4096, 2048)


@pytest.mark.parametrize(("largest", "smallest", "step"), [(64, 128, 64), (128, 32, 64), (128, 64, 0)])
def test_impossible_limits_are_errors(largest: int, smallest: int, step: int) -> None:
    with pytest.raises(ValueError, match="wave budgets"):
        halvings(largest=largest, smallest=smallest, step=step)
