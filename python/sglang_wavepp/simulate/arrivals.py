"""Sends the requests of a workload, in a closed or an open loop."""

from __future__ import annotations

from collections import deque

from sglang_wavepp.simulate.workload import Workload


class Arrivals:
    """The clients. In a closed loop, a request is sent when an earlier one has ended.

    Attributes:
        sent_at: when each request was sent, in seconds.
        ended_at: when its result reached its client.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._allowed = [phase.concurrency for phase in workload.phases for _ in range(phase.requests)]
        self._next = 0
        self._outstanding = 0
        self._due: deque[tuple[float, int]] = deque()
        count = len(workload.jobs)
        self.sent_at = [0.0] * count
        self.ended_at = [0.0] * count
        self.left = count
        if workload.times:
            for number, time in enumerate(workload.times):
                self._send(number, time)
        else:
            self._refill(0.0, stagger=workload.stagger)

    def next_time(self) -> float | None:
        """When the next request that has been sent arrives, None when a request must end first."""
        return self._due[0][0] if self._due else None

    def take(self, now: float) -> list[int]:
        """Numbers of the requests that have arrived by now, in order."""
        taken = []
        while self._due and self._due[0][0] <= now:
            taken.append(self._due.popleft()[1])
        return taken

    def end(self, number: int, now: float) -> None:
        """A client has its answer."""
        self.ended_at[number] = now
        self.left -= 1
        if not self._workload.times:
            self._outstanding -= 1
            self._refill(now)

    def _refill(self, now: float, *, stagger: float = 0.0) -> None:
        while self._next < len(self._allowed) and self._outstanding < self._allowed[self._next]:
            self._outstanding += 1
            self._send(self._next, now + stagger * self._next)
            self._next += 1

    def _send(self, number: int, time: float) -> None:
        self.sent_at[number] = time
        self._due.append((time, number))
