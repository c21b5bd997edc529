from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_wavepp.planning.grid import SpanGrid
from sglang_wavepp.planning.snapshots import NOWHERE, PublishRule, common_end
from sglang_wavepp.planning.spans import PlannedSpan

GRID = 64


def cut(ends: list[int], start: int = 0) -> list[PlannedSpan]:
    return [PlannedSpan("r", a, b - a) for a, b in pairwise([start, *ends])]


def positions(
    rule: PublishRule, ends: list[int], *, start: int = 0, branches: tuple[int, ...] = ()
) -> list[int]:
    spans = cut(ends, start)
    return [rule.position(span, prompt=ends[-1], branches=branches) for span in spans]


def test_small_spans_publish_at_the_period_and_the_last_one_leaves_the_end_to_its_request() -> None:
    rule = PublishRule.sparse(grid=GRID, period=256, inside=True)
    assert positions(rule, [64, 128, 192, 256, 320, 384, 448, 512, 600]) == [0, 0, 0, 256, 0, 0, 0, 512, 0]


def test_large_spans_publish_once_each_and_at_the_same_positions() -> None:
    rule = PublishRule.sparse(grid=GRID, period=256, inside=True)
    assert positions(rule, [320, 640, 1000]) == [256, 512, 0]


def test_where_the_prompt_leaves_others_is_published_wherever_a_span_ends() -> None:
    rule = PublishRule.sparse(grid=GRID, period=1024, inside=True)
    assert positions(rule, [64, 128, 192, 256, 800], branches=(200,)) == [0, 0, 192, 0, 0]
    assert positions(rule, [512, 800], branches=(200,)) == [192, 0]
    assert positions(rule, [512, 800], branches=(200, 300)) == [256, 0]
    assert positions(rule, [64, 256, 800], start=0, branches=(64, 200)) == [64, 192, 0]
    assert positions(rule, [512, 800], branches=(63,)) == [0, 0]


def test_a_branch_goes_before_the_period_and_before_the_end_of_the_prompt() -> None:
    rule = PublishRule.sparse(grid=GRID, period=256, inside=True)
    assert positions(rule, [512, 1000], branches=(300, 900)) == [256, 896]
    assert positions(rule, [512, 1000], branches=(400,)) == [384, 0]
    assert positions(rule, [1000], branches=(999,)) == [NOWHERE], "it is the end of the prompt anyway"


def test_before_a_last_span_too_short_to_bring_a_grid_step_the_end_is_published() -> None:
    rule = PublishRule.sparse(grid=GRID, period=256, inside=True)
    assert positions(rule, [320, 350]) == [320, 0]
    assert positions(rule, [320, 384]) == [256, 0]


def test_without_positions_inside_spans_their_ends_are_published() -> None:
    rule = PublishRule.sparse(grid=1, period=100, inside=False)
    assert positions(rule, [60, 120, 150, 199, 200, 230], branches=(130, 199)) == [0, 120, 0, 199, 200, 0]


def test_without_recurrent_layers_a_span_that_holds_a_position_publishes_all_it_computed() -> None:
    rule = PublishRule.dense(grid=16, period=256)
    # Multiples of the period lie in the spans that end at 272 and 528, a branch at 100 in the second one.
    cuts = [48, 112, 272, 400, 528, 600]
    assert positions(rule, cuts, branches=(100,)) == [0, 112, 272, 0, 528, 0]
    assert positions(rule, cuts, branches=()) == [0, 0, 272, 0, 528, 0]


@pytest.mark.parametrize(("grid", "period"), [(0, 1), (64, 32), (64, 100), (64, 0)])
def test_a_period_off_the_grid_is_refused(grid: int, period: int) -> None:
    with pytest.raises(ValueError, match="multiple of the grid"):
        PublishRule(grid=grid, period=period)


def test_a_period_is_cut_down_to_the_grid() -> None:
    assert PublishRule.sparse(grid=64, period=110, inside=True).period == 64
    assert PublishRule.sparse(grid=64, period=63, inside=True).period == 64
    assert PublishRule.sparse(grid=64, period=1000, inside=True).period == 960


@given(
    steps=st.lists(st.integers(1, 12), min_size=1, max_size=20),
    tail=st.integers(1, 300),
    first=st.integers(0, 5),
    period=st.integers(1, 8),
    branches=st.lists(st.integers(0, 5000), max_size=3),
)
def test_any_cut_publishes_inside_its_spans_on_the_grid_and_no_more_than_period_and_branches(
    steps: list[int], tail: int, first: int, period: int, branches: list[int]
) -> None:
    rule = PublishRule.sparse(grid=GRID, period=period * GRID, inside=True)
    ends, at = [], first * GRID
    for step in steps:
        at += step * GRID
        ends.append(at)
    ends.append(at + tail)
    start, prompt = first * GRID, ends[-1]
    spans = cut(ends, start)
    found = [rule.position(span, prompt=prompt, branches=branches) for span in spans]
    for span, position in zip(spans, found, strict=True):
        assert (
            SpanGrid(page=GRID).complaint(
                start=span.start, length=span.length, prompt=prompt, publish=position
            )
            is None
        )
    kept = [position for position in found if position != NOWHERE]
    assert kept == sorted(set(kept))
    wanted = {each // GRID * GRID for each in branches}
    extra = [each for each in kept if each not in wanted and each % rule.period]
    assert extra == ([spans[-2].end] if extra else [])
    assert len(kept) <= prompt // rule.period - start // rule.period + len(branches) + 1
    for span, position in zip(spans, found, strict=True):
        inside = [each for each in wanted if span.start < each <= span.end]
        if inside and not (span is spans[-1] and max(inside) >= prompt // GRID * GRID):
            assert position == max(inside), "a branch was passed over"
        crossed = span.end // rule.period * rule.period > span.start
        if crossed and span is not spans[-1]:
            assert position != NOWHERE, "a period went by without a position"


@given(common=st.integers(0, 40), left=st.integers(0, 40), right=st.integers(0, 40))
def test_common_end_of_two_chains(common: int, left: int, right: int) -> None:
    shared = list(range(common))
    one = [*shared, *range(1000, 1000 + left)]
    other = [*shared, *range(2000, 2000 + right)]
    assert common_end(one, other) == common_end(other, one) == common
