import pytest

from sglang_wavepp.planning.backlog import Ledger
from sglang_wavepp.planning.cost import WaveCost
from sglang_wavepp.planning.spans import PlannedSpan, Remainder
from sglang_wavepp.planning.supply import Supply

COST = WaveCost(per_wave=0, per_token=1.0)
A, B = Remainder("a", 0, 100), Remainder("b", 0, 50)


def test_requests_count_whole_until_they_have_ended() -> None:
    ledger = Ledger()
    first = ledger.read(Supply(queue=(A, B), unplanned=150), (A, B), COST)
    assert (first.head, first.others, first.run) == (100, 50, 150)
    wave = (PlannedSpan("a", 0, 60),)
    ledger.launched(wave)
    rest = Remainder("a", 60, 100)
    second = ledger.read(Supply(queue=(rest, B), unplanned=90, flying=(wave,)), (rest, B), COST)
    assert (second.head, second.others, second.run) == (100, 50, 150)
    last = (PlannedSpan("a", 60, 40),)
    ledger.launched(last)
    third = ledger.read(Supply(queue=(B,), unplanned=50, flying=(wave, last)), (B,), COST)
    assert (third.head, third.others, third.run) == (50, 100, 150)
    fourth = ledger.read(Supply(queue=(B,), unplanned=50, flying=((PlannedSpan("x", 0, 1),),)), (B,), COST)
    assert (fourth.head, fourth.others, fourth.run) == (50, 0, 150)


def test_a_pipeline_that_was_empty_starts_anew() -> None:
    ledger = Ledger()
    ledger.read(Supply(queue=(A,), unplanned=100), (A,), COST)
    ledger.launched((PlannedSpan("a", 0, 100),))
    assert ledger.read(Supply(queue=(B,), unplanned=50), (B,), COST).run == 50


def test_work_that_was_not_looked_at_is_as_expensive_as_the_rest() -> None:
    cost = WaveCost(per_wave=0, per_token=1.0, per_pair=0.02)
    backlog = Ledger().read(Supply(queue=(A,), unplanned=300, arriving_tokens=100), (A,), cost)
    assert backlog.head == pytest.approx(200)
    assert backlog.others == pytest.approx(600)
    assert backlog.run == pytest.approx(800)


def test_what_is_done_is_priced_with_the_cost_of_the_moment() -> None:
    ledger = Ledger()
    ledger.read(Supply(queue=(A,), unplanned=100), (A,), COST)
    wave = (PlannedSpan("a", 0, 60),)
    ledger.launched(wave)
    rest = Remainder("a", 60, 100)
    dearer = WaveCost(per_wave=0, per_token=2.0, per_pair=0.1)
    backlog = ledger.read(Supply(queue=(rest,), unplanned=40, flying=(wave,)), (rest,), dearer)
    assert backlog.head == backlog.run == pytest.approx(2 * 100 + 0.1 * 100 * 100 / 2)
