from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch

from sglang_wavepp.executor.wave_clock import EventStopwatch, HostStopwatch, stopwatches
from sglang_wavepp.executor.wave_costs import WaveCosts
from sglang_wavepp.planning.cost import GUESS, WaveCost
from sglang_wavepp.planning.grid import SpanGrid
from sglang_wavepp.planning.mpu import MpuPlanner
from sglang_wavepp.planning.spans import PlannedSpan

pytestmark = pytest.mark.unit

TRUE = WaveCost(per_wave=8e-3, per_token=17.5e-6, per_pair=1.4e-10)


class Measured:
    def __init__(self, seconds: float | None, host: float = 0.0) -> None:
        self._seconds, self._host = seconds, host

    def stop(self) -> None: ...

    def seconds(self) -> float | None:
        return self._seconds

    def host_seconds(self) -> float:
        return self._host


def planner() -> MpuPlanner:
    return MpuPlanner(max_tokens=4096, min_tokens=256, grid=SpanGrid(page=64), max_requests=8, stages=4)


def wave(number: int) -> tuple[PlannedSpan, ...]:
    return (PlannedSpan("a", 512 * number, 256 << number % 4),)


def play(costs: WaveCosts, *, host: float = 0.0) -> None:
    for number in range(60):
        spans = wave(number)
        costs.launched(number, host)
        costs.landed(number, spans, Measured(TRUE.of(spans)), host)


def test_the_planner_guesses_until_waves_have_been_measured() -> None:
    asking = planner()
    costs = WaveCosts(asking)
    assert asking.cost is GUESS
    play(costs, host=1e-3)
    assert asking.cost is not GUESS and asking.cost is not None
    assert asking.cost.of(wave(3)) == pytest.approx(TRUE.of(wave(3)), rel=0.02)
    assert asking.host == pytest.approx(2e-3)


def test_a_host_that_computes_the_forward_itself_is_not_charged_for_it() -> None:
    asking = planner()
    costs = WaveCosts(asking)
    for number in range(60):
        spans = wave(number)
        # The thread waited for a core half of the time that the forward took.
        costs.launched(number, TRUE.of(spans) / 2 + 1e-3)
        costs.landed(number, spans, Measured(TRUE.of(spans), TRUE.of(spans) / 2), 1e-3)
    assert asking.host == pytest.approx(2e-3)


@pytest.mark.parametrize("synchronous", [False, True])
def test_waves_that_are_launched_together_are_charged_one_by_one(synchronous: bool) -> None:
    """A ring of waves is launched before the first result comes."""
    asking = planner()
    costs = WaveCosts(asking)
    ring = 8
    for first in range(0, 64, ring):
        numbers = range(first, first + ring)
        for number in numbers:
            costs.launched(number, 3e-3 + (TRUE.of(wave(number)) if synchronous else 0.0))
        for number in numbers:
            device = TRUE.of(wave(number))
            costs.landed(number, wave(number), Measured(device, device if synchronous else 0.0), 1e-3)
    assert asking.host == pytest.approx(4e-3)


def test_a_first_wave_that_takes_long_is_one_among_others() -> None:
    asking = planner()
    costs = WaveCosts(asking)
    costs.launched(60, 0.5)
    costs.landed(60, wave(3), Measured(TRUE.of(wave(3))), 0.0)
    play(costs, host=1e-3)
    assert asking.host < 5e-3


def test_what_was_not_measured_teaches_nothing() -> None:
    asking = planner()
    costs = WaveCosts(asking)
    for _ in range(60):
        for measured in (None, Measured(None), Measured(0.0)):
            costs.launched(1, 0.0)
            costs.landed(1, wave(1), measured, 0.0)
    assert asking.cost is GUESS


class Event:
    """Of a device that has done `Event.done` marks so far, one a millisecond."""

    marks = 0
    done = 0

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing

    def record(self, stream: str) -> None:
        assert stream == "forwards"
        Event.marks += 1
        self.number = Event.marks

    def query(self) -> bool:
        return Event.done >= self.number

    def elapsed_time(self, later: Event) -> float:
        return float(later.number - self.number)


def test_a_device_with_events_is_timed_by_them_and_never_waited_for() -> None:
    device = SimpleNamespace(Event=Event, current_stream=lambda: "forwards")
    watch = stopwatches(device)()
    assert isinstance(watch, EventStopwatch)
    watch.stop()
    assert watch.seconds() is None
    Event.done = 2
    assert watch.seconds() == 1e-3 and watch.host_seconds() == 0.0


def test_a_device_without_is_timed_by_the_host() -> None:
    watch = stopwatches(SimpleNamespace(Event=object))()
    assert isinstance(watch, HostStopwatch)
    assert watch.seconds() is None
    time.sleep(0.002)
    watch.stop()
    measured = watch.seconds()
    assert measured is not None and measured >= 0.002
    assert 0 <= watch.host_seconds() < measured, "it slept"
    time.sleep(0.002)
    assert watch.seconds() == measured


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_forward_on_a_gpu_is_timed_by_its_stream_alone() -> None:
    """Work that another stream does meanwhile, and the time before the launch, don't count."""
    other, forwards = torch.cuda.Stream(), torch.cuda.Stream()
    matrix = torch.randn(4096, 4096, device="cuda")
    with torch.cuda.stream(forwards):
        watches = []
        for times in (1, 8):
            time.sleep(0.05)
            watch = stopwatches(torch.cuda)()
            for _ in range(times):
                matrix @ matrix
            watch.stop()
            watches.append(watch)
    with torch.cuda.stream(other):
        matrix @ matrix
    torch.cuda.synchronize()
    short, long = (watch.seconds() for watch in watches)
    assert short is not None and long is not None and short < long < 0.05
