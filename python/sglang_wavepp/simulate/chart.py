"""Throughput, times and idle stages by concurrency, as one picture of small panels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sglang_wavepp.simulate.records import Record, Results
from sglang_wavepp.telemetry.palette import INK, SOFT
from sglang_wavepp.telemetry.strokes import document, rect, text

PANEL, HEIGHT, LEFT, TOP, GAP = 210, 150, 70, 70, 40
COLOURS = ("#8a8f98", "#c9a227", "#3b7dd8")
ROWS: tuple[tuple[str, Callable[[Record], float], bool], ...] = (
    ("throughput, share of the bound", lambda record: record.tok_s / record.bound_tok_s, True),
    ("p50 to first token, s", lambda record: record.p50_s, False),
    ("p95 to first token, s", lambda record: record.p95_s, False),
    ("idle, mean of the stages", lambda record: record.idle, True),
)
"""What a row shows, and whether it is a share: those are drawn up to 1, others up to the panel's largest value."""


def svg_chart(results: Results, title: str) -> str:
    """Workloads as columns, concurrency within each; the best stock arm, stock with M/4, and WavePP.

    Raises:
        KeyError: an arm is missing.
    """
    names = list(dict.fromkeys(name for name, _ in results.cells))
    width, height = LEFT + len(names) * PANEL + 20, TOP + len(ROWS) * (HEIGHT + GAP)
    parts = [text(LEFT, 24, title, 16, INK)]
    for place, (label, colour) in enumerate(
        zip(("best stock arm", "stock, M/4", "WavePP"), COLOURS, strict=True)
    ):
        x = LEFT + 150 * place
        parts += [rect(x, 36, 12, 12, colour), text(x + 18, 47, label, 12, INK)]
    for row, (label, value, share) in enumerate(ROWS):
        top = TOP + row * (HEIGHT + GAP)
        parts.append(text(4, top - 6, label, 12, INK))
        for column, name in enumerate(names):
            cells = [cell for cell in results.cells if cell[0] == name]
            groups = [
                [
                    value(record)
                    for record in (results.best(cell), _quarter(results, cell), results.get(cell, "wavepp"))
                ]
                for cell in cells
            ]
            parts += _panel(LEFT + column * PANEL, top, name, [cell[1] for cell in cells], groups, share)
    return document(title, width, height, parts)


def _quarter(results: Results, cell: tuple[str, int]) -> Record:
    arms = [results.get(cell, arm) for arm in ("stock-m4", "stock-m4-ideal")]
    return max(arms, key=lambda record: record.tok_s)


def _panel(
    x: int, y: int, name: str, concurrencies: Sequence[int], groups: Sequence[Sequence[float]], share: bool
) -> list[str]:
    largest = max(max(group) for group in groups)
    most = 1.0 if share else largest
    slot = (PANEL - 24) / len(groups)
    bar = min(16.0, (slot - 4) / len(COLOURS))
    parts = [
        rect(x, y + HEIGHT, PANEL - 20, 1, SOFT),
        text(x, y + 10, f"{name}, up to {largest:.3g}", 11, INK),
    ]
    for place, (concurrency, group) in enumerate(zip(concurrencies, groups, strict=True)):
        for number, (value, colour) in enumerate(zip(group, COLOURS, strict=True)):
            tall = max(0.0, value) / most * (HEIGHT - 20)
            left = x + place * slot + number * bar
            words = f"{name} c{concurrency}: {value:.4g}"
            parts.append(rect(left, y + HEIGHT - tall, bar - 1, tall, colour, words=words))
        parts.append(text(x + place * slot, y + HEIGHT + 13, f"c{concurrency}", 11, SOFT))
    return parts
