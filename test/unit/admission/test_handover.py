from __future__ import annotations

import select

import pytest
from unit.admission.wording import record

from sglang_wavepp.admission.leader import Admitted
from sglang_wavepp.plane.wake import Wake
from sglang_wavepp.rank.handover import AbortAsk, CapacityAsk, FenceAsk, Handover

pytestmark = pytest.mark.unit


def is_signalled(wake: object) -> bool:
    return bool(select.select([wake], [], [], 0)[0])  # type: ignore[list-item]


@pytest.fixture
def handover() -> Handover:
    return Handover(wave_wake=Wake(), loop_wake=Wake())


def test_asks_arrive_in_order_and_wake_the_admission_thread(handover: Handover) -> None:
    assert not is_signalled(handover.wave_wake)
    a = record("a")
    handover.announce(a)
    assert is_signalled(handover.wave_wake)
    handover.abort("a")
    handover.fence(7)
    handover.capacity_changed()
    assert handover.pop_asks() == [a, AbortAsk("a"), FenceAsk(7), CapacityAsk()]
    assert handover.pop_asks() == []
    handover.wave_wake.clear()
    handover.capacity_changed()
    assert is_signalled(handover.wave_wake), "the first ask after a fetch must wake"


def test_planning_wakes_the_admission_thread_only_when_it_had_enough(handover: Handover) -> None:
    handover.answer(admitted=(Admitted("a", 0, 4, suffix=6), Admitted("b", 0, 0, suffix=10)))
    assert handover.unplanned(sated_at=17) == 16
    handover.settled(6)
    assert not is_signalled(handover.wave_wake)
    assert handover.unplanned(sated_at=10) == 10
    handover.settled(1)
    assert is_signalled(handover.wave_wake)
    handover.wave_wake.clear()
    handover.settled(1)
    assert not is_signalled(handover.wave_wake), "it reads anew before it has enough again"
    assert handover.unplanned(sated_at=10) == 8


def test_a_long_request_counts_no_more_than_agreed() -> None:
    handover = Handover(wave_wake=Wake(), loop_wake=Wake(), counted=10)
    handover.answer(admitted=(Admitted("a", 0, 0, suffix=1000), Admitted("b", 0, 0, suffix=4)))
    assert handover.unplanned_tokens == handover.unplanned(sated_at=100) == 14


def test_answers_wake_the_loop_and_nothing_does_not(handover: Handover) -> None:
    handover.answer()
    assert not is_signalled(handover.loop_wake)
    handover.answer(installed=(record("a"),), admitted=(Admitted("b", 0, 4),), withdrawn=("c",))
    assert is_signalled(handover.loop_wake)
    assert handover.has_changes
    assert handover.pop_admitted() == [Admitted("b", 0, 4)]
    installed, withdrawn = handover.pop_changes()
    assert ([r.rid for r in installed], withdrawn) == (["a"], ["c"])
    assert not handover.has_changes
    assert (handover.pop_changes(), handover.pop_admitted(), handover.pop_withdrawn()) == (([], []), [], [])


def test_an_abort_that_crosses_the_admission_is_not_lost(handover: Handover) -> None:
    handover.answer(admitted=(Admitted("a", 0, 4), Admitted("b", 0, 4)))
    handover.abort("a")
    assert [(x.rid, x.aborted) for x in handover.pop_admitted()] == [("a", True), ("b", False)]
    handover.answer(admitted=(Admitted("a", 1, 4),))
    assert not handover.pop_admitted()[0].aborted, "another request of the same id"


def test_a_withdrawn_abort_is_over(handover: Handover) -> None:
    handover.abort("a")
    handover.answer(withdrawn=("a",))
    assert handover.pop_withdrawn() == ["a"]
    handover.answer(admitted=(Admitted("a", 1, 4),))
    assert not handover.pop_admitted()[0].aborted


def test_the_last_applied_command_is_told(handover: Handover) -> None:
    assert handover.last_applied_command == 0
    handover.applied_command(9)
    assert handover.last_applied_command == 9
