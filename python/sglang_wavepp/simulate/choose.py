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
        min_tokens: `b_min`, as the server rounds it.
        fills: `F`.
        of_bound: geometric mean of the throughput, relative to what no schedule exceeds at any `M`.
        worst: the least of them, and its cell.
        p95_s: the mean of the 95th percentiles.
    """

    max_tokens: int
    min_tokens: int
    fills: int
    of_bound: float
    worst: tuple[float, str]
    p95_s: float


def compare(
    machine: Machine,
    cells: Sequence[tuple[str, int]],
    *,
    arm: str,
    max_tokens: Iterable[int],
    min_tokens: Sequence[int | None],
    fills: Sequence[int],
    rounds: int = 2,
) -> list[Choice]:
    """All combinations, the best one first. Those with a smallest wave above the largest are left out.

    Raises:
        ValueError: a largest wave holds no page.
    """
    unlimited = replace(machine, max_tokens=1 << 40)
    machines = [replace(machine, max_tokens=largest) for largest in max_tokens]
    workloads = [workload_of(*cell, rounds=rounds, page=machine.page) for cell in cells]
    bounds = [bound_tok_s(unlimited, workload) for workload in workloads]
    choices = []
    for sized in machines:
        fitting = [each for each in min_tokens if each is None or each <= sized.max_tokens]
        for smallest in dict.fromkeys(Knobs(min_tokens=each).smallest(sized) for each in fitting):
            for fill in fills:
                knobs = Knobs(min_tokens=smallest, fills=fill)
                outcomes = [ARMS[arm].run(sized, workload, knobs) for workload in workloads]
                shares = [outcome.tok_s / bound for outcome, bound in zip(outcomes, bounds, strict=True)]
                names = [f"{name} c{concurrency}" for name, concurrency in cells]
                choices.append(
                    Choice(
                        max_tokens=sized.max_tokens,
                        min_tokens=smallest,
                        fills=fill,
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
            f"{choice.min_tokens:,}",
            str(choice.fills),
            f"{100 * choice.of_bound:.1f}%",
            f"{100 * choice.worst[0]:.1f}%",
            choice.worst[1],
            f"{choice.p95_s:.2f}",
        )
        for choice in choices
    ]
    return grid(("M", "b_min", "F", "of bound", "worst", "in", "mean p95 s"), rows)
