"""``python -m benchmark.sim``: every cell and arm in the simulator, pp 8 and pp 4, with tables, records and pictures.

Writes ``build/bench/sim-pp8.json`` and so on: a list of records, one for each cell and arm. Other numbers of requests
have files of their own (``sim-pp8-x6.json``), and so has what isn't the whole grid (``sim-pp8-subset.json``).
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
from sglang_wavepp.simulate.arms import ARMS, Arm, Knobs
from sglang_wavepp.simulate.chart import svg_chart
from sglang_wavepp.simulate.command_line import (
    OneLineParser,
    arms_of,
    cells_of,
    count,
    counts,
    prepare,
    write,
)
from sglang_wavepp.simulate.machine import Machine
from sglang_wavepp.simulate.picture import svg_timeline
from sglang_wavepp.simulate.records import GRID, OTHERS, Record, Results, run_cell, workload_of
from sglang_wavepp.simulate.table import by_arm, comparison

PICTURED = (("reuse131", 4), ("cold131", 1))
"""Cells whose timelines are drawn, the best stock arm above WavePP."""
ROUNDS = 2
"""Of the files that have no number of rounds in their names."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    parser = _parser()
    asked = parser.parse_args(argv)
    try:
        arms, cells = arms_of(asked.arms), cells_of(asked.cells)
        for stages in asked.pp:
            _pipeline(Machine.even(stages), cells, arms, rounds=asked.rounds, out=asked.out)
    except ValueError as error:
        parser.error(str(error))
    return 0


def _pipeline(
    machine: Machine, cells: Sequence[tuple[str, int]], arms: Sequence[Arm], *, rounds: int, out: Path
) -> None:
    pp = len(machine.stages)
    stem = _stem(pp, rounds, whole={*cells} == {*GRID, *OTHERS} and len(arms) == len(ARMS))
    target = out / f"{stem}.json"
    prepare(target)
    results = _simulate(machine, cells, arms, rounds=rounds)
    title = f"pp {pp}, {rounds} requests for each one outstanding"
    everything = len(arms) == len(ARMS)
    print(f"\n{title}\n")
    print(comparison(results) if everything else by_arm(results))
    write(target, json.dumps([record.as_dict() for record in results.records], indent=1) + "\n")
    print(f"\nwrote {target}")
    if everything:
        chart = out / f"{stem}.svg"
        write(chart, svg_chart(results, title))
        print(f"wrote {chart}")
        _draw(machine, results, rounds=rounds, stem=out / stem)


def _stem(pp: int, rounds: int, *, whole: bool) -> str:
    """How the names of a pipeline's files begin: no run overwrites what another one with other requests wrote."""
    return f"sim-pp{pp}" + ("" if rounds == ROUNDS else f"-x{rounds}") + ("" if whole else "-subset")


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog="python -m benchmark.sim",
        description=(__doc__ or "").split(": ", 1)[-1],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cells", default="", help='such as "reuse131:4 cold131:8"; default: all')
    parser.add_argument("--arms", default="", help="default: all")
    parser.add_argument("--pp", type=counts, default=(8, 4), help="numbers of stages; default: 8 4")
    parser.add_argument(
        "--rounds", type=count, default=ROUNDS, help="requests, as a multiple of the concurrency"
    )
    parser.add_argument("--out", type=Path, default=CHECKOUT / "build" / "bench")
    return parser


def _simulate(
    machine: Machine, cells: Sequence[tuple[str, int]], arms: Sequence[Arm], *, rounds: int
) -> Results:
    records: list[Record] = []
    progress = Progress(1)
    progress.step(f"pp {len(machine.stages)}, {len(cells)} cells, {len(arms)} arms")
    for number, cell in enumerate(cells):
        progress.detail(f"{number + 1}/{len(cells)} {cell[0]} c{cell[1]}")
        workload = workload_of(*cell, rounds=rounds, page=machine.page)
        records += run_cell(machine, workload, arms, knobs=Knobs())
    progress.done()
    return Results(records)


def _draw(machine: Machine, results: Results, *, rounds: int, stem: Path) -> None:
    for cell in PICTURED:
        if cell not in results.cells:
            continue
        best = results.best(cell).arm
        workload = workload_of(*cell, rounds=rounds, page=machine.page)
        runs = [(name, ARMS[name].run(machine, workload, Knobs())) for name in (best, "wavepp")]
        target = stem.with_name(f"{stem.name}-{cell[0]}-c{cell[1]}.svg")
        write(target, svg_timeline(runs))
        print(f"wrote {target}")


if __name__ == "__main__":
    started = time.monotonic()
    status = main()
    print(f"{time.monotonic() - started:.0f} s")
    sys.exit(status)
