"""The simulator's command line: its options, which of them go together, and what pipeline and workloads they name."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from sglang_wavepp.planning.cost import WaveCost
from sglang_wavepp.simulate.arms import ARMS, Knobs
from sglang_wavepp.simulate.command_line import (
    OneLineParser,
    arms_of,
    cells_of,
    count,
    counts,
    not_negative,
    open_workloads_of,
    positive,
    positives,
)
from sglang_wavepp.simulate.machine import Machine
from sglang_wavepp.simulate.records import workload_of
from sglang_wavepp.simulate.table import COMPARISON_HELP
from sglang_wavepp.simulate.workload import Workload, opened

EXAMPLES = """examples:
  the whole grid on eight stages:            python -m sglang_wavepp.simulate
  one cell, all arms, with a timeline:       python -m sglang_wavepp.simulate --cells reuse131:4 --timeline
  a slow stage, a device of your own:        python -m sglang_wavepp.simulate --stages 1,1,1.3,1 --per-wave-ms 12
  2 requests a second at random:             python -m sglang_wavepp.simulate --cells mixed131 --rate 2 --requests 200
  settings compared over the grid:           python -m sglang_wavepp.simulate --choose --max-wave-tokens 8192,16384
"""
DEFAULT = Machine.even(8)
ROUNDS, REQUESTS = 2, 100
CHOSEN = "wavepp"
"""The arm of `--choose`."""
NOT_CHOSEN = ("rate", "requests", "stagger_ms", "arms", "json", "picture", "timeline")
"""Options that `--choose` has no use for."""

SUPPLY = "wavepp-supply"
"""The only arm that reads F."""


def parser(about: str) -> OneLineParser:
    """The options. Those that don't go with all others have no default here, so that `check` sees which were given.

    Args:
        about: what the program does.
    """
    options = OneLineParser(
        prog="python -m sglang_wavepp.simulate",
        description=about,
        epilog=EXAMPLES + "\narms:\n" + "\n".join(f"  {arm.name:18} {arm.about}" for arm in ARMS.values())
        + "\n\n" + COMPARISON_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    what = options.add_argument_group("what is asked")
    what.add_argument(
        "--cells",
        default="",
        help="space- or comma-separated WORKLOAD:CONCURRENCY, such as reuse131:4, cold65:16, mixed131:8 or phases;"
        " default: all 25 cells, mixed traffic and phases",
    )
    what.add_argument(
        "--rounds", type=count, help=f"requests of a run, as a multiple of the concurrency; default: {ROUNDS}"
    )
    what.add_argument("--rate", type=positive, help="an open loop instead: requests a second")
    what.add_argument("--requests", type=count, help=f"requests of an open loop; default: {REQUESTS}")
    what.add_argument(
        "--stagger-ms", type=not_negative, help="between the first requests of a closed loop; default: 0"
    )
    what.add_argument("--arms", help="space- or comma-separated; default: all")
    device = options.add_argument_group("the machine")
    device.add_argument("--pp", type=count, help=f"equal stages; default: {len(DEFAULT.stages)}")
    device.add_argument(
        "--stages", type=positives, help="times of the stages relative to the cost, such as 1,1,1.3,1"
    )
    cost = DEFAULT.cost
    device.add_argument(
        "--per-wave-ms",
        type=not_negative,
        default=cost.per_wave * 1e3,
        help=f"C: a wave by itself; default: {cost.per_wave * 1e3:g}",
    )
    device.add_argument(
        "--per-token-us",
        type=positive,
        default=cost.per_token * 1e6,
        help=f"A: each token; default: {cost.per_token * 1e6:g}",
    )
    device.add_argument(
        "--per-pair-ps",
        type=not_negative,
        default=cost.per_pair * 1e12,
        help=f"B: each token and token before it; default: {cost.per_pair * 1e12:g}",
    )
    device.add_argument(
        "--host-ms",
        type=not_negative,
        default=DEFAULT.host * 1e3,
        help=f"a wave on the host of a stage; default: {DEFAULT.host * 1e3:g}",
    )
    device.add_argument(
        "--stock-host-ms", type=not_negative, help="the same for stock; default: as --host-ms"
    )
    device.add_argument(
        "--transfer-us",
        type=not_negative,
        default=DEFAULT.transfer * 1e6,
        help="a token from stage to stage",
    )
    device.add_argument(
        "--page", type=count, default=DEFAULT.page, help=f"tokens of a page; default: {DEFAULT.page}"
    )
    device.add_argument(
        "--admitted-waves",
        type=positive,
        default=DEFAULT.admitted_waves,
        help=f"largest waves admitted before they are planned; default: {DEFAULT.admitted_waves:g}, as in the server",
    )
    settings = options.add_argument_group("settings (with --choose: several, comma-separated)")
    settings.add_argument(
        "--max-wave-tokens",
        type=counts,
        default=(DEFAULT.max_tokens,),
        help=f"M; default: {DEFAULT.max_tokens}",
    )
    settings.add_argument("--min-wave-tokens", type=counts, help="b_min; default: M / 32, as in the server")
    settings.add_argument(
        "--fills",
        type=counts,
        default=(Knobs().fills,),
        help="F, for wavepp-supply (--wavepp-planner supply)",
    )
    settings.add_argument("--choose", action="store_true", help="compare settings instead of arms")
    settings.add_argument("--arm", help=f"the arm that --choose is about; default: {CHOSEN}")
    output = options.add_argument_group("output")
    output.add_argument("--json", type=Path, metavar="FILE", help="write the records")
    output.add_argument("--timeline", action="store_true", help="print each arm's stages as text")
    output.add_argument(
        "--picture", type=Path, metavar="FILE.svg", help="draw the timelines of a single cell"
    )
    return options


def check(asked: argparse.Namespace) -> None:
    """Refuse options that would be ignored beside others.

    Raises:
        ValueError: names one.
    """
    given = [name for name, value in vars(asked).items() if value is not None and value is not False]
    if asked.choose:
        for name in NOT_CHOSEN:
            if name in given:
                raise ValueError(f"--choose compares settings in closed loops, without {_flag(name)}")
    else:
        if "arm" in given:
            raise ValueError("--arm belongs to --choose; --arms says which arms are compared")
        for name in ("max_wave_tokens", "min_wave_tokens", "fills"):
            if name in given and len(getattr(asked, name)) > 1:
                raise ValueError(f"several values of {_flag(name)} are compared with --choose only")
    chosen = asked.arm or CHOSEN if asked.choose else asked.arms or SUPPLY
    if asked.fills != (Knobs().fills,) and SUPPLY not in chosen:
        raise ValueError(
            f"--fills is read by {SUPPLY} alone: name it with {'--arm' if asked.choose else '--arms'}"
        )
    if asked.rate is None and "requests" in given:
        raise ValueError("--requests belongs to an open loop: add --rate, or take --rounds")
    for name in ("rounds", "stagger_ms"):
        if asked.rate is not None and name in given:
            raise ValueError(f"{_flag(name)} belongs to a closed loop, --rate asks for an open one")
    if asked.pp is not None and asked.stages is not None:
        raise ValueError("--stages says how many stages there are; leave --pp out")
    largest = max(asked.max_wave_tokens)
    for smallest in asked.min_wave_tokens or ():
        if smallest > largest:
            raise ValueError(f"--min-wave-tokens {smallest} is more than a wave of {largest} tokens")
    if asked.json is not None and asked.json == asked.picture:
        raise ValueError(f"--json and --picture can't both be {asked.json}")


def machine_of(asked: argparse.Namespace) -> Machine:
    """The pipeline that is asked for, with the first of the largest waves.

    Raises:
        ValueError: there can't be such a one.
    """
    host = asked.host_ms / 1e3
    return replace(
        DEFAULT,
        stages=asked.stages or (1.0,) * (asked.pp or len(DEFAULT.stages)),
        cost=WaveCost(
            per_wave=asked.per_wave_ms / 1e3,
            per_token=asked.per_token_us / 1e6,
            per_pair=asked.per_pair_ps / 1e12,
        ),
        max_tokens=asked.max_wave_tokens[0],
        page=asked.page,
        host=host,
        stock_host=host if asked.stock_host_ms is None else asked.stock_host_ms / 1e3,
        transfer=asked.transfer_us / 1e6,
        admitted_waves=asked.admitted_waves,
    )


def workloads_of(asked: argparse.Namespace) -> list[Workload]:
    """What is asked of the pipeline, one workload for each cell.

    Raises:
        ValueError: a cell isn't known, or a picture of several is asked for.
    """
    if asked.rate is not None:
        workloads = [
            opened(name, rate=asked.rate, count=asked.requests or REQUESTS, page=asked.page)
            for name in open_workloads_of(asked.cells)
        ]
    else:
        stagger = (asked.stagger_ms or 0.0) / 1e3
        workloads = [
            replace(workload_of(*cell, rounds=rounds_of(asked), page=asked.page), stagger=stagger)
            for cell in cells_of(asked.cells)
        ]
    if len(workloads) > 1 and (asked.timeline or asked.picture is not None):
        raise ValueError("--timeline and --picture show a single cell: name it with --cells")
    return workloads


def rounds_of(asked: argparse.Namespace) -> int:
    """Requests of a closed loop, as a multiple of its concurrency."""
    return int(asked.rounds or ROUNDS)


def arm_chosen(asked: argparse.Namespace) -> str:
    """The arm whose settings are compared.

    Raises:
        ValueError: there is no such arm, or not a single one.
    """
    arms = arms_of(CHOSEN if asked.arm is None else asked.arm)
    if len(arms) > 1:
        raise ValueError("--arm takes a single arm")
    return arms[0].name


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
