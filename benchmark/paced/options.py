"""What a paced run is asked for: the command line, and the loads, servers and cache sizes that it means."""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from benchmark.paced.argument_types import device, file, listed, whole
from benchmark.paced.arms import LADDER, STOCK_DEFAULT_CHUNK, Arm, arms_named
from benchmark.paced.best_stock import best_scouted
from benchmark.paced.cells import PAGE, TEN, Cell, cells_named
from benchmark.paced.device_model import PRESETS
from benchmark.paced.load import Load
from benchmark.paced.measure import Setting
from benchmark.paced.run import digest_of
from benchmark.paced.survival import RATES, Survival, cache_tokens
from benchmark.paced.trace_file import TraceLoad, read_trace
from sglang_wavepp.simulate.command_line import not_negative, positive

WAVE_TOKENS = 16_384
"""M, before it is shortened."""
POOL = 8_388_608
"""Cache tokens of a stage, before they are shortened: the largest cell fits twice."""
MOST_STAGES = 8
TOGETHER = 5
"""So many servers of eight stages fit into 24 GB of memory."""
SURVIVING_SHARE = 0.6
"""Cache of the survival benchmark, as a share of all documents."""
ARMS = {
    "grid": "stock-p-dynamic stock-dynamic wavepp",
    "ladder": " ".join(LADDER),
    "scout": " ".join(STOCK_DEFAULT_CHUNK),
    "survival": "stock wavepp",
    "trace": "stock-p-dynamic wavepp",
    "serving": "stock-2p-stream wavepp",
}
LADDER_CELLS = "cold131:16 reuse131:8"
SCOUT_CELLS = "reuse131:4 cold131:8"
"""One cell with small waves and one with large ones tell the stock arms apart; all ten take two hours."""
SERVING_CELLS = "cold65:1 cold65:8"
"""Two clients play them, so they must need no prefixes."""
DEFAULT_CELLS = {"ladder": LADDER_CELLS, "scout": SCOUT_CELLS, "serving": SERVING_CELLS}


