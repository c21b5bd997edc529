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
    parser = _parser()
    asked = parser.parse_args(argv)
    names = asked.arms.replace(",", " ").split() or list(ARMS)
    unknown = [name for name in names if name not in ARMS]
    try:
        cells = _cells(asked.cells)
        for cell in cells:
            workload_of(*cell)
        pipelines = [Machine.even(int(part)) for part in asked.pp.replace(",", " ").split()]
    except ValueError as error:
        parser.error(str(error))
    if unknown:
        parser.error(f"unknown arm {', '.join(unknown)}; there are {', '.join(ARMS)}")
    if asked.rounds < 1:
        parser.error("at least one request for each one outstanding")
    asked.out.mkdir(parents=True, exist_ok=True)
    for machine in pipelines:
        _pipeline(machine, cells, names, rounds=asked.rounds, out=asked.out)
    return 0


def _pipeline(
    machine: Machine, cells: Sequence[tuple[str, int]], names: Sequence[str], *, rounds: int, out: Path
) -> None:
    pp = len(machine.stages)
    results = _simulate(machine, cells, names, rounds=rounds)
    title = f"pp {pp}, {rounds} requests for each one outstanding"
    everything = set(names) == set(ARMS)
    print(f"\n{title}\n")
    print(comparison(results) if everything else by_arm(results))
    stem = f"sim-pp{pp}" + ("" if rounds == 2 else f"-x{rounds}")
    target = out / f"{stem}.json"
    target.write_text(json.dumps([record.as_dict() for record in results.records], indent=1) + "\n")
    print(f"\nwrote {target}")
    if everything:
        chart = out / f"{stem}.svg"
        chart.write_text(svg_chart(results, title))
        print(f"wrote {chart}")
        _draw(machine, results, out)


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


def _simulate(
    machine: Machine, cells: Sequence[tuple[str, int]], names: Sequence[str], *, rounds: int
) -> Results:
    records: list[Record] = []
    progress = Progress(1)
    progress.step(f"pp {len(machine.stages)}, {len(cells)} cells, {len(names)} arms")
    for number, cell in enumerate(cells):
        progress.detail(f"{number + 1}/{len(cells)} {cell[0]} c{cell[1]}")
        workload = workload_of(*cell, rounds=rounds)
        records += run_cell(machine, workload, [ARMS[name] for name in names], knobs=Knobs())
    progress.done()
    return Results(records)


def _draw(machine: Machine, results: Results, folder: Path) -> None:
    for cell in PICTURED:
        if cell not in results.cells:
            continue
        best = results.best(cell).arm
        workload = workload_of(*cell)
        runs = [(name, ARMS[name].run(machine, workload, Knobs())) for name in (best, "wavepp")]
        target = folder / f"sim-pp{len(machine.stages)}-{cell[0]}-c{cell[1]}.svg"
        target.write_text(svg_timeline(runs))
        print(f"wrote {target}")


if __name__ == "__main__":
    started = time.monotonic()
    status = main()
    print(f"{time.monotonic() - started:.0f} s")
    sys.exit(status)
