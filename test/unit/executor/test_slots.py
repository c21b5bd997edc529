from types import SimpleNamespace

import pytest

from sglang_wavepp.executor.slots import Flight, Ring


def flight(wave: int, slot: int) -> Flight:
    return Flight(wave=wave, slot=slot, batch=SimpleNamespace(reqs=[SimpleNamespace(wavepp_key=f"{wave}:r")]))


def test_a_slot_is_free_again_when_its_result_has_come() -> None:
    ring = Ring(2)
    ring.take(flight(1, 0))
    ring.take(flight(2, 1))
    assert ring.free_slot() is None
    assert ring.give_back(1).keys == ("1:r",)
    assert ring.free_slot() == 0 and len(ring) == 1


@pytest.mark.parametrize("slot", [0, 2, -1])
def test_a_slot_that_is_taken_or_missing_is_an_error(slot: int) -> None:
    ring = Ring(2)
    ring.take(flight(1, 0))
    with pytest.raises(RuntimeError, match="slot"):
        ring.take(flight(2, slot))


def test_a_result_for_an_unknown_wave_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="wave 7"):
        Ring(2).give_back(7)


def test_a_flight_remembers_its_requests_after_the_batch_lost_them() -> None:
    launched = flight(1, 0)
    launched.batch.reqs.clear()
    assert launched.keys == ("1:r",)