class _Parser(argparse.ArgumentParser):
    """Raises what is wrong with a command line, so that it is said as everything else that is wrong."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def parser(environ: Mapping[str, str] = os.environ, about: str | None = None) -> argparse.ArgumentParser:
    """The command line. Most options can also be given in the environment, in capitals, as ``make`` does.

    `parse_args` raises ``ValueError`` where an argument isn't right.

    Args:
        about: what it does, for the help.
    """

    def given(name: str, default: str) -> str:
        # A text even where it is a number: argparse gives a default the type of its option only then.
        return environ.get(name) or default

    options = _Parser(
        prog="python -m benchmark.paced",
        description=about,
        epilog="Each option but --fresh can also be given in the environment, in capitals: PP=4 make bench-paced. What"
        " the kind of run doesn't use is ignored.",
    )
    add = options.add_argument
    add(
        "what",
        choices=list(ARMS),
        nargs="?",
        default="grid",
        help="grid (default): the ten cells; scout: all stock arms with chunks of M, once, two cells; ladder: what each"
        " mechanism adds; survival: growing arrival rates on a small cache; trace: FILE; serving: beside"
        " sglang.bench_serving",
    )
    add(
        "--cells",
        default=given("CELLS", ""),
        help="such as 'reuse131:4 cold131:8 phases'; default: all ten (ladder, scout and serving: two each)",
    )
    add(
        "--arms",
        default=given("ARMS", ""),
        help="servers to compare, by name; best: the best two stock arms of a scout; default: by what is played",
    )
    add("--pp", type=whole(2, MOST_STAGES), default=given("PP", "8"), help="stages (default 8)")
    add(
        "--repeats",
        type=whole(0),
        default=given("REPEATS", "0"),
        help="of each cell and arm (default 3; scout 1)",
    )
    add("--rounds", type=whole(1), default=given("ROUNDS", "2"), help="requests per client (default 2)")
    add(
        "--scale",
        type=not_negative,
        default=given("SCALE", "0"),
        help="speed of the device (default: each cell's)",
    )
    add(
        "--shorten",
        type=_divisor,
        default=given("SHORTEN", "4"),
        help="divisor of lengths and waves (default 4)",
    )
    add("--device", type=device, default=given("DEVICE", "even"), help=f"one of {' '.join(PRESETS)}")
    add(
        "--pool",
        type=whole(0),
        default=given("POOL", "0"),
        help=f"cache tokens of a stage, as they are (default {POOL:,} / SHORTEN)",
    )
    add(
        "--share",
        type=positive,
        default=environ.get("SHARE") or None,
        help=f"cache as a share of all documents (survival, default {SURVIVING_SHARE}); 1.5 holds them all",
    )
    add(
        "--together",
        type=whole(1),
        default=given("TOGETHER", str(TOGETHER)),
        help=f"servers that are up at a time; more arms go in groups, one after the other (default {TOGETHER})",
    )
    add(
        "--rates",
        type=listed(positive),
        default=given("RATES", " ".join(map(str, RATES))),
        help=f"arrivals a second (survival, default {' '.join(map(str, RATES))})",
    )
    add(
        "--requests",
        type=whole(1),
        default=given("REQUESTS", "60"),
        help="per rate (survival), of the file (trace); default 60",
    )
    add(
        "--file",
        type=file,
        default=given("FILE", ""),
        help="a trace: JSON lines with input_length and hash_ids",
    )
    add(
        "--concurrency",
        type=listed(whole(1)),
        default=given("CONCURRENCY", "8"),
        help="of a trace, such as '1 8 32' (default 8)",
    )
    add("--out", default=given("OUT", ""), help="the JSON (default build/bench/paced*.json)")
    add("--fresh", action="store_true", help="forget what was measured before")
    return options


def loads_of(asked: argparse.Namespace) -> tuple[Load, ...]:
    """What is to be played.

    Raises:
        ValueError: a name or file isn't right, or a trace has none.
        OSError: the file can't be read.
    """
    if asked.what == "survival":
        return tuple(Survival(rate, asked.requests) for rate in asked.rates)
    if asked.what == "trace":
        path = _trace_of(asked)
        entries = tuple(read_trace(path, asked.requests))
        stem = path.name.split(".")[0].replace("-", "_")
        return tuple(TraceLoad(stem, entries, concurrency) for concurrency in asked.concurrency)
    cells = cells_named(asked.cells or DEFAULT_CELLS.get(asked.what, " ".join(TEN)), rounds=asked.rounds)
    if asked.what == "serving":
        _require_cold(cells)
    return cells


def pool_of(asked: argparse.Namespace) -> int:
    """Cache tokens of a stage.

    Raises:
        ValueError: it is given in two ways.
    """
    if asked.pool and asked.share:
        raise ValueError(
            "--pool (POOL=) and --share (SHARE=) both say how large the cache is: give one of them"
        )
    if asked.pool:
        return int(asked.pool)
    if asked.what == "survival":
        return cache_tokens(asked.share or SURVIVING_SHARE, shorten=asked.shorten)
    return POOL // int(asked.shorten)


def arms_of(asked: argparse.Namespace, setting: Setting, folder: Path) -> tuple[Arm, ...]:
    """The servers that are compared.

    Args:
        setting: that a scouting run must have had, too.
        folder: of the scouting run's JSON.

    Raises:
        ValueError: a name isn't right, or nothing was scouted.
        OSError: the scouting run's JSON can't be read.
    """
    names = list(dict.fromkeys((asked.arms or ARMS[asked.what]).replace(",", " ").split()))
    if "best" in names:
        command = f"make bench-scout PP={asked.pp} SHORTEN={asked.shorten} DEVICE={asked.device}"
        found = best_scouted(folder / "paced-scout.json", setting, command)
        place = names.index("best")
        names[place : place + 1] = [name for name in found if name not in names]
    return arms_named(" ".join(names))


def setting_of(asked: argparse.Namespace) -> Setting:
    """What all arms share, with a digest of everything that a figure depends on.

    Raises:
        ValueError: the cache is given in two ways, or a trace has no file.
        OSError: the trace can't be read.
    """
    setting = Setting(
        pp=asked.pp,
        wave_tokens=WAVE_TOKENS // asked.shorten,
        shorten=asked.shorten,
        model=PRESETS[asked.device].shortened(asked.shorten),
        scale=asked.scale or None,
        digest="",
    )
    # What was decided here counts, not how: this module's source does not.
    decided = (setting, pool_of(asked), *_requests_of(asked))
    return replace(setting, digest=digest_of(repr(decided)))


def repeats_of(asked: argparse.Namespace) -> int:
    """Of each cell and arm."""
    return int(asked.repeats) or (1 if asked.what == "scout" else 3)


def _requests_of(asked: argparse.Namespace) -> tuple[object, ...]:
    """What decides the requests of a load, but for what its name says."""
    if asked.what == "survival":
        return (asked.requests,)
    if asked.what == "trace":
        # The content: figures of another file under the same name are not taken for its own.
        return (asked.requests, hashlib.sha256(_trace_of(asked).read_bytes()).hexdigest())
    return (asked.rounds,)


def _trace_of(asked: argparse.Namespace) -> Path:
    path: Path | None = asked.file
    if path is None:
        raise ValueError("a trace is replayed from a file, say which: FILE=trace.jsonl (or --file)")
    return path


def _divisor(text: str) -> int:
    """Of lengths and waves, so that M stays a whole number of pages."""
    by = whole(1)(text)
    if WAVE_TOKENS % (by * PAGE):
        raise argparse.ArgumentTypeError(
            f"M of {WAVE_TOKENS:,} tokens divided by {by} is no whole number of pages of {PAGE}"
        )
    return by


def _require_cold(cells: Sequence[Cell]) -> None:
    warm = [cell.name for cell in cells if not cell.kind.startswith("cold")]
    if warm:
        raise ValueError(f"sglang.bench_serving plays cold cells only, not {' '.join(warm)}")
