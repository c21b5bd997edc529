from hypothesis import given
from hypothesis import strategies as st

from sglang_wavepp.planning.grid import SpanGrid
from sglang_wavepp.planning.packing import pack
from sglang_wavepp.planning.spans import Remainder

GRID = SpanGrid(page=64)


def _queue(*lengths: int) -> list[Remainder]:
    return [Remainder(f"r{number}", 128, 128 + length) for number, length in enumerate(lengths)]


def _lengths(*lengths: int, budget: int, fragment: int, most: int = 8) -> dict[str, int]:
    spans = pack(_queue(*lengths), budget=budget, fragment=fragment, grid=GRID, max_requests=most)
    return {span.rid: span.length for span in spans}


def test_a_small_rest_of_the_budget_is_no_fragment_of_a_large_request() -> None:
    assert _lengths(800, 5000, budget=1024, fragment=512) == {"r0": 800}
    assert _lengths(400, 5000, budget=1024, fragment=512) == {"r0": 400, "r1": 576}


def test_a_request_that_fits_whole_passes_one_that_does_not() -> None:
    assert _lengths(800, 5000, 100, budget=1024, fragment=512) == {"r0": 800, "r2": 100}


def test_no_more_requests_than_a_wave_may_hold() -> None:
    assert _lengths(10, 10, 10, budget=1024, fragment=512, most=2) == {"r0": 10, "r1": 10}


@given(
    st.lists(st.integers(1, 3000), min_size=1, max_size=12),
    st.integers(1, 30),
    st.integers(1, 30),
    st.integers(1, 6),
)
def test_waves_keep_to_budget_order_and_grid_and_the_first_request_always_goes(
    lengths: list[int], steps: int, fragment_steps: int, most: int
) -> None:
    queue, budget = _queue(*lengths), steps * 64
    spans = pack(queue, budget=budget, fragment=fragment_steps * 64, grid=GRID, max_requests=most)
    assert spans[0].rid == "r0" and spans[0].length == min(lengths[0], budget)
    assert sum(span.length for span in spans) <= budget and len(spans) <= most
    assert [span.rid for span in spans] == sorted((span.rid for span in spans), key=lambda r: int(r[1:]))
    for span in spans:
        item = queue[int(span.rid[1:])]
        assert GRID.complaint(start=span.start, length=span.length, prompt=item.prompt) is None
        assert span.rid == "r0" or span.length == item.length or span.length >= fragment_steps * 64
