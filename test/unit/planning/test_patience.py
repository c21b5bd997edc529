from sglang_wavepp.planning.patience import Patience


def test_a_wave_waits_once_and_no_longer_than_the_deadline() -> None:
    patience = Patience(deadline=0.5)
    assert patience.wait(("a", 0), 10.0) == 10.5
    assert patience.wait(("a", 0), 10.1) is None


def test_the_next_wave_of_a_request_may_wait_again() -> None:
    patience = Patience(deadline=0.5)
    patience.wait(("a", 0), 10.0)
    assert patience.wait(("a", 64), 11.0) == 11.5


def test_without_a_deadline_nothing_waits() -> None:
    assert Patience(deadline=0.0).wait(("a", 0), 10.0) is None
