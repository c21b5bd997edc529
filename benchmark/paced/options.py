"""What a paced run is asked for: the command line, and the loads, servers and cache sizes that it means."""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmark.paced.arms import LADDER, STOCK_DEFAULT_CHUNK, Arm, arms_named
from benchmark.paced.cells import TEN, Cell, cells_named
from benchmark.paced.device_model import PRESETS
from benchmark.paced.load import Load
from benchmark.paced.measure import Setting
from benchmark.paced.records import Record, Records, by_cell_and_arm, usable
from benchmark.paced.run import digest_of
from benchmark.paced.survival import RATES, Survival, working_set
from benchmark.paced.trace_file import TraceLoad, read_trace

WAVE_TOKENS = 16_384
"""M, before it is shortened."""
POOL = 8_388_608
"""Cache tokens of a stage, before they are shortened: the largest cell fits twice."""
BEST_STOCK = 2
"""How many stock arms of a scouting run are measured beside WavePP."""
SURVIVING_SHARE = 0.6
"""Cache of the survival benchmark, as a share of all documents."""
ARMS = {
    "grid": "stock-2p-stream stock-dynamic wavepp",
    "ladder": " ".join(LADDER),
    "scout": " ".join(STOCK_DEFAULT_CHUNK),
    "survival": "stock wavepp",
    "trace": "stock-2p-stream wavepp",
    "serving": "stock-2p-stream wavepp",
}
LADDER_CELLS = "cold131:16 reuse131:8"
SCOUT_CELLS = "reuse131:4 cold131:8"
"""One cell with small waves and one with large ones tell the stock arms apart; all ten take an hour and a half."""
SERVING_CELLS = "cold65:1 cold65:8"
"""Two clients play them, so they must need no prefixes."""
DEFAULT_CELLS = {"ladder": LADDER_CELLS, "scout": SCOUT_CELLS, "serving": SERVING_CELLS}


def parser(environ: Mapping[str, str] = os.environ, about: str | None = None) -> argparse.ArgumentParser:
    """The command line. Most options can also be given in the environment, in capitals, as ``make`` does.

    Args:
        about: what it does, for the help.
    """

    def given(name: str, default: str) -> str:
        return environ.get(name) or default

    options = argparse.ArgumentParser(prog="python -m benchmark.paced", description=about)
    add = options.add_argument
    add(
        "what",
        choices=list(ARMS),
        nargs="?",
        default="grid",
        help="grid: the ten cells; scout: all stock arms once, two cells; serving: beside sglang.bench_serving",
    )
    add("--cells", default=given("CELLS", ""), help="such as 'reuse131:4 cold131:8 phases'")
    add(
        "--arms",
        default=given("ARMS", ""),
        help="servers to compare, by name; best: the best two stock arms of a scout",
    )
    add("--pp", type=int, default=int(given("PP", "8")), help="stages (default 8)")
    add(
        "--repeats",
        type=int,
        default=int(given("REPEATS", "0")),
        help="of each cell and arm (default 3; scout 1)",
    )
    add("--rounds", type=int, default=int(given("ROUNDS", "2")), help="requests per client (default 2)")
    add(
        "--scale",
        type=float,
        default=float(given("SCALE", "0")),
        help="speed of the device (default: each cell's)",
    )
    add(
        "--shorten",
        type=int,
        default=int(given("SHORTEN", "4")),
        help="divisor of lengths and waves (default 4)",
    )
    add("--device", choices=list(PRESETS), default=given("DEVICE", "even"), help="what the device is like")
    add("--pool", type=int, default=int(given("POOL", "0")), help="cache tokens of a stage, as they are")
    add("--rates", default=given("RATES", " ".join(map(str, RATES))), help="arrivals a second (survival)")
    add(
        "--requests",
        type=int,
        default=int(given("REQUESTS", "60")),
        help="per rate (survival), of the file (trace)",
    )
    add("--file", default=given("FILE", ""), help="a trace: JSON lines with input_length and hash_ids")
    add("--concurrency", default=given("CONCURRENCY", "8"), help="of a trace, such as '1 8 32'")
    add("--out", default=given("OUT", ""), help="the JSON (default build/bench/paced*.json)")
    add("--fresh", action="store_true", help="forget what was measured before")
    return options


