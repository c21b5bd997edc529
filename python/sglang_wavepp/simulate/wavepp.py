"""WavePP's LOOP over the simulated pipeline, with the server's own planners."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator

from sglang_wavepp.planning.spans import PlannedSpan, Remainder
from sglang_wavepp.planning.supply import Supply, WavePlanner
from sglang_wavepp.simulate.arrivals import Arrivals
from sglang_wavepp.simulate.machine import Machine
from sglang_wavepp.simulate.outcome import Outcome, Wave
from sglang_wavepp.simulate.workload import Workload

Measured = Callable[[tuple[PlannedSpan, ...], float], None]


class WaveppRun:
    """One run. Rank 0 plans when a slot of its ring of `2P` is free; each other stage waits only for its inputs.

    Args:
        machine: the pipeline.
        workload: what is asked of it.
        planner: of the server, used for this run only.
        measured: called with the spans of each wave and the seconds of its forward on the first stage, when its
            result arrives.
    """

    def __init__(
        self,
        machine: Machine,
        workload: Workload,
        planner: WavePlanner,
        *,
        measured: Measured | None = None,
    ) -> None:
        self._measured = measured
        self._machine = machine
        self._jobs = workload.jobs
        self._workload = workload
        self._planner = planner
        self._arrivals = Arrivals(workload)
        self._ring = 2 * len(machine.stages)
        self._waiting: deque[int] = deque()
        self._waiting_tokens = 0
        self._entering: deque[tuple[float, int]] = deque()
        self._entering_tokens = 0
        self._queue: dict[str, list[int]] = {}
        self._unplanned = 0
        self._flying: dict[int, tuple[PlannedSpan, ...]] = {}
        self._results: list[tuple[float, int]] = []
        self._waves: list[Wave] = []
        self._device = [0.0] * len(machine.stages)
        self._hosts = [0.0] * len(machine.stages)

    def run(self) -> Outcome:
        """Serve the workload to its end."""
        now = 0.0
        ask: float | None = None
        while True:
            self._absorb(now)
            if not self._arrivals.left:
                break
            planned = False
            if self._queue and len(self._flying) < self._ring and self._hosts[0] <= now:
                plan = self._planner.plan(self._supply(now))
                ask = plan.ask_again
                if plan.spans:
                    self._launch(plan.spans, now)
                    planned = True
            if not planned or self._hosts[0] > now:
                now = self._next_event(now, ask)
                ask = None
        return Outcome.of(self._workload, self._arrivals, self._waves)

    def _next_event(self, now: float, ask: float | None) -> float:
        times = [self._results[0][0]] if self._results else []
        if self._entering:
            times.append(self._entering[0][0])
        arrival = self._arrivals.next_time()
        if arrival is not None:
            times.append(arrival)
        if self._hosts[0] > now:
            times.append(self._hosts[0])
        if ask is not None:
            times.append(ask)
        later = [time for time in times if time > now]
        if not later:
            raise RuntimeError("the planner waits, and nothing will happen")
        return min(later)

    def _absorb(self, now: float) -> None:
        while self._results and self._results[0][0] <= now:
            time, number = heapq.heappop(self._results)
            wave = self._waves[number]
            if self._measured is not None:
                self._measured(wave.spans, wave.ends[0] - wave.starts[0])
            for span in self._flying.pop(number):
                job = int(span.rid)
                if span.end == self._jobs[job].prompt:
                    self._arrivals.end(job, time)
        for number in self._arrivals.take(now):
            self._waiting.append(number)
            self._waiting_tokens += self._jobs[number].suffix
        most = self._machine.max_tokens
        ahead = self._machine.admitted_waves * most
        while True:
            while self._entering and self._entering[0][0] <= now:
                self._admit(self._entering.popleft()[1])
            weight = sum(min(prompt - start, most) for start, prompt in self._queue.values())
            weight += sum(min(self._jobs[number].suffix, most) for _, number in self._entering)
            if not self._waiting or weight >= ahead:
                return
            number = self._waiting.popleft()
            suffix = self._jobs[number].suffix
            self._waiting_tokens -= suffix
            self._entering_tokens += suffix
            self._entering.append((now + self._machine.admission, number))

    def _admit(self, number: int) -> None:
        job = self._jobs[number]
        self._entering_tokens -= job.suffix
        self._queue[str(number)] = [job.cached, job.prompt]
        self._unplanned += job.suffix

    def _remainders(self) -> Iterator[Remainder]:
        for rid, (start, prompt) in self._queue.items():
            yield Remainder(rid=rid, start=start, prompt=prompt)

    def _supply(self, now: float) -> Supply:
        return Supply(
            queue=self._remainders(),
            unplanned=self._unplanned,
            flying=tuple(self._flying.values()),
            arriving_tokens=self._waiting_tokens + self._entering_tokens,
            arriving_requests=len(self._waiting) + len(self._entering),
            now=now,
        )

    def _launch(self, spans: tuple[PlannedSpan, ...], now: float) -> None:
        machine = self._machine
        tokens = 0
        for span in spans:
            item = self._queue.get(span.rid)
            if item is None or item[0] != span.start or span.end > item[1]:
                raise RuntimeError(f"{span} doesn't start where its request is")
            complaint = machine.grid.complaint(start=span.start, length=span.length, prompt=item[1])
            if complaint is not None:
                raise RuntimeError(complaint)
            item[0] = span.end
            tokens += span.length
            if span.end == item[1]:
                del self._queue[span.rid]
        if tokens > machine.max_tokens or len(spans) > machine.max_requests:
            raise RuntimeError(f"a wave of {tokens} tokens and {len(spans)} requests is too large")
        self._unplanned -= tokens
        seconds = machine.seconds(spans)
        half = machine.host / 2
        ready = now
        starts, ends = [], []
        for stage, factor in enumerate(machine.stages):
            begun = max(
                self._hosts[stage], now
            )  # the command is there; the host prepares while the data comes
            prepared = begun + half
            start = max(ready, prepared, self._device[stage])
            self._hosts[stage] = max(prepared, ready) + half
            self._device[stage] = end = start + seconds * factor
            ready = end + machine.transfer * tokens
            starts.append(start)
            ends.append(end)
        number = len(self._waves)
        self._flying[number] = spans
        heapq.heappush(self._results, (ends[-1] + machine.latency, number))
        self._waves.append(Wave(spans=spans, launched=now, starts=tuple(starts), ends=tuple(ends)))
