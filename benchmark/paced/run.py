"""Loads, arms and repeats on one setting: the arms in turn, the others frozen, and what was measured before is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

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
_ASIDE = (
    *("__main__", "options", "client_comparison", "memory", "played"),
    *("idle_picture", "panel", "pictures", "ratios", "simulated", "tables", "text_table", "timelines"),
)
"""Modules that no figure of a record depends on: what was measured stays good when they change."""


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

    def run(self, loads: Sequence[Load], repeats: int) -> None:
        """Measure what isn't kept yet.

        Raises:
            RequestFailed: a request wasn't answered.
            ServerError: a server didn't start.
        """
        todo = [
            (load, repeat, arm)
            for load in loads
            for repeat in range(repeats)
            for arm in self._arms[:: 1 if repeat % 2 == 0 else -1]
            if self._kept(load, arm, repeat) is None
        ]
        if not todo:
            print("everything was measured before; --fresh measures it again")
            return
        needed = [arm for arm in self._arms if any(arm is other for _, _, other in todo)]
        progress = Progress(len(needed) + len(todo))
        with ExitStack() as ending:
            for arm in needed:
                progress.step(f"starting {arm.name}")
                with frozen(list(self._servers.values())):
                    self._start(arm, ending, progress)
                progress.done()
            for load, repeat, arm in todo:
                progress.step(f"{load.name} {arm.name} ({repeat + 1} of {repeats})")
                progress.done(self._measure(load, repeat, arm, progress))

    @property
    def traces(self) -> dict[str, Path]:
        """Folder of the stages' traces, by arm, of the servers that were started."""
        return {name: server.traces for name, server in self._servers.items()}

    def _kept(self, load: Load, arm: Arm, repeat: int) -> object:
        return self._records.find(load.kind, load.concurrency, arm.name, repeat, self._setting.digest)

    def _start(self, arm: Arm, ending: ExitStack, progress: Progress) -> None:
        config = self._setting.config_of(arm, pool=self._pool)
        started = list(self._servers.values())
        self._servers[arm.name] = start_another(config, self._folder, started, ending, progress.detail)

    def _measure(self, load: Load, repeat: int, arm: Arm, progress: Progress) -> str:
        """Measure once, and again when that was rejected; what came out, in words."""
        others = [server for name, server in self._servers.items() if name != arm.name]
        with frozen(others):
            for attempt in range(ATTEMPTS):
                record = measure(
                    self._servers[arm.name],
                    load,
                    self._setting,
                    arm=arm.name,
                    repeat=repeat,
                    attempt=attempt,
                    progress=progress.detail,
                )
                self._records.add(record)
                if not record.rejected:
                    break
                progress.detail(f"rejected: {record.reason}")
        return f"rejected: {record.reason}" if record.rejected else f"{record.tok_s:,.0f} tok/s"


def digest_of(setting_text: str) -> str:
    """Of the sources that a figure depends on, and of the settings in words."""
    digest = hashlib.sha256(setting_text.encode())
    for folder in _SOURCES:
        for path in sorted((CHECKOUT / folder).rglob("*.py")):
            if folder == "benchmark/paced" and path.stem in _ASIDE:
                continue
            digest.update(path.relative_to(CHECKOUT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]
