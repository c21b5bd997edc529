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
from dataclasses import replace
from pathlib import Path

from sglang_wavepp.planning.cost import WaveCost
from sglang_wavepp.simulate.arms import ARMS, Arm, Knobs
from sglang_wavepp.simulate.choose import compare, table
from sglang_wavepp.simulate.machine import COST, Machine
from sglang_wavepp.simulate.picture import svg_timeline, text_timeline
from sglang_wavepp.simulate.records import GRID, OTHERS, Record, Results, run_cell, workload_of
from sglang_wavepp.simulate.table import COMPARISON_HELP, by_arm, comparison
from sglang_wavepp.simulate.workload import Workload, opened

EXAMPLES = """examples:
  the whole grid on eight stages:            python -m sglang_wavepp.simulate
  one cell, all arms, with a timeline:       python -m sglang_wavepp.simulate --cells reuse131:4 --timeline
  a slow stage, a device of your own:        python -m sglang_wavepp.simulate --stages 1,1,1.3,1 --per-wave-ms 12
  2 requests a second at random:             python -m sglang_wavepp.simulate --cells mixed131 --rate 2 --requests 200
  settings compared over the grid:           python -m sglang_wavepp.simulate --choose --max-wave-tokens 8192,16384
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    parser = _parser()
    asked = parser.parse_args(argv)
    try:
        machine = _machine(asked)
        if asked.choose:
            print(_choose(machine, asked))
            return 0
        _simulate(machine, asked)
    except ValueError as error:
        parser.error(str(error))
    return 0


def _parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m sglang_wavepp.simulate",
        description=__doc__.split(": ", 1)[1],
        epilog=EXAMPLES + "\narms:\n" + "\n".join(f"  {arm.name:18} {arm.about}" for arm in ARMS.values())
        + "\n\n" + COMPARISON_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    what = parser.add_argument_group("what is asked")
    what.add_argument(
        "--cells",
        help="space- or comma-separated WORKLOAD:CONCURRENCY, such as reuse131:4, cold65:16, mixed131:8 or phases;"
        " default: all 25 cells, mixed traffic and phases",
    )
    what.add_argument(
        "--rounds", type=int, default=2, help="requests of a run, as a multiple of the concurrency"
    )
    what.add_argument("--rate", type=float, help="an open loop instead: requests a second")
    what.add_argument("--requests", type=int, default=100, help="requests of an open loop")
    what.add_argument(
        "--stagger-ms", type=float, default=0.0, help="between the first requests of a closed loop"
    )
    what.add_argument("--arms", help="comma-separated; default: all")
    device = parser.add_argument_group("the machine")
    device.add_argument("--pp", type=int, default=8, help="equal stages")
    device.add_argument("--stages", help="times of the stages relative to the cost, such as 1,1,1.3,1")
    device.add_argument("--per-wave-ms", type=float, default=COST.per_wave * 1e3, help="C: a wave by itself")
    device.add_argument("--per-token-us", type=float, default=COST.per_token * 1e6, help="A: each token")
    device.add_argument(
        "--per-pair-ps", type=float, default=COST.per_pair * 1e12, help="B: each token and token before it"
    )
    device.add_argument("--host-ms", type=float, default=10.0, help="a wave on the host of a stage")
    device.add_argument("--stock-host-ms", type=float, help="the same for stock; default: as --host-ms")
    device.add_argument("--transfer-us", type=float, default=0.0, help="a token from stage to stage")
    device.add_argument("--page", type=int, default=64, help="tokens of a page")
    device.add_argument(
        "--admitted-waves", type=float, default=2.0, help="largest waves admitted before they are planned"
    )
    settings = parser.add_argument_group("settings (with --choose: several, comma-separated)")
    settings.add_argument("--max-wave-tokens", default="16384", help="M")
    settings.add_argument("--min-wave-tokens", default="512", help="b_min")
    settings.add_argument("--fills", default="2", help="F, for the planner without a cost")
    settings.add_argument("--choose", action="store_true", help="compare settings instead of arms")
    settings.add_argument("--arm", default="wavepp", help="the arm that --choose is about")
    output = parser.add_argument_group("output")
    output.add_argument("--json", type=Path, metavar="FILE", help="write the records")
    output.add_argument("--timeline", action="store_true", help="print each arm's stages as text")
    output.add_argument(
        "--picture", type=Path, metavar="FILE.svg", help="draw the timelines of a single cell"
    )
    return parser


def _machine(asked: argparse.Namespace) -> Machine:
    stages = tuple(float(part) for part in asked.stages.split(",")) if asked.stages else (1.0,) * asked.pp
    stock_host = asked.host_ms if asked.stock_host_ms is None else asked.stock_host_ms
    return Machine(
        stages=stages,
        cost=WaveCost(
            per_wave=asked.per_wave_ms / 1e3,
            per_token=asked.per_token_us / 1e6,
            per_pair=asked.per_pair_ps / 1e12,
        ),
        max_tokens=_numbers(asked.max_wave_tokens)[0],
        page=asked.page,
        host=asked.host_ms / 1e3,
        stock_host=stock_host / 1e3,
        transfer=asked.transfer_us / 1e6,
        admitted_waves=asked.admitted_waves,
    )


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _cells(asked: argparse.Namespace) -> list[tuple[str, int]]:
    if not asked.cells:
        return [*GRID, *OTHERS]
    cells = []
    for part in asked.cells.replace(",", " ").split():
        name, _, concurrency = part.partition(":")
        cells.append((name, int(concurrency or (32 if name == "phases" else 1))))
    return cells


def _arms(asked: argparse.Namespace) -> list[Arm]:
    if not asked.arms:
        return list(ARMS.values())
    unknown = [name for name in asked.arms.split(",") if name not in ARMS]
    if unknown:
        raise ValueError(f"unknown arm {', '.join(unknown)}; there are {', '.join(ARMS)}")
    return [ARMS[name] for name in asked.arms.split(",")]


def _workload(cell: tuple[str, int], asked: argparse.Namespace) -> Workload:
    if asked.rate is not None:
        return opened(cell[0], rate=asked.rate, count=asked.requests)
    return replace(workload_of(*cell, rounds=asked.rounds), stagger=asked.stagger_ms / 1e3)


def _simulate(machine: Machine, asked: argparse.Namespace) -> None:
    arms, cells = _arms(asked), _cells(asked)
    knobs = Knobs(min_tokens=_numbers(asked.min_wave_tokens)[0], fills=_numbers(asked.fills)[0])
    records: list[Record] = []
    for number, cell in enumerate(cells):
        if sys.stderr.isatty():
            print(f"\r{number + 1}/{len(cells)} {cell[0]} c{cell[1]}\033[K", end="", file=sys.stderr)
        records += run_cell(machine, _workload(cell, asked), arms, knobs=knobs)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    results = Results(records)
    everything = len(arms) == len(ARMS)
    print(comparison(results) if everything and len(cells) > 1 else by_arm(results))
    if asked.timeline or asked.picture:
        workload = _workload(cells[0], asked)
        runs = [(arm.name, arm.run(machine, workload, knobs)) for arm in arms]
        if asked.timeline:
            for name, run in runs:
                print(f"\n{name}: {run.tok_s:,.0f} tok/s\n{text_timeline(run)}")
        if asked.picture:
            asked.picture.write_text(svg_timeline(runs), encoding="utf-8")
            print(f"wrote {asked.picture}")
    if asked.json:
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        asked.json.write_text(
            json.dumps([record.as_dict() for record in records], indent=1) + "\n", encoding="utf-8"
        )
        print(f"wrote {asked.json}")


def _choose(machine: Machine, asked: argparse.Namespace) -> str:
    if asked.arm not in ARMS:
        raise ValueError(f"unknown arm {asked.arm}")
    choices = compare(
        machine,
        _cells(asked),
        arm=asked.arm,
        max_tokens=_numbers(asked.max_wave_tokens),
        min_tokens=_numbers(asked.min_wave_tokens),
        fills=_numbers(asked.fills),
        rounds=asked.rounds,
    )
    return table(choices)


if __name__ == "__main__":
    sys.exit(main())
