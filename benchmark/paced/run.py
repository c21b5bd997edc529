"""Loads, arms and repeats on one setting: the arms in turn, the others frozen, and what was measured before is kept."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

import msgspec

from benchmark.interleaved import frozen
from benchmark.paced.arms import Arm
from benchmark.paced.load import Load
from benchmark.paced.measure import Setting, measure
from benchmark.paced.paced_server import PacedServer, start_another
from benchmark.paced.records import Records
from benchmark.progress import Progress
from benchmark.servers import CHECKOUT

ATTEMPTS = 2
"""How often a repeat is measured when it is rejected, before it stands as rejected."""
_SOURCES = ("python/sglang_wavepp", "sgl_patches", "benchmark/paced")
_BESIDE = ("client", "configuration", "guard", "interleaved", "models", "servers", "workloads")
"""Modules of `benchmark` that decide flags, environment, freezing and tokens."""
_ASIDE = (
    *("__main__", "options", "argument_types", "checks", "best_stock"),
    *("client_comparison", "memory", "played"),
    *("idle_picture", "panel", "pictures", "ratios", "simulated", "tables", "text_table", "timelines"),
)
"""Modules that no figure of a record depends on: what was measured stays good when they change."""


class Run:
    """Arms, cells and repeats on one setting.

    Args:
        arms: which servers. Those that aren't measured are frozen.
        records: gets each record as soon as it is measured.
        folder: for logs and traces.
        together: servers that are up at a time; more arms than that are measured in groups, one after the other.
    """

    def __init__(
        self,
        arms: Sequence[Arm],
        setting: Setting,
        records: Records,
        folder: Path,
        *,
        pool: int,
        together: int,
    ) -> None:
        self._groups = groups_of(arms, together)
        self._setting = setting
        self._records = records
        self._folder = folder
        self._pool = pool
        self._traces: dict[str, Path] = {}

    def run(self, loads: Sequence[Load], repeats: int) -> None:
        """Measure what isn't kept yet.

        Raises:
            RequestFailed: a request wasn't answered.
            ServerError: a server didn't start.
        """
        todo = [self._missing(group, loads, repeats) for group in self._groups]
        if not any(todo):
            print("everything was measured before; --fresh measures it again")
            return
        progress = Progress(sum(len({arm.name for _, _, arm in each}) + len(each) for each in todo))
        for each in todo:
            self._play(each, repeats, progress)

    def _missing(
        self, group: Sequence[Arm], loads: Sequence[Load], repeats: int
    ) -> list[tuple[Load, int, Arm]]:
        """What isn't kept yet of these arms, which take turns."""
        return [
            (load, repeat, arm)
            for load in loads
            for repeat in range(repeats)
            for arm in group[:: 1 if repeat % 2 == 0 else -1]
            if self._kept(load, arm, repeat) is None
        ]

    def _play(self, todo: Sequence[tuple[Load, int, Arm]], repeats: int, progress: Progress) -> None:
        """Measure it, on servers that are up together and end with it."""
        servers: dict[str, PacedServer] = {}
        with ExitStack() as ending:
            for arm in {arm.name: arm for _, _, arm in todo}.values():
                progress.step(f"starting {arm.name}")
                with frozen(list(servers.values())):
                    servers[arm.name] = self._start(arm, list(servers.values()), ending, progress)
                progress.done()
            group = f"{' '.join(servers)}, {time.strftime('%Y-%m-%d %H:%M:%S')}"
            for load, repeat, arm in todo:
                progress.step(f"{load.name} {arm.name} ({repeat + 1} of {repeats})")
                others = [server for name, server in servers.items() if name != arm.name]
                with frozen(others):
                    progress.done(self._measure(servers[arm.name], load, repeat, arm, group, progress))

    @property
    def traces(self) -> dict[str, Path]:
        """Folder of the stages' traces, by arm, of the servers that were started."""
        return dict(self._traces)

    def _kept(self, load: Load, arm: Arm, repeat: int) -> object:
        return self._records.find(load.kind, load.concurrency, arm.name, repeat, self._setting.digest)

    def _start(
        self, arm: Arm, started: Sequence[PacedServer], ending: ExitStack, progress: Progress
    ) -> PacedServer:
        config = self._setting.config_of(arm, pool=self._pool)
        server = start_another(config, self._folder, started, ending, progress.detail)
        self._traces[arm.name] = server.traces
        return server

    def _measure(
        self, server: PacedServer, load: Load, repeat: int, arm: Arm, group: str, progress: Progress
    ) -> str:
        """Measure once, and again when that was rejected; what came out, in words."""
        for attempt in range(ATTEMPTS):
            record = measure(
                server,
                load,
                self._setting,
                arm=arm.name,
                repeat=repeat,
                attempt=attempt,
                progress=progress.detail,
            )
            self._records.add(msgspec.structs.replace(record, group=group))
            if not record.rejected:
                return f"{record.tok_s:,.0f} tok/s"
            progress.detail(f"rejected: {record.reason}")
        return f"rejected: {record.reason}"


def groups_of(arms: Sequence[Arm], together: int) -> list[Sequence[Arm]]:
    """Arms in as few groups of at most `together` as can be, in their order, none more than one larger than another."""
    count = -(-len(arms) // together)
    bounds = [place * len(arms) // count for place in range(count + 1)]
    return [arms[start:end] for start, end in pairwise(bounds)]


def digest_of(setting_text: str) -> str:
    """Of all that a figure depends on: settings in words, the installed SGLang, and sources."""
    digest = hashlib.sha256(f"{setting_text}, SGLang {version('sglang')}".encode())
    paths = [CHECKOUT / "benchmark" / f"{name}.py" for name in _BESIDE]
    for folder in _SOURCES:
        for path in sorted((CHECKOUT / folder).rglob("*.py")):
            if folder != "benchmark/paced" or path.stem not in _ASIDE:
                paths.append(path)
    for path in paths:
        digest.update(path.relative_to(CHECKOUT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]
