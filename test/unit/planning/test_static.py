import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_wavepp.planning.grid import SpanGrid
from sglang_wavepp.planning.spans import Remainder
from sglang_wavepp.planning.static import StaticPlanner

GRIDS = st.builds(SpanGrid, page=st.sampled_from((1, 16, 64)), recurrent=st.sampled_from((1, 64)))


@st.composite
def planners_and_queues(draw: st.DrawFn) -> tuple[StaticPlanner, list[Remainder]]:
    grid = draw(GRIDS)
    budget = draw(st.integers(grid.step, 2000))
    planner = StaticPlanner(budget=budget, grid=grid, max_requests=draw(st.integers(1, 8)))
    queue = []
    for number in range(draw(st.integers(0, 12))):
        start = draw(st.integers(0, 30)) * grid.page
        queue.append(Remainder(rid=f"r{number}", start=start, prompt=start + draw(st.integers(1, 3000))))
    return planner, queue


@given(planners_and_queues())
def test_a_wave_keeps_to_budget_grid_and_order(given_: tuple[StaticPlanner, list[Remainder]]) -> None:
    planner, queue = given_
    spans = planner.pack(queue)
    by_rid = {item.rid: item for item in queue}
    assert sum(span.length for span in spans) <= planner.budget
    assert len(spans) <= planner.max_requests
    assert [s.rid for s in spans] == [q.rid for q in queue if q.rid in {s.rid for s in spans}]
    for span in spans:
        item = by_rid[span.rid]
        assert span.start == item.start
        assert planner.grid.complaint(start=span.start, length=span.length, prompt=item.prompt) is None


@given(planners_and_queues())
def test_the_first_request_gets_as_much_as_if_it_were_alone(
    given_: tuple[StaticPlanner, list[Remainder]],
) -> None:
    planner, queue = given_
    if queue:
        assert planner.pack(queue)[0] == planner.pack(queue[:1])[0]


@given(planners_and_queues())
def test_repeated_waves_compute_every_token_once(given_: tuple[StaticPlanner, list[Remainder]]) -> None:
    planner, queue = given_
    position = {item.rid: item.start for item in queue}
    prompts = {item.rid: item.prompt for item in queue}
    for _ in range(100_000):
        spans = planner.pack(Remainder(r, p, prompts[r]) for r, p in position.items())
        if not spans:
            break
        for span in spans:
            assert span.start == position[span.rid]
            position[span.rid] = span.end
        position = {r: p for r, p in position.items() if p < prompts[r]}
    assert position == {}


def test_a_leftover_goes_to_a_request_that_it_finishes() -> None:
    planner = StaticPlanner(budget=256, grid=SpanGrid(page=64, recurrent=64), max_requests=8)
    queue = [Remainder("long", 1280, 1500), Remainder("other", 0, 1500), Remainder("short", 0, 30)]
    assert [(s.rid, s.length) for s in planner.pack(queue)] == [("long", 220), ("short", 30)]


def test_a_budget_below_the_grid_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 64 tokens"):
        StaticPlanner(budget=63, grid=SpanGrid(page=64), max_requests=8)
