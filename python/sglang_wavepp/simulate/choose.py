"""Compares settings over many cells, so that one can be chosen before renting GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sglang_wavepp.simulate.arms import ARMS, Knobs
from sglang_wavepp.simulate.bound import bound_tok_s
from sglang_wavepp.simulate.machine import Machine
from sglang_wavepp.simulate.records import geometric_mean, workload_of
from sglang_wavepp.simulate.table import grid


@dataclass(frozen=True, slots=True)
class Choice:
    """One setting over all cells.

    Attributes:
        max_tokens: `M`.
        knobs: the other settings.
        of_bound: geometric mean of the throughput, relative to what no schedule exceeds at any `M`.
        worst: the least of them, and its cell.
        p95_s: the mean of the 95th percentiles.
    """

    max_tokens: int
    knobs: Knobs
    of_bound: float
    worst: tuple[float, str]
    p95_s: float


def compare(
    machine: Machine,
    cells: Sequence[tuple[str, int]],
    *,
    arm: str,
    max_tokens: Iterable[int],
    min_tokens: Iterable[int],
    fills: Iterable[int],
    rounds: int = 2,
) -> list[Choice]:
    """All combinations, the best one first. Those with a smallest wave above the largest are left out."""
    unlimited = replace(machine, max_tokens=1 << 40)
    workloads = [workload_of(*cell, rounds=rounds) for cell in cells]
    bounds = [bound_tok_s(unlimited, workload) for workload in workloads]
    choices = []
    for largest in max_tokens:
        for smallest in min_tokens:
            for fill in fills:
                if smallest > largest:
                    continue
                knobs = Knobs(min_tokens=smallest, fills=fill)
                sized = replace(machine, max_tokens=largest)
                outcomes = [ARMS[arm].run(sized, workload, knobs) for workload in workloads]
                shares = [outcome.tok_s / bound for outcome, bound in zip(outcomes, bounds, strict=True)]
                names = [f"{name} c{concurrency}" for name, concurrency in cells]
                choices.append(
                    Choice(
                        max_tokens=largest,
                        knobs=knobs,
                        of_bound=geometric_mean(shares),
                        worst=min(zip(shares, names, strict=True)),
                        p95_s=sum(outcome.p95_s for outcome in outcomes) / len(outcomes),
                    )
                )
    return sorted(choices, key=lambda choice: -choice.of_bound)


def table(choices: Iterable[Choice]) -> str:
    """One row for each setting."""
    rows = [
        (
            f"{choice.max_tokens:,}",
            f"{choice.knobs.min_tokens:,}",
            str(choice.knobs.fills),
            f"{100 * choice.of_bound:.1f}%",
            f"{100 * choice.worst[0]:.1f}%",
            choice.worst[1],
            f"{choice.p95_s:.2f}",
        )
        for choice in choices
    ]
    return grid(("M", "b_min", "F", "of bound", "worst", "in", "mean p95 s"), rows)
