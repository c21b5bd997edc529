"""``python -m benchmark.paced``: stock SGLang and WavePP on a paced device, the arms in turn.

Everything of the servers is real but the forward of a stage, so this measures scheduling and not kernels. A run that
was interrupted goes on where it was. See ``docs/benchmarks.md``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmark.client import RequestFailed
from benchmark.paced import tables
from benchmark.paced.arms import LADDER, STOCK_DEFAULT_CHUNK, Arm, arms_named
from benchmark.paced.cells import TEN, cells_named
from benchmark.paced.device_model import PRESETS
from benchmark.paced.load import Load
from benchmark.paced.measure import Setting
from benchmark.paced.pictures import draw
from benchmark.paced.ratios import ratio_table, ratios, write_ratios
from benchmark.paced.records import Record, Records, usable
from benchmark.paced.run import Run, digest_of
from benchmark.paced.simulated import simulated
from benchmark.paced.survival import RATES, Survival, working_set
from benchmark.paced.timelines import draw_timelines
from benchmark.paced.trace_file import TraceLoad, read_trace
from benchmark.servers import CHECKOUT, ServerError

WAVE_TOKENS = 16_384
"""M, before it is shortened."""
POOL = 8_388_608
"""Cache tokens of a stage, before they are shortened: the largest cell fits twice."""
BEST_STOCK = 2
"""How many stock arms of a scouting run are measured beside WavePP."""
SURVIVING_SHARE = 0.6
"""Cache of the survival benchmark, as a share of all documents."""
ARMS = {
    "grid": "stock stock-2p-stream wavepp-static wavepp",
    "ladder": " ".join(LADDER),
    "scout": " ".join(STOCK_DEFAULT_CHUNK),
    "survival": "stock wavepp",
    "trace": "stock-2p-stream wavepp",
}
LADDER_CELLS = "cold131:16 reuse131:8"
SCOUT_CELLS = "reuse131:4 cold131:8"
"""One cell with small waves and one with large ones tell the stock arms apart; all ten take an hour and a half."""
DEFAULT_CELLS = {"ladder": LADDER_CELLS, "scout": SCOUT_CELLS}


def parser(environ: Mapping[str, str] = os.environ) -> argparse.ArgumentParser:
    """The command line. Most options can also be given in the environment, in capitals, as ``make`` does."""

    def given(name: str, default: str) -> str:
        return environ.get(name) or default

    options = argparse.ArgumentParser(prog="python -m benchmark.paced", description=__doc__)
    add = options.add_argument
    add(
        "what",
        choices=list(ARMS),
        nargs="?",
        default="grid",
        help="grid: the ten cells; scout: all stock arms once, two cells",
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
    default = DEFAULT_CELLS.get(asked.what, " ".join(TEN))
    return cells_named(asked.cells or default, rounds=asked.rounds)


def pool_of(asked: argparse.Namespace) -> int:
    """Cache tokens of a stage."""
    if asked.pool:
        return int(asked.pool)
    if asked.what == "survival":
        return int(working_set(asked.shorten) * SURVIVING_SHARE) // 64 * 64
    return POOL // int(asked.shorten)


def best_stock(records: Sequence[Record]) -> list[str]:
    """The stock arms with the highest geometric mean over the cells that all of them have, best first.

    Raises:
        ValueError: no stock arm was measured.
    """
    by_arm: dict[str, dict[tuple[str, int], float]] = {}
    for record in records:
        if record.arm.startswith("stock"):
            by_arm.setdefault(record.arm, {})[record.workload, record.concurrency] = record.tok_s
    if not by_arm:
        raise ValueError("no stock arm was scouted; run: python -m benchmark.paced scout")
    common = set.intersection(*(set(cells) for cells in by_arm.values()))
    if not common:
        raise ValueError("the stock arms of the scouting run have no cell in common")
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


def _show(kept: Sequence[Record], setting: Setting, rounds: int, out: Path, traces: dict[str, Path]) -> None:
    found = ratios(kept, lambda record: simulated(record, setting, rounds=rounds))
    path = out.with_name(f"{out.stem}-ratios.json")
    write_ratios(found, path)
    print(f"{ratio_table(found)}\n\n  {path}")
    for picture in [*draw(kept, out), *draw_timelines(kept, traces, out)]:
        print(f"  {picture}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 0 when every figure may be used."""
    asked = parser().parse_args(arguments)
    folder = CHECKOUT / "build" / "bench"
    name = "paced.json" if asked.what == "grid" else f"paced-{asked.what}.json"
    out = Path(asked.out) if asked.out else folder / name
    try:
        loads, arms = loads_of(asked), arms_of(asked, folder)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    pool = pool_of(asked)
    words = [
        asked.pp,
        asked.rounds,
        asked.scale,
        asked.shorten,
        asked.device,
        WAVE_TOKENS,
        pool,
        asked.requests,
    ]
    setting = Setting(
        pp=asked.pp,
        wave_tokens=WAVE_TOKENS // asked.shorten,
        shorten=asked.shorten,
        model=PRESETS[asked.device].shortened(asked.shorten),
        scale=asked.scale or None,
        digest=digest_of(" ".join(map(str, words))),
    )
    if asked.fresh:
        out.unlink(missing_ok=True)
    records = Records(out)
    repeats = asked.repeats or (1 if asked.what == "scout" else 3)
    try:
        run = Run(arms, setting, records, out.parent / "paced", pool=pool)
        run.run(loads, repeats)
    except (RequestFailed, ServerError) as error:
        print(f"\nerror: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here")
        return 130
    kept = records.of(setting.digest)
    print(tables.table(kept))
    print(f"\n  {out}")
    _show(kept, setting, asked.rounds, out, run.traces)
    return 0 if len(usable(kept)) == len(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
