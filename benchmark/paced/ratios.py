"""WavePP against the best stock arm of each cell, as it was measured and as the simulator says."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from benchmark.interleaved import ratio
from benchmark.paced.records import Record, usable
from benchmark.paced.text_table import text_table
from sglang_wavepp.simulate.outcome import Outcome

Simulated = Callable[[Record], Outcome | None]
_HEAD = ("cell", "arm", "best stock arm", "pairs", "tok/s", "p50", "p95", "simulated tok/s", "p50", "p95")


class Span(msgspec.Struct, frozen=True):
    """Median, smallest and largest of the ratios of all pairs."""

    median: float
    low: float
    high: float

    def text(self) -> str:
        """Such as ``2.21 (2.06-2.22)``."""
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """One WavePP arm in one cell, divided by the stock arm with the highest median throughput there.

    Attributes:
        cell: such as ``reuse131:4``.
        pairs: repeats that may be used of both arms; each is one ratio.
        tok_s, p50, p95: of throughput, and of seconds to the first token (below 1: WavePP is faster).
        simulated_tok_s, simulated_p50, simulated_p95: of the same two arms, None where they can't be simulated.
    """

    cell: str
    arm: str
    stock: str
    pairs: int
    tok_s: Span
    p50: Span
    p95: Span
    simulated_tok_s: float | None = None
    simulated_p50: float | None = None
    simulated_p95: float | None = None


def ratios(records: Iterable[Record], simulated: Simulated = lambda record: None) -> list[Ratio]:
    """One for each cell and WavePP arm that has a repeat in common with a stock arm, both of which may be used.

    Args:
        simulated: the simulator's run of a record's arm and cell.
    """
    cells: dict[str, dict[str, dict[int, Record]]] = {}
    for record in usable(records):
        cells.setdefault(record.cell, {}).setdefault(record.arm, {})[record.repeat] = record
    found = []
    for arms in cells.values():
        for name, ours in arms.items():
            rivals = [
                rival for rival in arms if rival.startswith("stock") and arms[rival].keys() & ours.keys()
            ]
            if not name.startswith("stock") and rivals:
                best = max(rivals, key=lambda rival: _median_tok_s(arms[rival].values()))
                common = sorted(ours.keys() & arms[best].keys())
                found.append(_ratio([ours[n] for n in common], [arms[best][n] for n in common], simulated))
    return found


def ratio_table(found: Sequence[Ratio]) -> str:
    """One row a ratio, for people."""
    if not found:
        return "\nNo cell has a repeat of WavePP and of a stock arm that may both be used: no ratios."
    rows = [
        (
            each.cell,
            each.arm,
            each.stock,
            str(each.pairs),
            *(span.text() for span in (each.tok_s, each.p50, each.p95)),
            *(
                "-" if value is None else f"{value:.2f}"
                for value in (each.simulated_tok_s, each.simulated_p50, each.simulated_p95)
            ),
        )
        for each in found
    ]
    return "\nWavePP / best stock arm: median (least-most) over the repeats, pair by pair\n" + text_table(
        _HEAD, rows
    )


def write_ratios(found: Sequence[Ratio], path: Path) -> None:
    """As JSON: a list of ratios."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(list(found)), indent=1) + b"\n")


def _ratio(ours: Sequence[Record], theirs: Sequence[Record], simulated: Simulated) -> Ratio:
    def span(value: Callable[[Record], float]) -> Span:
        spread = ratio([value(record) for record in ours], [value(record) for record in theirs])
        return Span(spread.median, spread.low, spread.high)

    first = ours[0]
    mine, other = simulated(first), simulated(theirs[0])
    pair = None if mine is None or other is None else (mine, other)
    return Ratio(
        cell=first.cell,
        arm=first.arm,
        stock=theirs[0].arm,
        pairs=len(ours),
        tok_s=span(lambda record: record.tok_s),
        p50=span(lambda record: record.p50_s),
        p95=span(lambda record: record.p95_s),
        simulated_tok_s=pair[0].tok_s / pair[1].tok_s if pair else None,
        simulated_p50=pair[0].p50_s / pair[1].p50_s if pair else None,
        simulated_p95=pair[0].p95_s / pair[1].p95_s if pair else None,
    )


def _median_tok_s(records: Iterable[Record]) -> float:
    return statistics.median(record.tok_s for record in records)
