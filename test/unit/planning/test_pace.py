import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_wavepp.planning.backlog import Backlog
from sglang_wavepp.planning.pace import COVER, wave_seconds


def _makespan(work: float, waves: int, per_wave: float, stages: int) -> float:
    return work + waves * per_wave + (stages - 1) * (work / waves + per_wave)


@given(st.floats(0.01, 500), st.floats(1e-4, 0.1), st.integers(2, 16))
def test_for_work_that_is_all_there_the_makespan_is_the_least_of_all_numbers_of_waves(
    work: float, per_wave: float, stages: int
) -> None:
    seconds = wave_seconds(Backlog(head=work, others=0, run=work), per_wave=per_wave, stages=stages)
    least = min(
        _makespan(work, waves, per_wave, stages)
        for waves in {
            1,
            *(max(1, round(work / seconds * factor)) for factor in (0.25, 0.5, 0.9, 1, 1.1, 2, 4)),
        }
    )
    ours = min(
        _makespan(work, max(1, waves), per_wave, stages)
        for waves in (math.floor(work / seconds), math.ceil(work / seconds))
    )
    assert ours <= least * (1 + 1e-9)


def test_waves_grow_while_work_keeps_coming() -> None:
    short = wave_seconds(Backlog(head=1, others=100, run=4), per_wave=0.01, stages=8)
    long = wave_seconds(Backlog(head=1, others=100, run=16), per_wave=0.01, stages=8)
    assert long == pytest.approx(2 * short)


def test_the_other_requests_must_have_work_behind_a_last_wave() -> None:
    seconds = wave_seconds(Backlog(head=0.5, others=1.4, run=1e6), per_wave=0.008, stages=8)
    assert seconds == pytest.approx(COVER * 1.4 / 7)


@given(st.floats(0.01, 10), st.floats(0, 100), st.floats(0, 1000), st.floats(1e-4, 0.1), st.integers(2, 16))
def test_no_wave_is_smaller_than_what_serves_the_first_request_fastest(
    head: float, others: float, done: float, per_wave: float, stages: int
) -> None:
    alone = wave_seconds(Backlog(head=head, others=0, run=head), per_wave=per_wave, stages=stages)
    backlog = Backlog(head=head, others=others, run=head + others + done)
    assert wave_seconds(backlog, per_wave=per_wave, stages=stages) >= alone


def test_no_wave_is_shorter_than_its_host_needs() -> None:
    backlog = Backlog(head=0.1, others=0, run=0.1)
    assert wave_seconds(backlog, per_wave=0.001, stages=8, host=0.05) == pytest.approx(0.049)


def test_a_single_stage_needs_no_small_waves() -> None:
    assert math.isinf(wave_seconds(Backlog(head=1, others=1, run=2), per_wave=0.01, stages=1))
