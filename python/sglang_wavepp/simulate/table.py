"""Results as tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sglang_wavepp.simulate.arms import DEFAULT_CHUNK
from sglang_wavepp.simulate.records import Results, chunk_arms, geometric_mean


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Aligned columns: the first to the left, all others to the right."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    texts = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([texts[0], "-" * (sum(widths) + 2 * (len(widths) - 1)), *texts[1:]])


def by_arm(results: Results) -> str:
    """One row for each record."""
    head = ("workload", "c", "arm", "tok/s", "of bound", "p50 s", "p95 s", "idle", "waves")
    rows = [
        (
            record.workload,
            str(record.concurrency),
            record.arm,
            f"{record.tok_s:,.0f}",
            f"{100 * record.tok_s / record.bound_tok_s:.1f}%",
            f"{record.p50_s:.2f}",
            f"{record.p95_s:.2f}",
            f"{100 * record.idle:.1f}%",
            str(record.waves),
        )
        for record in results.records
    ]
    return grid(head, rows)


def comparison(results: Results, arm: str = "wavepp") -> str:
    """An arm against stock SGLang, cell by cell.

    Raises:
        KeyError: an arm of stock or the arm itself was not run.
    """
    head = (
        "cell", "best stock", "tok/s", arm, "gain", "at most", "of bound", "found",
        "M/2", "M/4", "M/8", "p50", "p95",
    )  # fmt: skip
    rows = []
    for cell in results.cells:
        best, own = results.best(cell), results.get(cell, arm)
        rows.append(
            (
                f"{cell[0]} c{cell[1]}",
                best.arm.removeprefix("stock-"),
                f"{best.tok_s:,.0f}",
                f"{own.tok_s:,.0f}",
                f"{results.gain(cell, arm=arm):.3f}",
                f"{results.most(cell):.3f}",
                f"{100 * own.tok_s / own.bound_tok_s:.1f}%",
                f"{100 * own.found_tok_s / own.bound_tok_s:.1f}%",
                *(f"{results.gain(cell, arm=arm, over=chunk_arms(part)):.3f}" for part in (2, 4, 8)),
                f"{own.p50_s / best.p50_s:.2f}",
                f"{own.p95_s / best.p95_s:.2f}",
            )
        )
    cells = [cell for cell in results.cells if cell[0].startswith(("cold", "reuse"))]
    if cells:
        mean = geometric_mean(results.gain(cell, arm=arm) for cell in cells)
        most = geometric_mean(results.most(cell) for cell in cells)
        static = [
            geometric_mean(results.gain(cell, arm=arm, over=chunk_arms(part)) for cell in cells)
            for part in (2, 4, 8)
        ]
        middle = (f"{mean:.3f}", f"{most:.3f}", "", "", *(f"{value:.3f}" for value in static))
        rows.append((f"geometric mean of {len(cells)} cells", "", "", "", *middle, "", ""))
    return grid(head, rows)


COMPARISON_HELP = f"""Columns of the comparison: the best of the {len(DEFAULT_CHUNK)} stock arms at chunk size M and its
tokens a second (input tokens, cached ones included); WavePP's; the gain; the gain that no schedule can exceed; both as
shares of the bound (found: the best schedule that hindsight found); gains over stock with one static chunk of M/2, M/4
and M/8; times to first token relative to the best stock arm's."""
