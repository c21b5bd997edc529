import math
from dataclasses import replace

import pytest

from sglang_wavepp.simulate.arrivals import Arrivals
from sglang_wavepp.simulate.records import workload_of
from sglang_wavepp.simulate.workload import Job, Phase, Workload, closed, opened, phases


def test_names_say_length_and_reuse() -> None:
    cold, reuse, mixed = (closed(name, 4) for name in ("cold65", "reuse131", "mixed262"))
    assert set(cold.jobs) == {Job(cached=0, prompt=65_536)}
    assert all(job.suffix / job.prompt == pytest.approx(0.1, rel=0.01) for job in reuse.jobs)
    assert [job.cached > 0 for job in mixed.jobs] == [False, True] * 4
    assert cold.tokens == 8 * 65_536
    assert all(job.cached % 64 == 0 for job in reuse.jobs)


@pytest.mark.parametrize("page", [1, 64, 100, 128, 4096])
def test_a_cached_prefix_is_whole_pages_of_any_size(page: int) -> None:
    workloads = (
        closed("reuse131", 1, page=page),
        closed("mixed65", 1, page=page),
        phases(page=page),
        opened("reuse262", rate=1, count=4, page=page),
    )
    cached = [job.cached for workload in workloads for job in workload.jobs if job.cached]
    assert len(cached) > 80
    assert all(tokens % page == 0 for tokens in cached)


@pytest.mark.parametrize("name", ["warm131", "cold7", "reuse"])
def test_unknown_names_are_errors(name: str) -> None:
    with pytest.raises(ValueError, match="unknown workload"):
        closed(name, 1)


def test_a_closed_loop_keeps_its_concurrency() -> None:
    arrivals = Arrivals(closed("cold65", 3))
    assert arrivals.take(0.0) == [0, 1, 2]
    assert arrivals.next_time() is None
    arrivals.end(1, 5.0)
    assert arrivals.next_time() == 5.0
    assert arrivals.take(4.9) == []
    assert arrivals.take(5.0) == [3]
    assert arrivals.left == 5


def test_the_first_requests_may_come_one_after_the_other() -> None:
    arrivals = Arrivals(replace(closed("cold65", 3), stagger=0.5))
    assert [arrivals.take(time) for time in (0.0, 0.4, 0.5, 1.0)] == [[0], [], [1], [2]]
    arrivals.end(0, 5.0)
    assert arrivals.take(5.0) == [3]


def test_phases_raise_and_lower_the_concurrency() -> None:
    workload = Workload(
        name="w",
        concurrency=3,
        jobs=(Job(0, 10),) * 6,
        phases=(Phase(1, 2), Phase(3, 3), Phase(1, 1)),
    )
    arrivals = Arrivals(workload)
    assert arrivals.take(0.0) == [0]
    arrivals.end(0, 1.0)
    assert arrivals.take(1.0) == [1, 2, 3]  # the last one of a phase is sent, so the next phase begins
    arrivals.end(1, 2.0)
    assert arrivals.take(2.0) == [4]
    arrivals.end(2, 3.0)
    arrivals.end(3, 3.0)
    assert arrivals.take(3.0) == []
    arrivals.end(4, 4.0)
    assert arrivals.take(4.0) == [5]


def test_the_phases_workload_goes_up_and_down() -> None:
    assert [phase.concurrency for phase in phases().phases] == [1, 4, 32, 4, 1]


def test_an_open_loop_sends_whatever_has_ended() -> None:
    workload = opened("mixed131", rate=2.0, count=400)
    assert list(workload.times) == sorted(workload.times)
    assert workload.times[-1] == pytest.approx(200, rel=0.2)
    assert opened("mixed131", rate=2.0, count=400) == workload
    arrivals = Arrivals(workload)
    assert len(arrivals.take(1e9)) == 400


@pytest.mark.parametrize("rate", [0, -1, math.nan, math.inf])
def test_an_open_loop_needs_a_rate(rate: float) -> None:
    with pytest.raises(ValueError, match="rate"):
        opened("cold65", rate=rate, count=1)


@pytest.mark.parametrize(("concurrency", "rounds"), [(0, 2), (-1, 2), (4, 0)])
def test_a_closed_loop_needs_a_request_outstanding(concurrency: int, rounds: int) -> None:
    with pytest.raises(ValueError, match="outstanding"):
        closed("cold65", concurrency, rounds=rounds)


def test_phases_need_a_round_and_have_their_own_concurrencies() -> None:
    with pytest.raises(ValueError, match="round"):
        phases(rounds=0)
    with pytest.raises(ValueError, match="not 4"):
        workload_of("phases", 4)


def test_requests_that_never_arrive_are_an_error() -> None:
    with pytest.raises(ValueError, match="arrive"):
        Workload(name="w", concurrency=1, jobs=(Job(0, 1),) * 2, phases=(Phase(1, 1),))
