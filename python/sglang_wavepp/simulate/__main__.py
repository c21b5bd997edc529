"""``python -m sglang_wavepp.simulate``: throughput and times of a pipeline under SGLang's and WavePP's schedules.

Nothing is computed: each forward is its modelled time, `C + A * tokens + B * sum(tokens * context)` seconds on each
stage. WavePP's waves come from the planners that the server uses; stock SGLang is modelled tick by tick. See
docs/simulator.md for what is modelled and what isn't, and docs/tuning.md for how to choose settings with it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from sglang_wavepp.simulate.arms import ARMS, Knobs
from sglang_wavepp.simulate.choose import compare, table
from sglang_wavepp.simulate.command_line import arms_of, cells_of, prepare, write
from sglang_wavepp.simulate.machine import Machine
from sglang_wavepp.simulate.options import arm_chosen, check, machine_of, parser, rounds_of, workloads_of
from sglang_wavepp.simulate.picture import svg_timeline, text_timeline
from sglang_wavepp.simulate.records import Record, Results, run_cell
from sglang_wavepp.simulate.table import by_arm, comparison


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    assert __doc__ is not None
    options = parser(__doc__.split(": ", 1)[1])
    asked = options.parse_args(argv)
    try:
        check(asked)
        machine = machine_of(asked)
        if asked.choose:
            print(_choose(machine, asked))
        else:
            _simulate(machine, asked)
    except ValueError as error:
        options.error(str(error))
    return 0


def _simulate(machine: Machine, asked: argparse.Namespace) -> None:
    arms, workloads = arms_of(asked.arms or ""), workloads_of(asked)
    for target in (asked.json, asked.picture):
        if target is not None:
            prepare(target)
    knobs = Knobs(min_tokens=(asked.min_wave_tokens or (None,))[0], fills=asked.fills[0])
    records: list[Record] = []
    for number, workload in enumerate(workloads):
        if sys.stderr.isatty():
            print(
                f"\r{number + 1}/{len(workloads)} {workload.name} c{workload.concurrency}\033[K",
                end="",
                file=sys.stderr,
            )
        records += run_cell(machine, workload, arms, knobs=knobs)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    results = Results(records)
    everything = len(arms) == len(ARMS)
    print(comparison(results) if everything and len(workloads) > 1 else by_arm(results))
    if asked.timeline or asked.picture:
        runs = [(arm.name, arm.run(machine, workloads[0], knobs)) for arm in arms]
        if asked.timeline:
            for name, run in runs:
                print(f"\n{name}: {run.tok_s:,.0f} tok/s\n{text_timeline(run)}")
        if asked.picture:
            write(asked.picture, svg_timeline(runs))
            print(f"wrote {asked.picture}")
    if asked.json:
        write(asked.json, json.dumps([record.as_dict() for record in records], indent=1) + "\n")
        print(f"wrote {asked.json}")


def _choose(machine: Machine, asked: argparse.Namespace) -> str:
    smallest = asked.min_wave_tokens or (None,)
    choices = compare(
        machine,
        cells_of(asked.cells),
        arm=arm_chosen(asked),
        max_tokens=asked.max_wave_tokens,
        min_tokens=smallest,
        fills=asked.fills,
        rounds=rounds_of(asked),
    )
    too_large = [
        f"b_min {least:,} at M {most:,}"
        for most in asked.max_wave_tokens
        for least in smallest
        if (least or 0) > most
    ]
    return table(choices) + (f"\nleft out: {', '.join(too_large)}" if too_large else "")


if __name__ == "__main__":
    sys.exit(main())
