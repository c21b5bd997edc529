import math

from hypothesis import given
from hypothesis import strategies as st

from sglang_wavepp.planning.cost import WaveCost
from sglang_wavepp.planning.courtesy import Courtesy
from sglang_wavepp.planning.grid import SpanGrid
from sglang_wavepp.planning.spans import PlannedSpan, Remainder
from sglang_wavepp.planning.timed import WaveLimits, pack_timed

GRID = SpanGrid(page=64)
COST = WaveCost(per_wave=5, per_token=1.0)
LIMITS = WaveLimits(max_tokens=4096, min_tokens=128, max_requests=4, grid=GRID)


def _queue(*lengths: int) -> list[Remainder]:
    return [Remainder(f"r{number}", 0, length) for number, length in enumerate(lengths)]


def _pack(*lengths: int, seconds: float, alone: bool = False, limits: WaveLimits = LIMITS) -> dict[str, int]:
    spans = pack_timed(
        _queue(*lengths), seconds=seconds, cost=COST, limits=limits, courtesy=Courtesy(), alone=alone
    )
    return {span.rid: span.length for span in spans}


def test_a_wave_holds_the_time_it_is_given() -> None:
    assert _pack(10_000, seconds=1000) == {"r0": 1024}
    assert _pack(10_000, seconds=980) == {"r0": 960}
    assert _pack(700, 10_000, seconds=1000) == {"r0": 700, "r1": 320}


def test_where_context_is_long_a_wave_of_the_same_time_has_fewer_tokens() -> None:
    cost = WaveCost(per_wave=5, per_token=1.0, per_pair=0.001)
    near, far = (
        pack_timed(
            [Remainder("r", start, start + 50_000)],
            seconds=1000,
            cost=cost,
            limits=LIMITS,
            courtesy=Courtesy(),
        )[0]
        for start in (0, 6400)
    )
    for span in (near, far):
        step = cost.work(start=span.end, end=span.end + 64)
        assert abs(cost.work(start=span.start, end=span.end) - 1000) <= 0.51 * step
    assert far.length < near.length / 3


def test_the_only_request_is_cut_into_equal_times() -> None:
    assert _pack(1290, seconds=640, alone=True) == {"r0": 640}
    assert _pack(1330, seconds=640, alone=True) == {"r0": 640}
    assert _pack(1500, seconds=640, alone=True) == {"r0": 512}
    assert _pack(1500, seconds=1400, alone=True) == {"r0": 1500}


def test_a_short_request_behind_a_long_one_is_in_the_wave() -> None:
    assert _pack(30_000, 200, 29_000, seconds=1000) == {"r0": 832, "r1": 200}


def test_guests_get_no_more_than_is_offered() -> None:
    assert _pack(30_000, 6_000, seconds=300) == {"r0": 192, "r1": 128}
    assert _pack(30_000, 6_000, seconds=380) == {"r0": 256, "r1": 128}


def test_guests_leave_room_and_a_place_for_the_first_request() -> None:
    tight = WaveLimits(max_tokens=256, min_tokens=192, max_requests=4, grid=GRID)
    assert _pack(10_000, 100, seconds=5000, limits=tight) == {"r0": 256}
    pair = WaveLimits(max_tokens=4096, min_tokens=64, max_requests=2, grid=GRID)
    assert _pack(30_000, 10, 10, 10, seconds=1000, limits=pair) == {"r0": 960, "r1": 10}


def test_too_little_time_still_brings_the_first_request_ahead() -> None:
    assert _pack(10_000, 10_000, seconds=0.0) == {"r0": 128}


def test_all_the_time_in_the_world_fills_the_largest_wave() -> None:
    assert _pack(3000, 10_000, seconds=math.inf) == {"r0": 3000, "r1": 1088}


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20_000)), min_size=1, max_size=12),
    st.one_of(st.just(0.0), st.floats(1, 20_000), st.just(math.inf)),
    st.integers(1, 64),
    st.integers(1, 64),
    st.integers(1, 6),
    st.booleans(),
    st.sampled_from((0.0, 1e-3)),
)
def test_waves_keep_to_limits_order_and_grid_and_the_first_request_always_goes(
    requests: list[tuple[int, int]],
    seconds: float,
    a: int,
    b: int,
    most: int,
    alone: bool,
    per_pair: float,
) -> None:
    cost = WaveCost(per_wave=5, per_token=1.0, per_pair=per_pair)
    limits = WaveLimits(max_tokens=64 * max(a, b), min_tokens=64 * min(a, b), max_requests=most, grid=GRID)
    queue = [
        Remainder(f"r{number}", page * 64, page * 64 + length)
        for number, (page, length) in enumerate(requests)
    ]
    if alone:
        queue = queue[:1]
    spans = pack_timed(queue, seconds=seconds, cost=cost, limits=limits, courtesy=Courtesy(), alone=alone)
    assert spans[0].rid == "r0"
    assert spans[0].length >= min(queue[0].length, limits.min_tokens)
    assert sum(span.length for span in spans) <= limits.max_tokens
    assert 1 <= len(spans) <= most
    numbers = [int(span.rid[1:]) for span in spans]
    assert numbers == sorted(set(numbers))
    for span in spans:
        item = queue[int(span.rid[1:])]
        assert span.start == item.start
        assert GRID.complaint(start=span.start, length=span.length, prompt=item.prompt) is None
    if not alone:
        work = cost.of(spans) - cost.per_wave
        least = cost.work(start=queue[0].start, end=queue[0].start + min(limits.min_tokens, queue[0].length))
        step = max(cost.work(start=span.end, end=span.end + 64) for span in spans)
        assert work <= max(seconds, seconds / 2 + least) + 0.51 * step


def test_the_first_request_gets_at_least_what_its_host_takes() -> None:
    for floor, length in ((100.0, 128), (300.0, 320), (1e9, 4096)):
        spans = pack_timed(
            _queue(50_000), seconds=50.0, cost=COST, limits=LIMITS, courtesy=Courtesy(), floor=floor
        )
        assert [span.length for span in spans] == [length]


def test_the_least_wave_is_on_the_grid() -> None:
    limits = WaveLimits(max_tokens=4096, min_tokens=100, max_requests=4, grid=GRID)
    assert limits.least == 128
    assert limits.tokens(0, seconds=0.0, cost=COST) == 128
    assert limits.tokens(0, seconds=1000.0, cost=COST) == 960
    assert limits.tokens(0, seconds=math.inf, cost=COST) == 4096


def test_spans_are_what_the_queue_still_needs() -> None:
    spans = pack_timed([Remainder("a", 64, 100)], seconds=1000, cost=COST, limits=LIMITS, courtesy=Courtesy())
    assert spans == (PlannedSpan("a", 64, 36),)
