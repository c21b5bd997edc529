"""``python -m benchmark.sim``: every cell and arm in the simulator, pp 8 and pp 4, with tables, records and pictures.

Writes ``build/bench/sim-pp8.json`` and so on: a list of records, one for each cell and arm.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmark.progress import Progress
from benchmark.servers import CHECKOUT
from sglang_wavepp.simulate.arms import ARMS, Knobs
from sglang_wavepp.simulate.chart import svg_chart
from sglang_wavepp.simulate.machine import Machine
from sglang_wavepp.simulate.picture import svg_timeline
from sglang_wavepp.simulate.records import GRID, OTHERS, Record, Results, run_cell, workload_of
from sglang_wavepp.simulate.table import by_arm, comparison

PICTURED = (("reuse131", 4), ("cold131", 1))
"""Cells whose timelines are drawn, the best stock arm above WavePP."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    asked = _parser().parse_args(argv)
    cells = _cells(asked.cells)
    names = asked.arms.replace(",", " ").split() or list(ARMS)
    unknown = [name for name in names if name not in ARMS]
    if unknown:
        print(f"error: unknown arm {', '.join(unknown)}; there are {', '.join(ARMS)}", file=sys.stderr)
        return 2
    asked.out.mkdir(parents=True, exist_ok=True)
    for pp in (int(part) for part in asked.pp.replace(",", " ").split()):
        results = _simulate(pp, cells, names, rounds=asked.rounds)
        print(f"\npp {pp}, {asked.rounds} requests for each one outstanding\n")
        print(comparison(results) if set(names) == set(ARMS) else by_arm(results))
        suffix = "" if asked.rounds == 2 else f"-x{asked.rounds}"
        target = asked.out / f"sim-pp{pp}{suffix}.json"
        target.write_text(json.dumps([record.as_dict() for record in results.records], indent=1) + "\n")
        print(f"\nwrote {target}")
        if set(names) == set(ARMS):
            chart = asked.out / f"sim-pp{pp}{suffix}.svg"
            chart.write_text(svg_chart(results, f"pp {pp}, {asked.rounds} requests for each one outstanding"))
            print(f"wrote {chart}")
            _draw(pp, results, asked.out)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.sim", description=(__doc__ or "").split(": ", 1)[-1]
    )
    parser.add_argument("--cells", default="", help='such as "reuse131:4 cold131:8"; default: all')
    parser.add_argument("--arms", default="", help="default: all")
    parser.add_argument("--pp", default="8 4", help="numbers of stages")
    parser.add_argument("--rounds", type=int, default=2, help="requests, as a multiple of the concurrency")
    parser.add_argument("--out", type=Path, default=CHECKOUT / "build" / "bench")
    return parser


def _cells(text: str) -> list[tuple[str, int]]:
    if not text.strip():
        return [*GRID, *OTHERS]
    pairs = (part.partition(":") for part in text.replace(",", " ").split())
    return [(name, int(count or (32 if name == "phases" else 1))) for name, _, count in pairs]


def _simulate(pp: int, cells: Sequence[tuple[str, int]], names: Sequence[str], *, rounds: int) -> Results:
    machine = Machine.even(pp)
    records: list[Record] = []
    progress = Progress(1)
    progress.step(f"pp {pp}, {len(cells)} cells, {len(names)} arms")
    for number, cell in enumerate(cells):
        progress.detail(f"{number + 1}/{len(cells)} {cell[0]} c{cell[1]}")
        workload = workload_of(*cell, rounds=rounds)
        records += run_cell(machine, workload, [ARMS[name] for name in names], knobs=Knobs())
    progress.done()
    return Results(records)


def _draw(pp: int, results: Results, folder: Path) -> None:
    for cell in PICTURED:
        if cell not in results.cells:
            continue
        best = results.best(cell).arm
        workload = workload_of(*cell)
        runs = [(name, ARMS[name].run(Machine.even(pp), workload, Knobs())) for name in (best, "wavepp")]
        target = folder / f"sim-pp{pp}-{cell[0]}-c{cell[1]}.svg"
        target.write_text(svg_timeline(runs))
        print(f"wrote {target}")


if __name__ == "__main__":
    started = time.monotonic()
    status = main()
    print(f"{time.monotonic() - started:.0f} s")
    sys.exit(status)
