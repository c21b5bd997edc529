"""Takes the time of single calls twice: the processor time of the calling thread, and the wall time, which also
counts what it waits for a mutex or for the interpreter lock that another thread holds."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType


@dataclass(frozen=True, slots=True)
class Times:
    """Of some calls, in nanoseconds; one entry per call in each."""

    cpu: tuple[int, ...]
    wall: tuple[int, ...]

    def __add__(self, other: Times) -> Times:
        return Times(self.cpu + other.cpu, self.wall + other.wall)

    @staticmethod
    def of(calls: Iterable[Callable[[], object]]) -> Times:
        """Make the calls one after the other."""
        cpu, wall = [], []
        for call in calls:
            wall_start, cpu_start = time.perf_counter_ns(), time.thread_time_ns()
            call()
            cpu.append(time.thread_time_ns() - cpu_start)
            wall.append(time.perf_counter_ns() - wall_start)
        return Times(tuple(cpu), tuple(wall))


def quantile(nanoseconds: Iterable[int], share: float) -> int:
    """The smallest of the values that at least this share of them does not exceed.

    Raises:
        ValueError: there are none.
    """
    ordered = sorted(nanoseconds)
    if not ordered:
        raise ValueError("no times were taken")
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


class BusyLoop:
    """A thread that never waits, as the executor of a loaded server at its worst, while the ``with`` block runs.

    Args:
        turn: what it does over and over, so that it also takes the mutexes that an executor takes.
    """

    def __init__(self, turn: Callable[[], object]) -> None:
        self._turn = turn
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="LOOP", daemon=True)
        self.turns = 0

    def __enter__(self) -> BusyLoop:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                schedule_in_python()
                self._turn()
                self.turns += 1
        except BaseException as failure:  # raised again where the loop was started
            self._failure = failure


def schedule_in_python(requests: int = 64) -> int:
    """A quarter of a millisecond of what a scheduler does without waiting: dictionaries, lists, sorting."""
    queue = [
        {"rid": i * 40503 % 64, "length": i * 2654435761 % 8192, "priority": i % 7} for i in range(requests)
    ]
    queue.sort(key=lambda each: (each["priority"], each["rid"]))
    lanes: dict[int, list[int]] = {}
    for each in queue:
        lanes.setdefault(each["length"] % 8, []).append(each["length"])
    return sum(max(lane) for lane in lanes.values())


@dataclass(frozen=True, slots=True)
class Twice:
    """The same calls without and beside a `BusyLoop`."""

    alone: Times
    beside: Times

    def __add__(self, other: Twice) -> Twice:
        return Twice(self.alone + other.alone, self.beside + other.beside)

    @staticmethod
    def of(calls: Callable[[], Iterable[Callable[[], object]]], turn: Callable[[], object]) -> Twice:
        """Make them alone, then beside a thread that takes turns.

        Args:
            calls: gives them anew each time.
            turn: of the `BusyLoop`.
        """
        alone = Times.of(calls())
        with BusyLoop(turn):
            return Twice(alone, Times.of(calls()))

    def cpu(self, share: float) -> int:
        """Quantile of the thread's processor time without another thread, in nanoseconds."""
        return quantile(self.alone.cpu, share)

    def wall(self, share: float) -> int:
        """Quantile of the wall time beside the other thread, in nanoseconds."""
        return quantile(self.beside.wall, share)


@dataclass
class TimedMutex:
    """A reentrant mutex that notes how long it was held, in nanoseconds of its holder."""

    cpu: list[int] = field(default_factory=list)
    wall: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._mutex = threading.RLock()
        self._depth = 0
        self._since = (0, 0)

    def __enter__(self) -> TimedMutex:
        self._mutex.acquire()
        self._depth += 1
        if self._depth == 1:
            self._since = (time.thread_time_ns(), time.perf_counter_ns())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._depth == 1:
            cpu, wall = time.thread_time_ns(), time.perf_counter_ns()
            self.cpu.append(cpu - self._since[0])
            self.wall.append(wall - self._since[1])
        self._depth -= 1
        self._mutex.release()

    def taken(self) -> Times:
        """What was noted since the last call."""
        times = Times(tuple(self.cpu), tuple(self.wall))
        self.cpu.clear()
        self.wall.clear()
        return times
