from __future__ import annotations

import random
from itertools import pairwise

import pytest
from unit.telemetry.traces import MS, admission, decode, prefill, rank, result

from sglang_wavepp.telemetry.idle import Cause, Gap, idle_by_cause, idle_times
from sglang_wavepp.telemetry.reading import RankTrace

pytestmark = pytest.mark.unit


def seen(gaps: list[Gap]) -> list[tuple[float, float, str]]:
    return [(gap.start_ns / MS, gap.end_ns / MS, gap.cause.value) for gap in gaps]


def test_a_stage_waits_for_the_one_before_and_then_for_its_own_host() -> None:
    ranks = [
        rank(0, prefill(1, 0, 10, ("a", 0, 64)), prefill(2, 10, 30, ("a", 64, 64))),
        rank(1, prefill(1, 11, 20, ("a", 0, 64)), prefill(2, 34, 40, ("a", 64, 64))),
    ]
    first, second = idle_times(ranks)
    assert seen(first) == [(30, 40, "no request")]
    assert seen(second) == [
        (0, 10, "upstream"),
        (10, 11, "late launch"),
        (20, 30, "upstream"),
        (30, 34, "late launch"),
    ]
    assert idle_by_cause(second) == {Cause.LATE: 5 * MS, Cause.UPSTREAM: 20 * MS}


def test_input_that_came_while_the_stage_was_busy_is_no_wait() -> None:
    ranks = [
        rank(0, prefill(1, 0, 1, ("a", 0, 64)), prefill(2, 1, 2, ("a", 64, 64))),
        rank(1, prefill(1, 1, 10, ("a", 0, 64)), prefill(2, 12, 20, ("a", 64, 64))),
    ]
    assert seen(idle_times(ranks)[1]) == [(0, 1, "upstream"), (10, 12, "late launch")]


def test_the_first_stage_waits_for_requests_their_admission_and_its_host() -> None:
    lead = rank(
        0,
        admission("a", 0, 1),
        prefill(1, 1, 5, ("a", 0, 64)),
        result(1, 5),
        admission("b", 8, 12),
        prefill(2, 13, 20, ("b", 0, 64)),
    )
    assert seen(idle_times([lead])[0]) == [
        (0, 1, "admission"),
        (5, 8, "no request"),
        (8, 12, "admission"),
        (12, 13, "late launch"),
    ]


def test_a_request_that_arrived_before_the_stage_was_free_counts_from_then() -> None:
    lead = rank(
        0, prefill(1, 0, 5, ("a", 0, 64)), admission("b", 2, 9), prefill(2, 9, 20, ("b", 0, 64)), result(1, 5)
    )
    assert seen(idle_times([lead])[0]) == [(5, 9, "admission")]


def test_a_full_ring_waits_for_results() -> None:
    spans = [prefill(k, k, k + 1, ("a", 64 * k, 64), slot=k) for k in range(2)]
    lead = rank(0, *spans, result(0, 7), prefill(2, 8, 9, ("a", 128, 64)), result(1, 9))
    assert seen(idle_times([lead])[0]) == [(2, 7, "results"), (7, 8, "late launch")]


def test_a_decode_wave_waits_for_the_token_before() -> None:
    ranks = [
        rank(
            0,
            prefill(1, 0, 2, ("a", 0, 64)),
            result(1, 5),
            decode(2, 5, 6, "a"),
            result(2, 9),
            decode(3, 9.5, 10, "a"),
        ),
        rank(1, prefill(1, 2, 4, ("a", 0, 64)), decode(2, 6, 8, "a"), decode(3, 10, 11, "a")),
    ]
    assert seen(idle_times(ranks)[0]) == [
        (2, 5, "results"),
        (6, 9, "results"),
        (9, 9.5, "late launch"),
        (10, 11, "no request"),
    ]


def test_who_joins_a_lane_is_not_what_it_waited_for() -> None:
    lead = rank(
        0,
        decode(1, 0, 1, "a"),
        prefill(2, 1, 2, ("b", 0, 64)),
        result(2, 3),
        result(1, 6),
        decode(3, 6, 7, "a", "b"),
    )
    assert seen(idle_times([lead])[0]) == [(2, 6, "results")]


def test_results_that_were_not_noted_count_from_the_last_stage() -> None:
    ranks = [
        rank(0, prefill(1, 0, 2, ("a", 0, 64)), decode(2, 5, 6, "a")),
        rank(1, prefill(1, 2, 4, ("a", 0, 64)), decode(2, 6, 7, "a")),
    ]
    assert seen(idle_times(ranks)[0]) == [(2, 4, "results"), (4, 5, "late launch"), (6, 7, "no request")]


def test_each_rank_follows_the_stage_before_on_its_own_tensor_rank() -> None:
    ranks = [
        rank(pp, prefill(1, start, start + 2, ("a", 0, 64)), tp_rank=tp, tp_size=2)
        for pp, tp, start in ((0, 0, 0), (0, 1, 1), (1, 0, 4), (1, 1, 4))
    ]
    assert [seen(gaps)[0] for gaps in idle_times(ranks)[2:]] == [(0, 2, "upstream"), (0, 3, "upstream")]


def test_without_forwards_nobody_is_idle() -> None:
    assert idle_times([]) == []
    assert idle_times([rank(0), rank(1)]) == [[], []]


@pytest.mark.parametrize("seed", range(20))
def test_gaps_and_forwards_fill_the_whole_time_without_overlap(seed: int) -> None:
    rng = random.Random(seed)
    ranks: list[RankTrace] = []
    starts = [0.0] * 30
    for pp in range(3):
        at, events = 0.0, []
        for wave in range(30):
            at = max(at, starts[wave]) + rng.choice((0, 0, 1, 3))
            end = at + rng.randint(1, 4)
            events.append(prefill(wave, at, end, ("a", wave, 1)))
            at = starts[wave] = end
        ranks.append(rank(pp, *events))
    begin, end = 0, max(wave.end_ns for each in ranks for wave in each.waves())
    begin = min(wave.start_ns for each in ranks for wave in each.waves())
    for each, gaps in zip(ranks, idle_times(ranks), strict=True):
        pieces = sorted(
            [(g.start_ns, g.end_ns) for g in gaps] + [(w.start_ns, w.end_ns) for w in each.waves()]
        )
        assert pieces[0][0] == begin and pieces[-1][1] == end
        assert all(left[1] == right[0] for left, right in pairwise(pieces))
