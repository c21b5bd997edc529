"""Tables of what was measured, for people."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from benchmark.interleaved import Spread
from benchmark.paced.records import Record, by_cell_and_arm, usable
from benchmark.paced.text_table import text_table

_HEAD = (
    "cell",
    "arm",
    "tok/s",
    "p50 s",
    "p95 s",
    "idle",
    "of its plan",
    "of bound",
    "host ms a wave (most)",
    "process ms",
    "hosts",
    "good hits",
    "rejected",
)


def table(records: Iterable[Record]) -> str:
    """One row per cell and arm: median (smallest-largest) of the repeats that may be used; of all when none may."""
    return text_table(_HEAD, [_row(group) for group in by_cell_and_arm(records).values()])


def _row(group: Sequence[Record]) -> tuple[str, ...]:
    good = usable(group)
    shown = good or list(group)
    first = shown[0]

    def spread(value: Callable[[Record], float], digits: int) -> str:
        return Spread.of([value(record) for record in shown]).text(digits)

    return (
        first.cell,
        first.arm,
        spread(lambda r: r.tok_s, 0),
        spread(lambda r: r.p50_s, 2),
        spread(lambda r: r.p95_s, 2),
        f"{_median(r.idle for r in shown):.0%}",
        _share(r.tok_s / r.plan_tok_s for r in shown if r.plan_tok_s),
        _share(r.tok_s / r.bound_tok_s for r in shown if r.bound_tok_s),
        f"{_median(max(s.host_ms for s in r.stages) for r in shown):.1f}",
        f"{_median(max(s.process_ms for s in r.stages) for r in shown):.1f}",
        f"{_median(r.hosts for r in shown):.2f}",
        _share(r.good_hits for r in shown if r.good_hits is not None),
        f"{len(group) - len(good)} of {len(group)}",
    )


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


def _share(values: Iterable[float]) -> str:
    kept = list(values)
    return f"{statistics.median(kept):.0%}" if kept else "-"
