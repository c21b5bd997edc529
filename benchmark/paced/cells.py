"""The cells of the grid: a workload at a concurrency, named as in ``reuse131:4``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmark.paced.clients import Served
from benchmark.paced.prompts import Script
from sglang_wavepp.simulate.workload import Job, Workload, closed, phases

PAGE = 64
PHASES = "phases"
TEN = (
    *("reuse131:1", "reuse131:4", "reuse131:8", "reuse262:1", "reuse262:4"),
    *("cold131:1", "cold131:8", "cold65:1", "mixed131:8", PHASES),
)
"""The cells of the published table."""
FULL, SLOWER, SLOWEST = 1.0, 0.5, 0.25
"""Scales of the device. Two cores carry the hosts of eight stages, about 6 ms a wave and stage: the smaller the waves
of a cell are, the slower the device has to be for a LOOP not to wait for a core."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell. ``rounds``: requests as a multiple of the concurrency; there are six at least."""

    kind: str
    concurrency: int
    rounds: int = 2

    @property
    def name(self) -> str:
        """As it is asked for."""
        return PHASES if self.kind == PHASES else f"{self.kind}:{self.concurrency}"

    @property
    def scale(self) -> float:
        """Speed of the device for this cell, the same for all arms.

        A cold suffix is cut into waves of thousands of tokens, and so is most of what a mixed load computes. Where only
        10% of a prompt is computed, or a single request has all stages to itself, waves are small and half speed is
        needed. They are smallest for one request that has computed 90% of its prompt: at half speed hosts still waited
        for a core too long.
        """
        if self.kind.startswith("reuse") and self.concurrency == 1:
            return SLOWEST
        large = self.kind.startswith(("cold", "mixed")) and self.concurrency > 1
        return FULL if large else SLOWER

    @property
    def bounded(self) -> bool:
        """Always: the prefixes are brought into the cache before."""
        return True

    def script(self, *, shorten: int, tag: str, seed: int) -> Script:
        """Its requests, and what brings the prefixes into the cache."""
        return Script.of(self.workload(shorten=shorten).jobs, tag=tag, seed=seed)

    def settled(self, served: Sequence[Served]) -> list[Served]:
        """As they are."""
        return list(served)

    def workload(self, *, shorten: int = 1) -> Workload:
        """Its requests, each that many times shorter than the name says."""
        if self.kind == PHASES:
            whole = phases(rounds=self.rounds)
        else:
            whole = closed(self.kind, self.concurrency, rounds=self.rounds)
        return replace(whole, jobs=tuple(_shortened(job, shorten) for job in whole.jobs))


def cells_named(text: str, *, rounds: int = 2) -> tuple[Cell, ...]:
    """The cells of a list of names, in its order; one that is named twice counts once.

    Raises:
        ValueError: a name isn't of the form ``reuse131:4``, or there is none.
    """
    names = text.replace(",", " ").split()
    if not names:
        raise ValueError(f"name some cells, such as {' '.join(TEN)}")
    # By the name that is played: reuse131:4 is reuse131:04 too.
    return tuple({cell.name: cell for cell in (_cell(name, rounds) for name in names)}.values())


def _cell(name: str, rounds: int) -> Cell:
    if name == PHASES:
        return Cell(PHASES, 32, rounds)
    kind, _, concurrency = name.partition(":")
    if not concurrency.isdigit() or int(concurrency) < 1:
        raise ValueError(f"{name!r} is no cell: write it as reuse131:4, or {PHASES}")
    cell = Cell(kind, int(concurrency), rounds)
    cell.workload()  # says whether there is such a workload
    return cell


def _shortened(job: Job, by: int) -> Job:
    return Job(cached=job.cached // by // PAGE * PAGE, prompt=job.prompt // by)
