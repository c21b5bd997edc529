"""Stock SGLang's batches on a loop that has no faults: the most that its policy allows.

Rank 0 launches when the wave that had the slot before has ended, and no stage's host waits for another's.
"""

from __future__ import annotations

import heapq

from sglang_wavepp.simulate.arrivals import Arrivals
from sglang_wavepp.simulate.chunks import StockQueue
from sglang_wavepp.simulate.machine import Machine
from sglang_wavepp.simulate.outcome import Outcome, Wave
from sglang_wavepp.simulate.workload import Workload


def run_ring(machine: Machine, workload: Workload, queue: StockQueue, slots: int) -> Outcome:
    """One run with `slots` waves in flight, at most."""
    arrivals, jobs = Arrivals(workload), workload.jobs
    waves: list[Wave] = []
    results: list[tuple[float, int]] = []
    device = [0.0] * len(machine.stages)
    now = 0.0
    while True:
        while results and results[0][0] <= now:
            time, number = heapq.heappop(results)
            for span in waves[number].spans:
                job = int(span.rid)
                if span.end == jobs[job].prompt:
                    arrivals.end(job, time)
        if not arrivals.left:
            return Outcome.of(workload, arrivals, waves)
        for number in arrivals.take(now):
            queue.add(number, jobs[number])
        spans = queue.form() if len(results) < slots else ()
        if not spans:
            times = [results[0][0]] if results else []
            arrival = arrivals.next_time()
            if arrival is not None:
                times.append(arrival)
            now = min(times)
            continue
        seconds, ready = machine.seconds(spans), now + machine.stock_host / 2
        starts, ends = [], []
        for stage, factor in enumerate(machine.stages):
            start = max(ready, device[stage])
            device[stage] = ready = start + seconds * factor
            starts.append(start)
            ends.append(ready)
            ready += machine.transfer * sum(span.length for span in spans)
        heapq.heappush(results, (ends[-1] + machine.latency + machine.stock_host / 2, len(waves)))
        waves.append(Wave(spans=spans, launched=now, starts=tuple(starts), ends=tuple(ends)))
