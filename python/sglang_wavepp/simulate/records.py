"""Runs cells and keeps what came out, one record for each cell and arm."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from sglang_wavepp.simulate.arms import ARMS, DEFAULT_CHUNK, SMALLER_CHUNKS, Arm, Knobs
from sglang_wavepp.simulate.bound import bound_tok_s
from sglang_wavepp.simulate.machine import Machine
from sglang_wavepp.simulate.steady import best_found
from sglang_wavepp.simulate.workload import CONCURRENCIES, STRETCHES, Workload, closed, phases

GRID = tuple(
    (name, concurrency)
    for name in ("reuse131", "reuse262", "cold65", "cold131", "cold262")
    for concurrency in CONCURRENCIES
)
"""The 25 cells."""
OTHERS = (("mixed131", 8), ("mixed131", 16), ("mixed131", 32), ("phases", max(STRETCHES)))


@dataclass(frozen=True, slots=True)
class Record:
    """One arm in one cell.

    Attributes:
        workload: such as `reuse131`.
        concurrency: of the closed loop; 0 in an open loop.
        arm: stock arms begin with `stock`.
        pp: stages.
        requests: of the run.
        tok_s: input tokens a second.
        p50_s: median time to first token.
        p95_s: its 95th percentile.
        idle: of the stages, on average.
        waves: of the run.
        bound_tok_s: what no schedule exceeds.
        found_tok_s: the best schedule that hindsight found, on hosts that cost nothing.
        scale: speed of the device, 1 here.
        rejected: whether the figure must not be used, never here.
    """

    workload: str
    concurrency: int
    arm: str
    pp: int
    requests: int
    tok_s: float
    p50_s: float
    p95_s: float
    idle: float
    waves: int
    bound_tok_s: float
    found_tok_s: float
    scale: float = 1.0
    rejected: bool = False

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def workload_of(name: str, concurrency: int, *, rounds: int = 2, page: int = 64) -> Workload:
    """The workload of a cell, with `rounds` times as many requests as are outstanding.

    Raises:
        ValueError: there is no such cell.
    """
    if name != "phases":
        return closed(name, concurrency, rounds=rounds, page=page)
    if concurrency != max(STRETCHES):
        raise ValueError(f"phases has concurrencies of its own, up to {max(STRETCHES)}, not {concurrency}")
    return phases(rounds=rounds, page=page)


def run_cell(
    machine: Machine, workload: Workload, arms: Iterable[Arm], *, knobs: Knobs, bounds: bool = True
) -> Iterator[Record]:
    """Records of one cell.

    Args:
        bounds: whether to look for the best schedule too; it takes a few runs.
    """
    bound = bound_tok_s(machine, workload)
    found = best_found(machine, workload).tok_s if bounds else 0.0
    for arm in arms:
        outcome = arm.run(machine, workload, knobs)
        yield Record(
            workload=workload.name,
            concurrency=workload.concurrency,
            arm=arm.name,
            pp=len(machine.stages),
            requests=len(workload.jobs),
            tok_s=outcome.tok_s,
            p50_s=outcome.p50_s,
            p95_s=outcome.p95_s,
            idle=outcome.idle,
            waves=len(outcome.waves),
            bound_tok_s=bound,
            found_tok_s=max(found, outcome.tok_s),
        )


class Results:
    """Records of one pipeline, by cell and arm."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.records = list(records)
        self._by = {(r.workload, r.concurrency, r.arm): r for r in self.records}

    @property
    def cells(self) -> list[tuple[str, int]]:
        """All cells, in the order in which they were run."""
        return list(dict.fromkeys((record.workload, record.concurrency) for record in self.records))

    def get(self, cell: tuple[str, int], arm: str) -> Record:
        """The record of an arm.

        Raises:
            KeyError: it was not run.
        """
        return self._by[cell[0], cell[1], arm]

    def best(self, cell: tuple[str, int], arms: Sequence[Arm] = DEFAULT_CHUNK) -> Record:
        """The fastest of some arms."""
        return max((self.get(cell, arm.name) for arm in arms), key=lambda record: record.tok_s)

    def gain(
        self, cell: tuple[str, int], *, arm: str = "wavepp", over: Sequence[Arm] = DEFAULT_CHUNK
    ) -> float:
        """Throughput of an arm relative to the best of others."""
        return self.get(cell, arm).tok_s / self.best(cell, over).tok_s

    def most(self, cell: tuple[str, int], *, over: Sequence[Arm] = DEFAULT_CHUNK) -> float:
        """The gain that no schedule exceeds."""
        best = self.best(cell, over)
        return best.bound_tok_s / best.tok_s


def chunk_arms(part: int) -> list[Arm]:
    """The static arms of chunk size `M / part`."""
    return [arm for arm in SMALLER_CHUNKS if arm.name in (f"stock-m{part}", f"stock-m{part}-ideal")]


def geometric_mean(values: Iterable[float]) -> float:
    """Of positive numbers."""
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms))


def run_all(
    machine: Machine,
    cells: Iterable[tuple[str, int]],
    *,
    arms: Iterable[Arm] | None = None,
    knobs: Knobs | None = None,
    rounds: int = 2,
    bounds: bool = True,
) -> Results:
    """All arms in all cells."""
    chosen = tuple(arms) if arms is not None else tuple(ARMS.values())
    records: list[Record] = []
    for name, concurrency in cells:
        workload = workload_of(name, concurrency, rounds=rounds, page=machine.page)
        records += run_cell(machine, workload, chosen, knobs=knobs or Knobs(), bounds=bounds)
    return Results(records)
