"""Streams and events with modelled times."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from benchmark.paced import streams
from benchmark.paced.streams import PacedEvent, PacedStream


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that streams see: one element, to be set."""
    shown = [100.0]
    monkeypatch.setattr(streams, "now", lambda: shown[0])
    monkeypatch.setattr(PacedStream, "last", 0.0)
    return shown


def test_work_starts_now_on_an_idle_stream_and_behind_the_queue_otherwise(clock: list[float]) -> None:
    stream = PacedStream()
    assert stream.enqueue(2.0) == (100.0, 102.0)
    clock[0] = 101.0
    assert stream.enqueue(1.0) == (102.0, 103.0)
    clock[0] = 110.0
    assert stream.enqueue(1.0) == (110.0, 111.0)


def test_a_stream_waits_for_another_one_and_for_events(clock: list[float]) -> None:
    first, second = PacedStream(), PacedStream()
    first.enqueue(5.0)
    event = first.record_event()
    first.enqueue(5.0)
    second.wait_event(event)
    assert second.tail == 105.0
    second.wait_stream(first)
    assert second.tail == 110.0
    second.wait_event(event)  # an earlier event takes nothing back
    assert second.enqueue(1.0) == (110.0, 111.0)


def test_an_event_passes_when_what_it_marks_is_done(clock: list[float]) -> None:
    stream, event = PacedStream(), PacedEvent()
    assert event.query()
    stream.enqueue(3.0)
    event.record(stream)
    stream.enqueue(3.0)
    assert event.ready_time == 103.0 and not event.query()
    clock[0] = 103.0
    assert event.query() and not stream.query()


def test_an_event_on_an_idle_stream_passes_now_so_that_intervals_hold_no_idle_time(
    clock: list[float],
) -> None:
    stream = PacedStream()
    stream.enqueue(1.0)
    clock[0] = 200.0
    began = stream.record_event()
    stream.enqueue(2.0)
    assert began.elapsed_time(stream.record_event()) == pytest.approx(2000.0)


def test_only_synchronizing_takes_time() -> None:
    stream = PacedStream()
    begun = time.monotonic()
    stream.enqueue(0.05)
    event = stream.record_event()
    assert time.monotonic() - begun < 0.04
    event.synchronize()
    assert time.monotonic() - begun >= 0.05


@pytest.mark.slow
def test_torch_gives_out_these_classes_and_its_stream_context_works() -> None:
    # In a process of its own: nothing takes them out again.
    text = """
import torch
from benchmark.paced import streams
streams.install()
module = torch.get_device_module("cpu")
side = module.Stream(priority=0)
side.enqueue(0.02)
with module.stream(side):
    event = module.Event()
    event.record(module.current_stream())
assert event.ready_time == side.tail > module.current_stream().tail
module.synchronize()
assert event.query()
"""
    subprocess.run([sys.executable, "-c", text], check=True, timeout=60)
