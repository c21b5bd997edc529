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
    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds

    def stop(self) -> None: ...

    def seconds(self) -> float | None:
        return self._seconds


def planner() -> MpuPlanner:
    return MpuPlanner(max_tokens=4096, min_tokens=256, grid=SpanGrid(page=64), max_requests=8, stages=4)


def wave(number: int) -> tuple[PlannedSpan, ...]:
    return (PlannedSpan("a", 512 * number, 256 << number % 4),)


def play(costs: WaveCosts, *, host: float = 0.0) -> None:
    for number in range(60):
        spans = wave(number)
        costs.spent(host)
        costs.landed(spans, Measured(TRUE.of(spans)))


def test_the_planner_guesses_until_waves_have_been_measured() -> None:
    asking = planner()
    costs = WaveCosts(asking, synchronous=False)
    assert asking.cost is GUESS and not costs.known
    play(costs, host=2e-3)
    assert costs.known and asking.cost is not None
    assert asking.cost.of(wave(3)) == pytest.approx(TRUE.of(wave(3)), rel=0.02)
    assert asking.host == pytest.approx(2e-3)


def test_a_host_that_computes_the_forward_itself_is_not_charged_for_it() -> None:
    asking = planner()
    costs = WaveCosts(asking, synchronous=True)
    for number in range(60):
        spans = wave(number)
        costs.spent(1e-3)
        costs.spent(TRUE.of(spans) + 1e-3)
        costs.landed(spans, Measured(TRUE.of(spans)))
    assert asking.host == pytest.approx(2e-3)


def test_what_was_not_measured_teaches_nothing() -> None:
    asking = planner()
    costs = WaveCosts(asking, synchronous=False)
    for _ in range(60):
        costs.landed(wave(1), None)
        costs.landed(wave(1), Measured(None))
        costs.landed(wave(1), Measured(0.0))
    assert not costs.known


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
    assert watch.seconds() == 1e-3


def test_a_device_without_is_timed_by_the_host() -> None:
    watch = stopwatches(SimpleNamespace(Event=object))()
    assert isinstance(watch, HostStopwatch)
    assert watch.seconds() is None
    time.sleep(0.002)
    watch.stop()
    measured = watch.seconds()
    assert measured is not None and measured >= 0.002
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
