"""Streams and events that carry modelled times: an asynchronous device on which nothing is computed.

SGLang asks ``torch.cpu`` for streams and events where its model lies on the CPU, and gets classes that do nothing.
These take their place. A stream knows when its queue will be done, an event when what it marks will have happened,
and only a host that synchronizes waits for that.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmark.paced.clock import now, sleep_until


class PacedStream:
    """A queue of work. ``tail``: when all work queued so far will be done, in seconds of the clock."""

    last = 0.0
    """When all work of all streams of this process will be done."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.tail = 0.0

    def enqueue(self, seconds: float) -> tuple[float, float]:
        """Queue work that takes that long; its start and end."""
        start = max(self.tail, now())
        self.tail = start + seconds
        PacedStream.last = max(PacedStream.last, self.tail)
        return start, self.tail

    def wait_until(self, moment: float) -> None:
        """Let work that is queued from now on start no earlier than that."""
        self.tail = max(self.tail, moment)

    def wait_stream(self, other: PacedStream) -> None:
        """Let work that is queued from now on start after all that is queued on the other stream."""
        self.wait_until(other.tail)

    def wait_event(self, event: PacedEvent) -> None:
        """Let work that is queued from now on start after the event."""
        self.wait_until(event.ready_time)

    def record_event(self, event: PacedEvent | None = None) -> PacedEvent:
        """Mark the end of what is queued so far."""
        marked = PacedEvent() if event is None else event
        marked.record(self)
        return marked

    def synchronize(self) -> None:
        """Wait until the queue is done."""
        sleep_until(self.tail)

    def query(self) -> bool:
        """Whether the queue is done."""
        return now() >= self.tail


class PacedEvent:
    """A mark in a stream. ``ready_time``: when it will have passed; an event that was never recorded has passed."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.ready_time = 0.0

    @classmethod
    def at(cls, moment: float) -> PacedEvent:
        """An event that passes at a moment which another process has told."""
        event = cls()
        event.ready_time = moment
        return event

    def record(self, stream: PacedStream | None = None) -> None:
        """Mark the end of what is queued on the stream, the current one when None."""
        # On an idle stream the mark passes at once, not when its last work ended.
        self.ready_time = max((current_stream() if stream is None else stream).tail, now())

    def wait(self, stream: PacedStream | None = None) -> None:
        """Let work that the stream gets from now on start after this event."""
        (current_stream() if stream is None else stream).wait_event(self)

    def synchronize(self) -> None:
        """Wait until the event has passed, letting other threads run."""
        sleep_until(self.ready_time)

    def query(self) -> bool:
        """Whether the event has passed."""
        return now() >= self.ready_time

    def elapsed_time(self, later: PacedEvent) -> float:
        """Milliseconds from this event to a later one."""
        return (later.ready_time - self.ready_time) * 1e3


def current_stream() -> PacedStream:
    """The stream that is current in this process."""
    stream: PacedStream = torch.cpu.current_stream()
    return stream


def synchronize(device: Any = None) -> None:
    """Wait until the work of all streams of this process is done."""
    sleep_until(PacedStream.last)


def install() -> None:
    """Put these classes in the place of ``torch.cpu``'s."""
    for name, value in (("Stream", PacedStream), ("Event", PacedEvent), ("synchronize", synchronize)):
        setattr(torch.cpu, name, value)
    default = PacedStream()
    for name in ("_default_cpu_stream", "_current_stream"):
        setattr(torch.cpu, name, default)
