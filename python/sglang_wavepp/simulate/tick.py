"""SGLang's own pipeline loop: every stage goes through the same ticks and meets its neighbours in each.

A tick of a stage takes the request list of the stage before, forms the same batch, receives its activations, exchanges
outputs around the ring, launches, waits for the result of the batch that is to leave the ring, and only then sends
its activations. Host waits are modelled as SGLang 0.5.23 has them; sends never wait for their receivers, and
transfers take no bandwidth from each other, which favours it.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from sglang_wavepp.planning.spans import PlannedSpan
from sglang_wavepp.simulate.arrivals import Arrivals
from sglang_wavepp.simulate.chunks import StockQueue
from sglang_wavepp.simulate.machine import Machine
from sglang_wavepp.simulate.outcome import Outcome, Wave
from sglang_wavepp.simulate.workload import Workload

REQUESTS, PROXY, OUTPUT = 0, 1, 2
Key = tuple[int, int, int]
"""Kind of message, stage that sends it, tick (of an output: tick of its batch)."""


@dataclass(frozen=True, slots=True)
class TickLoop:
    """Settings of the loop.

    Attributes:
        depth: `--pp-async-batch-depth`; the ring has that many slots more than stages.
        own_stream: transfers run on a stream of their own, so an output that is still to come holds up no forward.
        skip_output: SGLANG_PP_SKIP_PURE_CHUNKED_OUTPUT_COMM=1: a batch that is one middle chunk has no output.
    """

    depth: int = 0
    own_stream: bool = False
    skip_output: bool = False


class TickRun:
    """One run of stock SGLang."""

    def __init__(self, machine: Machine, workload: Workload, queue: StockQueue, loop: TickLoop) -> None:
        self._machine = machine
        self._workload = workload
        self._jobs = workload.jobs
        self._queue = queue
        self._loop = loop
        self._ring = len(machine.stages) + loop.depth
        self._arrivals = Arrivals(workload)
        self._batches: list[tuple[PlannedSpan, ...]] = []
        self._sent: dict[Key, float] = {}
        self._ready: dict[Key, float] = {}
        self._starts: dict[int, list[float]] = {}
        self._ends: dict[int, list[float]] = {}
        self._launched: dict[int, float] = {}

    def run(self) -> Outcome:
        """Serve the workload to its end."""
        stages = [self._stage(number) for number in range(len(self._machine.stages))]
        needs = [next(stage) for stage in stages]
        while self._arrivals.left:
            moved = False
            for number, stage in enumerate(stages):
                while (key := needs[number]) is None or key in self._sent:
                    needs[number] = stage.send(None if key is None else self._sent[key])
                    moved = True
                    if number == 0 and needs[0] is None:
                        break  # the others follow before it goes on
            if not moved:
                raise RuntimeError("the stages wait for each other")
        waves = [
            Wave(
                spans=self._batches[tick],
                launched=self._launched[tick],
                starts=tuple(self._starts[tick]),
                ends=tuple(self._ends[tick]),
            )
            for tick in sorted(self._launched)
            if len(self._ends[tick]) == len(self._machine.stages)
        ]
        return Outcome.of(self._workload, self._arrivals, waves)

    def _stage(self, stage: int) -> Generator[Key | None, float | None, None]:
        """Ticks of one stage: yields the message that it waits for (None: nothing), is sent when that was sent."""
        machine, loop, ring = self._machine, self._loop, self._ring
        first, last = stage == 0, stage == len(machine.stages) - 1
        before = (stage - 1) % len(machine.stages)
        factor = machine.stages[stage]
        host = device = fence = 0.0
        kept: int | None = None  # the batch whose output goes on to the next stage in the next tick
        tick = -1
        while True:
            tick += 1
            if first:
                yield None
                host = self._form(tick, host)
            else:
                sent = yield (REQUESTS, before, tick)
                assert sent is not None
                host = max(host, sent)
            self._sent[REQUESTS, stage, tick] = host
            batch = self._batches[tick]
            leaving = tick + 1 - ring
            host += machine.stock_host / 2 if batch else machine.empty_tick
            ready = host
            if batch and not first:
                sent = yield (PROXY, before, tick)
                assert sent is not None
                host = max(host, sent)
                ready = self._ready.pop((PROXY, before, tick))
            arrived = host

            for step in ("exchange", "launch") if loop.depth else ("launch", "exchange"):
                if step == "launch" and batch:
                    start = max(device, ready, host, 0.0 if loop.own_stream else fence)
                    device = start + machine.seconds(batch) * factor
                    self._starts.setdefault(tick, []).append(start)
                    self._ends.setdefault(tick, []).append(device)
                if step == "exchange":
                    own = tick - loop.depth if last else kept
                    kept = None
                    if stage % 2 == 0:
                        self._send_output(stage, own, host, last)
                    if leaving >= 0 and self._batches[leaving]:
                        if self._skips(leaving):
                            arrived = host
                        else:
                            sent = yield (OUTPUT, before, leaving)
                            assert sent is not None
                            host = max(host, sent)
                            arrived = self._ready[OUTPUT, before, leaving]
                            fence = max(fence, arrived)
                            kept = leaving
                    if stage % 2 == 1:
                        self._send_output(stage, own, host, last)

            if leaving >= 0 and self._batches[leaving]:
                host = max(host, arrived) + machine.stock_host / 2
                if first:
                    self._process(leaving, host)
            if batch and not last:
                self._sent[PROXY, stage, tick] = host
                tokens = sum(span.length for span in batch)
                self._ready[PROXY, stage, tick] = device + machine.transfer * tokens

    def _send_output(self, stage: int, tick: int | None, host: float, last: bool) -> None:
        if tick is None or tick < 0 or not self._batches[tick] or (last and self._skips(tick)):
            return
        key = (OUTPUT, stage, tick)
        self._sent[key] = host
        self._ready[key] = self._ends[tick][-1] if last else host
        if last:
            self._ready[key] += self._machine.latency

    def _skips(self, tick: int) -> bool:
        spans = self._batches[tick]
        return (
            self._loop.skip_output and len(spans) == 1 and spans[0].end < self._jobs[int(spans[0].rid)].prompt
        )

    def _form(self, tick: int, host: float) -> float:
        """Form the batch of a tick on rank 0; the time at which it did."""
        if not any(
            self._batches[max(0, tick + 1 - self._ring) :]
        ):  # idle: nothing happens before the next arrival
            arrival = self._arrivals.next_time()
            if arrival is not None:
                host = max(host, arrival)
        for number in self._arrivals.take(host):
            self._queue.add(number, self._jobs[number])
        batch = self._queue.form()
        self._batches.append(batch)
        if batch:
            self._launched[tick] = host
        return host

    def _process(self, tick: int, now: float) -> None:
        for span in self._batches[tick]:
            job = int(span.rid)
            if span.end == self._jobs[job].prompt:
                self._arrivals.end(job, now)
