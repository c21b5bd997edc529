import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_wavepp.planning.cost import WaveCost
from sglang_wavepp.planning.spans import PlannedSpan

COSTS = st.builds(
    WaveCost,
    per_wave=st.floats(0, 0.1),
    per_token=st.floats(1e-7, 1e-3),
    per_pair=st.one_of(st.just(0.0), st.floats(1e-13, 1e-8)),
)


@given(COSTS, st.integers(0, 300_000), st.integers(1, 20_000), st.integers(1, 20_000))
def test_work_adds_up_over_spans(cost: WaveCost, start: int, first: int, second: int) -> None:
    middle, end = start + first, start + first + second
    whole = cost.work(start=start, end=end)
    assert cost.work(start=start, end=middle) + cost.work(start=middle, end=end) == pytest.approx(whole)
    spans = (PlannedSpan("a", start, first), PlannedSpan("b", middle, second))
    assert cost.of(spans) == pytest.approx(cost.per_wave + whole)


@given(COSTS, st.integers(0, 300_000), st.floats(1e-6, 10))
def test_the_most_tokens_in_a_time(cost: WaveCost, start: int, seconds: float) -> None:
    tokens = cost.tokens(start=start, seconds=seconds)
    assert tokens >= 0
    assert cost.work(start=start, end=start + tokens) <= seconds * (1 + 1e-9)
    assert cost.work(start=start, end=start + tokens + 1) >= seconds * (1 - 1e-9)


def test_no_time_holds_no_tokens() -> None:
    assert WaveCost(per_wave=1, per_token=1).tokens(start=0, seconds=-1.0) == 0


@pytest.mark.parametrize("parts", [(-1, 1, 0), (0, 0, 0), (0, 1, -1)])
def test_impossible_costs_are_errors(parts: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="cost"):
        WaveCost(*parts)
