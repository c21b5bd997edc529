"""One long job per folder: alone, in the foreground or detached, and stopped from elsewhere.

Whoever works holds a lock on ``run.lock`` in the folder. The kernel gives it up when that process ends, however it
ends, so that a job that was killed never blocks the next one.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

_STEP_SECONDS = 0.05
_PROBE_SECONDS = 0.5
"""How long somebody who only looks may be in the way."""


class JobRunning(RuntimeError):
    """Another process works in this folder; the text names it."""


class JobError(RuntimeError):
    """A detached job ended at once, or didn't end when it was asked to."""


class Job:
    """The job of a folder. Its output, when detached, is appended to ``run.log`` there."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "run.log"
        self._lock = folder / "run.lock"
        folder.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Work in this folder, as this process.

        Raises:
            JobRunning: somebody else does.
        """
        with self._lock.open("a+") as file:
            deadline = time.monotonic() + _PROBE_SECONDS
            while not _lock(file, fcntl.LOCK_EX):
                if time.monotonic() > deadline:
                    raise JobRunning(f"already running ({self._holder()})")
                time.sleep(_STEP_SECONDS)
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            yield
            file.truncate(0)

    def pid(self) -> int | None:
        """Process id of who works, None when nobody does."""
        if not self._lock.exists():
            return None
        with self._lock.open("r+") as file:
            # Shared, so that those who only look don't take each other for somebody who works.
            if _lock(file, fcntl.LOCK_SH):
                return None
            text = self._lock.read_text().strip()
        return int(text) if text.isdigit() else None

    def start(self, command: Sequence[str], cwd: Path, seconds: float = 30.0) -> int:
        """Start a command that calls `alone` itself, detached from this terminal; its process id.

        Raises:
            JobRunning: somebody works already.
            JobError: the command ended, or didn't begin to work within ``seconds``.
        """
        running = self.pid()
        if running is not None:
            raise JobRunning(f"already running (process {running})")
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=cwd,
            )
        deadline = time.monotonic() + seconds
        while self.pid() != process.pid:
            if process.poll() is not None:
                raise JobError(f"it ended with status {process.returncode} at once, see {self.log}")
            if time.monotonic() > deadline:
                process.terminate()
                raise JobError(f"it did not begin within {seconds:g} s, see {self.log}")
            time.sleep(_STEP_SECONDS)
        return process.pid

    def stop(self, seconds: float = 60.0) -> bool:
        """Ask who works to end, and wait for it; whether there was anybody.

        Raises:
            JobError: it still works after ``seconds``.
        """
        pid = self.pid()
        if pid is None:
            return False
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + seconds
        while self.pid() == pid:
            if time.monotonic() > deadline:
                raise JobError(f"process {pid} still runs after {seconds:g} s")
            time.sleep(_STEP_SECONDS)
        return True

    def _holder(self) -> str:
        text = self._lock.read_text().strip()
        return f"process {text}" if text else "a process that is about to begin"


def _lock(file: TextIO, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
