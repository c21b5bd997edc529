"""``python -m benchmark.paced``: stock SGLang and WavePP on a paced device, cell by cell, the arms in turn.

Everything of the servers is real but the forward of a stage, so this measures scheduling and not kernels. A run that
was interrupted goes on where it was. See ``docs/benchmarks.md``.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmark.client import RequestFailed
from benchmark.interleaved import frozen
from benchmark.paced import tables
from benchmark.paced.arms import LADDER, STOCK_DEFAULT_CHUNK, Arm, arms_named
from benchmark.paced.cells import TEN, Cell, cells_named
from benchmark.paced.device_model import PRESETS
from benchmark.paced.measure import Setting, measure
from benchmark.paced.paced_server import PacedServer
from benchmark.paced.records import Records, usable
from benchmark.paced.steps import Steps
from benchmark.servers import CHECKOUT, ServerError

DEFAULT_ARMS = "stock stock-2p-stream wavepp-static"
WAVE_TOKENS = 16_384
ATTEMPTS = 2
"""How often a repeat that was rejected is measured again before it stands as rejected."""
_SOURCES = ("python/sglang_wavepp", "sgl_patches", "benchmark/paced")


class Run:
    """Arms, cells and repeats on one setting.

    Args:
        arms: which servers; all run at a time, those that aren't measured are frozen.
        records: gets each record as soon as it is measured.
        folder: for logs and traces.
    """

    def __init__(
        self, arms: Sequence[Arm], setting: Setting, records: Records, folder: Path, *, pool: int
    ) -> None:
        self._arms = arms
        self._setting = setting
        self._records = records
        self._folder = folder
        self._pool = pool
        self._servers: dict[str, PacedServer] = {}

    def run(self, cells: Sequence[Cell], repeats: int, scale_of: dict[str, float] | None = None) -> None:
        """Measure what isn't kept yet.

        Raises:
            RequestFailed: a request wasn't answered.
            ServerError: a server didn't start.
        """
        todo = [
            (cell, repeat, arm)
            for cell in cells
            for repeat in range(repeats)
            for arm in self._arms[:: 1 if repeat % 2 == 0 else -1]
            if self._kept(cell, arm, repeat) is None
        ]
        if not todo:
            print("everything was measured before; --fresh measures it again")
            return
        needed = [arm for arm in self._arms if any(arm is other for _, _, other in todo)]
        steps = Steps(len(needed) + len(todo))
        with ExitStack() as ending:
            for arm in needed:
                steps.step(f"starting {arm.name}")
                with frozen(list(self._servers.values())):
                    self._start(arm, ending, steps)
                steps.done()
            for cell, repeat, arm in todo:
                steps.step(f"{cell.name} {arm.name} ({repeat + 1} of {repeats})")
                self._measure(cell, repeat, arm, steps)
                steps.done()

    def _kept(self, cell: Cell, arm: Arm, repeat: int) -> object:
        return self._records.find(cell.kind, cell.concurrency, arm.name, repeat, self._setting.digest)

    def _start(self, arm: Arm, ending: ExitStack, steps: Steps) -> None:
        setting = self._setting
        config = arm.config(
            pp=setting.pp, wave_tokens=setting.wave_tokens, device=setting.model, pool=self._pool
        )
        server = PacedServer(config, self._folder)
        ending.callback(server.stop)
        server.start(steps.detail)
        self._servers[arm.name] = server

    def _measure(self, cell: Cell, repeat: int, arm: Arm, steps: Steps) -> None:
        others = [server for name, server in self._servers.items() if name != arm.name]
        with frozen(others):
            for attempt in range(ATTEMPTS):
                record = measure(
                    self._servers[arm.name],
                    cell,
                    self._setting,
                    arm=arm.name,
                    repeat=repeat,
                    attempt=attempt,
                    progress=steps.detail,
                )
                self._records.add(record)
                if not record.rejected:
                    return
                steps.detail(f"rejected: {record.reason}")


def digest_of(setting_text: str) -> str:
    """Of the sources that a figure depends on, and of the settings in words."""
    digest = hashlib.sha256(setting_text.encode())
    for folder in _SOURCES:
        for path in sorted((CHECKOUT / folder).rglob("*.py")):
            digest.update(path.relative_to(CHECKOUT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def parser() -> argparse.ArgumentParser:
    """The command line; every option also comes from the environment, in capitals."""

    def given(name: str, default: str) -> str:
        return os.environ.get(name) or default

    options = argparse.ArgumentParser(prog="python -m benchmark.paced", description=__doc__)
    out = str(CHECKOUT / "build" / "bench" / "paced.json")
    add = options.add_argument
    add("--cells", default=given("CELLS", " ".join(TEN)), help="such as 'reuse131:4 cold131:8 phases'")
    add("--arms", default=given("ARMS", DEFAULT_ARMS), help="servers to compare, by name")
    add("--ladder", action="store_true", help="the arms of the ablation ladder")
    add("--scout", action="store_true", help="all stock arms at the default chunk size")
    add("--pp", type=int, default=int(given("PP", "8")), help="stages (default 8)")
    add("--repeats", type=int, default=int(given("REPEATS", "3")), help="of each cell and arm (default 3)")
    add("--rounds", type=int, default=int(given("ROUNDS", "2")), help="requests per client (default 2)")
    add("--scale", type=float, default=float(given("SCALE", "1")), help="speed of the device (default 1)")
    add(
        "--shorten",
        type=int,
        default=int(given("SHORTEN", "4")),
        help="shorter prompts and waves (default 4)",
    )
    add("--device", choices=list(PRESETS), default=given("DEVICE", "even"), help="what the device is like")
    add("--pool", type=int, default=int(given("POOL", "2097152")), help="cache tokens of a stage")
    add("--out", type=Path, default=Path(given("OUT", out)), help="the JSON")
    add("--fresh", action="store_true", help="forget what was measured before")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 0 when every figure may be used."""
    asked = parser().parse_args(arguments)
    try:
        cells = cells_named(asked.cells, rounds=asked.rounds)
        names = LADDER if asked.ladder else STOCK_DEFAULT_CHUNK if asked.scout else asked.arms
        arms = arms_named(names if isinstance(names, str) else " ".join(names))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    words = [str(getattr(asked, name)) for name in ("pp", "rounds", "scale", "shorten", "device", "pool")]
    setting = Setting(
        pp=asked.pp,
        wave_tokens=WAVE_TOKENS // asked.shorten,
        shorten=asked.shorten,
        model=PRESETS[asked.device].shortened(asked.shorten),
        scale=asked.scale,
        digest=digest_of(" ".join(words)),
    )
    if asked.fresh:
        asked.out.unlink(missing_ok=True)
    records = Records(asked.out)
    try:
        Run(arms, setting, records, asked.out.parent / "paced", pool=asked.pool).run(cells, asked.repeats)
    except (RequestFailed, ServerError) as error:
        print(f"\nerror: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here")
        return 130
    kept = records.of(setting.digest)
    print(tables.table(kept))
    print(f"\n  {asked.out}")
    return 0 if len(usable(kept)) == len(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
