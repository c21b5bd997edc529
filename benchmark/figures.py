"""Figures that have a target: one table for people, one JSON object for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table.

    Attributes:
        key: in the JSON; with "_wall" for the wall time.
        target: the most that `cpu` should be.
    """

    key: str
    meaning: str
    unit: str
    cpu: float
    wall: float
    target: float


def table(figures: Sequence[Figure]) -> str:
    """One row per figure."""
    head = ["", "CPU", "target", "", "wall, busy LOOP"]
    rows = [
        [
            f"{figure.meaning} ({figure.unit})",
            f"{figure.cpu:.3g}",
            f"{figure.target:g}",
            "" if figure.cpu <= figure.target else "MISSED",
            f"{figure.wall:.3g}",
        ]
        for figure in figures
    ]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = [
        "  ".join(
            [cells[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True))]
        )
        for cells in [head, *rows]
    ]
    return "\n".join(f"  {line}" for line in [lines[0], "-" * len(lines[0]), *lines[1:]])


def report(figures: Sequence[Figure], details: dict[str, Any]) -> str:
    """The JSON: each figure under its key, its wall time under the key with "_wall"."""
    flat: dict[str, Any] = {}
    for figure in figures:
        flat[figure.key], flat[f"{figure.key}_wall"] = figure.cpu, figure.wall
    return json.dumps({**flat, "details": details}, indent=2) + "\n"
