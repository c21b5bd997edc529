import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_wavepp.planning.grid import SpanGrid

GRIDS = st.builds(SpanGrid, page=st.sampled_from((1, 16, 64, 128)), recurrent=st.sampled_from((1, 64, 192)))


@given(GRIDS, st.integers(0, 200), st.integers(1, 5000), st.integers(0, 3000))
def test_the_longest_span_is_legal_and_no_longer_one_is(
    grid: SpanGrid, pages: int, remaining: int, budget: int
) -> None:
    start = pages * grid.page
    prompt = start + remaining
    length = grid.longest(start=start, remaining=remaining, budget=budget)
    assert 0 <= length <= min(remaining, budget)
    if length:
        assert grid.complaint(start=start, length=length, prompt=prompt) is None
    for longer in range(length + 1, min(remaining, budget) + 1):
        assert grid.complaint(start=start, length=longer, prompt=prompt) is not None


@given(GRIDS, st.integers(0, 200), st.integers(1, 5000))
def test_a_budget_of_one_step_always_makes_progress(grid: SpanGrid, pages: int, remaining: int) -> None:
    assert grid.longest(start=pages * grid.page, remaining=remaining, budget=grid.step) > 0


@pytest.mark.parametrize(
    ("start", "length", "says"),
    [
        (64, 64, None),
        (64, 200, None),  # the last span may end anywhere
        (64, 100, "grid"),
        (63, 65, "page"),
        (192, 80, "lie"),
        (128, 0, "lie"),
    ],
)
def test_complaints_name_what_is_wrong(start: int, length: int, says: str | None) -> None:
    complaint = SpanGrid(page=64, recurrent=64).complaint(start=start, length=length, prompt=264)
    assert (complaint is None) if says is None else (complaint is not None and says in complaint)


@pytest.mark.parametrize("publish", [64, 100, 320, 384])
def test_a_position_outside_its_span_or_off_the_grid_is_named(publish: int) -> None:
    grid = SpanGrid(page=64, recurrent=64)
    assert "can't publish" in str(grid.complaint(start=64, length=192, prompt=500, publish=publish))
    for allowed in (0, 128, 192, 256):
        assert grid.complaint(start=64, length=192, prompt=500, publish=allowed) is None


def test_the_step_serves_pages_and_recurrent_checkpoints() -> None:
    assert SpanGrid(page=48, recurrent=64).step == 192