def loads_of(asked: argparse.Namespace) -> tuple[Load, ...]:
    """What is to be played.

    Raises:
        ValueError: a name, rate or file isn't right.
        OSError: the file can't be read.
    """
    if asked.what == "survival":
        return tuple(Survival(float(rate), asked.requests) for rate in asked.rates.replace(",", " ").split())
    if asked.what == "trace":
        path = Path(asked.file)
        entries = tuple(read_trace(path, asked.requests))
        stem = path.name.split(".")[0].replace("-", "_")
        return tuple(TraceLoad(stem, entries, int(c)) for c in asked.concurrency.replace(",", " ").split())
    cells = cells_named(asked.cells or DEFAULT_CELLS.get(asked.what, " ".join(TEN)), rounds=asked.rounds)
    if asked.what == "serving":
        _require_cold(cells)
    return cells


def pool_of(asked: argparse.Namespace) -> int:
    """Cache tokens of a stage."""
    if asked.pool:
        return int(asked.pool)
    if asked.what == "survival":
        return int(working_set(asked.shorten) * SURVIVING_SHARE) // 64 * 64
    return POOL // int(asked.shorten)


def best_stock(records: Sequence[Record]) -> list[str]:
    """The stock arms with the highest geometric mean over the cells that all of them have, best first.

    What was rejected does not count, and of several settings only the last in the file do.

    Raises:
        ValueError: no stock arm was measured, or they have no cell in common.
    """
    scouted = [each for each in usable(records) if each.settings == records[-1].settings]
    by_arm: dict[str, dict[tuple[str, int], float]] = {}
    for (workload, concurrency, arm), group in by_cell_and_arm(scouted).items():
        if arm.startswith("stock"):
            tok_s = statistics.median(record.tok_s for record in group)
            by_arm.setdefault(arm, {})[workload, concurrency] = tok_s
    if not by_arm:
        raise ValueError("no stock arm was scouted that may be used; run: python -m benchmark.paced scout")
    common = set.intersection(*(set(cells) for cells in by_arm.values()))
    if not common:
        raise ValueError(
            f"{', '.join(by_arm)} have no cell in common that may be used and has the settings of the last scouting run"
        )
    means = {arm: statistics.geometric_mean([cells[c] for c in common]) for arm, cells in by_arm.items()}
    return sorted(means, key=lambda arm: -means[arm])[:BEST_STOCK]


def arms_of(asked: argparse.Namespace, folder: Path) -> tuple[Arm, ...]:
    """The servers that are compared.

    Raises:
        ValueError: a name isn't right, or nothing was scouted.
    """
    names = (asked.arms or ARMS[asked.what]).replace(",", " ").split()
    if "best" in names:
        found = best_stock(Records(folder / "paced-scout.json").all())
        place = names.index("best")
        names[place : place + 1] = [name for name in found if name not in names]
    return arms_named(" ".join(names))


def setting_of(asked: argparse.Namespace) -> Setting:
    """What all arms share, with a digest of everything that a figure depends on."""
    setting = Setting(
        pp=asked.pp,
        wave_tokens=WAVE_TOKENS // asked.shorten,
        shorten=asked.shorten,
        model=PRESETS[asked.device].shortened(asked.shorten),
        scale=asked.scale or None,
        digest="",
    )
    # What was decided here counts, not how: this module's source does not.
    decided = (setting, pool_of(asked), asked.rounds, asked.requests)
    return replace(setting, digest=digest_of(repr(decided)))


def repeats_of(asked: argparse.Namespace) -> int:
    """Of each cell and arm."""
    return int(asked.repeats) or (1 if asked.what == "scout" else 3)


def _require_cold(cells: Sequence[Cell]) -> None:
    warm = [cell.name for cell in cells if not cell.kind.startswith("cold")]
    if warm:
        raise ValueError(f"sglang.bench_serving plays cold cells only, not {' '.join(warm)}")
