"""One rank's timeline: what its threads did and when, as one JSON object per line.

Events are kept in a bounded buffer and written by a thread of their own, so that a forward never waits for the disk.
The clock is the host's monotonic clock: the ranks of one host share it, and the header of each file says how to line
up several hosts.
"""

from __future__ import annotations

import atexit
import io
import logging
import os
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from sglang_wavepp.plane.messages import RankId

logger = logging.getLogger(__name__)

FORMAT: Final = 1
WAVES: Final = "waves"
ROUNDS: Final = "rounds"
ADMISSION: Final = "admission"

_FLUSH_SECONDS: Final = 0.1
_BUFFERED_EVENTS: Final = 8192


class Header(msgspec.Struct, kw_only=True, frozen=True):
    """First line of a rank's file. ``monotonic_ns`` and ``wall_ns`` were read together; ``boot`` names the clock.

    ``launcher`` is the parent process, the same for all ranks that one launch started on one host.
    """

    format: int
    rank: int
    name: str
    pp_rank: int
    tp_rank: int
    pid: int
    launcher: int
    host: str
    boot: str
    monotonic_ns: int
    wall_ns: int


class Event(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One event. ``ph``: X complete, i instant, C counter, as in Chrome's format; times in ns, monotonic."""

    ph: str
    name: str
    track: str
    ts: int
    dur: int = 0
    args: dict[str, Any] = {}


def trace_file(directory: Path, rank_index: int) -> Path:
    """Where the rank with this index writes."""
    return directory / f"rank-{rank_index:03d}.jsonl"


class Timeline:
    """Writes one rank's events; safe to call from every thread of the process.

    What is older than 0.1 s is in the file, so a crash, SIGTERM or SIGKILL loses no more than that. No signal
    handler is installed: tracing must not change how a process ends.

    Args:
        directory: folder of the trace, made when it is missing. One folder per launch.
        rank: which rank writes.
        enabled: False writes nothing and opens nothing.

    Raises:
        OSError: the folder or the file can't be made.
    """

    def __init__(self, directory: Path | str, rank: RankId, enabled: bool = True) -> None:
        self.enabled = enabled
        self._events: list[Event] = []
        self._append_lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._filled = threading.Event()
        self._file: io.BufferedWriter | None = None
        self._encoder = msgspec.json.Encoder(enc_hook=_plain)
        if not enabled:
            return
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        self._file = trace_file(folder, rank.index).open("wb")
        header = Header(
            format=FORMAT,
            rank=rank.index,
            name=rank.name,
            pp_rank=rank.pp_rank,
            tp_rank=rank.tp_rank,
            pid=os.getpid(),
            launcher=os.getppid(),
            host=socket.gethostname(),
            boot=_boot_id(),
            monotonic_ns=time.monotonic_ns(),
            wall_ns=time.time_ns(),
        )
        self._file.write(self._encoder.encode(header) + b"\n")
        self._file.flush()
        self._writer = threading.Thread(target=self._write_in_background, name="TRACE", daemon=True)
        self._writer.start()
        atexit.register(self.close)

    @staticmethod
    def now_ns() -> int:
        """The clock of all events, in ns."""
        return time.monotonic_ns()

    def complete(self, name: str, start_ns: int, end_ns: int, track: str, **args: Any) -> None:
        """Something that lasted from ``start_ns`` to ``end_ns`` (of `now_ns`); ``args`` must not change afterwards."""
        if self.enabled:
            self._append(
                Event(ph="X", name=name, track=track, ts=start_ns, dur=max(0, end_ns - start_ns), args=args)
            )

    def instant(self, name: str, track: str, **args: Any) -> None:
        """Something that happened now."""
        if self.enabled:
            self._append(Event(ph="i", name=name, track=track, ts=time.monotonic_ns(), args=args))

    def counter(self, name: str, track: str, **values: float) -> None:
        """Values that hold from now on, drawn as an area by trace viewers."""
        if self.enabled:
            self._append(Event(ph="C", name=name, track=track, ts=time.monotonic_ns(), args=dict(values)))

    def flush(self) -> None:
        """Write everything that was recorded so far."""
        with self._write_lock:
            with self._append_lock:
                events, self._events = self._events, []
                self._filled.clear()
            if not events or self._file is None:
                return
            try:
                self._file.write(b"".join(self._encoder.encode(event) + b"\n" for event in events))
                self._file.flush()
            except OSError as error:
                self.enabled = False
                logger.error("WavePP trace stops: %s can't be written: %s", self._file.name, error)

    def close(self) -> None:
        """Write what is left and close the file; later events are dropped."""
        self.enabled = False
        self.flush()
        with self._write_lock:
            if self._file is None:
                return
            file, self._file = self._file, None
        try:
            file.close()
        except OSError as error:
            logger.error("WavePP trace is incomplete: %s can't be written: %s", file.name, error)
        self._filled.set()

    def _append(self, event: Event) -> None:
        with self._append_lock:
            self._events.append(event)
            count = len(self._events)
        if count == 1:
            self._filled.set()
        elif count >= _BUFFERED_EVENTS:
            self.flush()

    def _write_in_background(self) -> None:
        while True:
            self._filled.wait()  # without a time limit: an idle server must not wake up for its trace
            if self._file is None:
                return
            time.sleep(_FLUSH_SECONDS)
            self.flush()


class NullTimeline(Timeline):
    """A timeline that is off."""

    def __init__(self) -> None:
        self.enabled = False
        self._file = None

    def flush(self) -> None:
        """Nothing was recorded."""

    def close(self) -> None:
        """Nothing is open."""


def _plain(value: object) -> object:
    """What JSON can hold instead of a value it can't: an int for integer scalars of other libraries, else its repr."""
    index = getattr(value, "__index__", None)
    return int(index()) if index is not None else repr(value)


def _boot_id() -> str:
    """Names the monotonic clock: two processes with the same id share it."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else socket.gethostname()
