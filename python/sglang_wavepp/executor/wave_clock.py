"""How long this rank's device computes a wave, measured without waiting for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol


class Stopwatch(Protocol):
    """One forward."""

    def stop(self) -> None:
        """The forward has been launched, and nothing behind it."""

    def seconds(self) -> float | None:
        """How long the device computed it, None while it does."""

    def host_seconds(self) -> float:
        """How much processor time of the launching thread was the device's computing."""


class HostStopwatch:
    """For devices that compute while they launch."""

    def __init__(self) -> None:
        self._started, self._thread = time.perf_counter(), time.thread_time()
        self._seconds: float | None = None
        self._host = 0.0

    def stop(self) -> None:
        """See `Stopwatch`."""
        self._seconds = time.perf_counter() - self._started
        self._host = time.thread_time() - self._thread

    def seconds(self) -> float | None:
        """See `Stopwatch`."""
        return self._seconds

    def host_seconds(self) -> float:
        """See `Stopwatch`. Less than `seconds` where the thread waited for a core or for other threads."""
        return self._host


class EventStopwatch:
    """For devices with streams: two events on the stream of the forwards, around one of them.

    Args:
        device_module: such as `torch.cuda`; the current stream is that of the forwards.
    """

    def __init__(self, device_module: Any) -> None:
        self._began = device_module.Event(enable_timing=True)
        self._ended = device_module.Event(enable_timing=True)
        self._stream = device_module.current_stream()
        self._began.record(self._stream)

    def stop(self) -> None:
        """See `Stopwatch`."""
        self._ended.record(self._stream)

    def seconds(self) -> float | None:
        """See `Stopwatch`."""
        if not self._ended.query():
            return None
        return float(self._began.elapsed_time(self._ended)) / 1e3

    def host_seconds(self) -> float:
        """See `Stopwatch`: none, the device computes beside the host."""
        return 0.0


def stopwatches(device_module: Any) -> Callable[[], Stopwatch]:
    """What starts a stopwatch on this device: by its events if they have a time, else by the host's clock."""
    if hasattr(device_module.Event, "elapsed_time"):
        return lambda: EventStopwatch(device_module)
    return HostStopwatch
