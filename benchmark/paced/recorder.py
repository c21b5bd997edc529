"""Writes what a stage did: one JSON object per forward, in a file per stage."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import msgspec


class Forward(msgspec.Struct, frozen=True, kw_only=True):
    """One wave on one stage. Times in seconds of the machine's monotonic clock.

    Attributes:
        number: forwards of this stage before this one.
        launched: when the host had queued it.
        ready: when the activations of the stage before were here, None on the first stage.
        start, end: when the device ran it.
        tokens, prefixes, rids: by request, how many tokens were computed, how many precede them, and whose they are.
        decode: whether it generated a token of each request.
        process_cpu, thread_cpu: CPU seconds so far, of the process and of the thread that launched.
        timers: calls, wall and CPU seconds since the forward before, by name (see `benchmark.paced.timers`).
    """

    stage: int
    number: int
    launched: float
    ready: float | None
    start: float
    end: float
    tokens: list[int]
    prefixes: list[int]
    rids: list[str]
    decode: bool
    process_cpu: float
    thread_cpu: float
    timers: dict[str, tuple[int, float, float]] = {}


class Recorder:
    """Appends forwards to ``FOLDER/stageN.jsonl``; every line is complete when `write` returns."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: BinaryIO | None = None
        self._encoder = msgspec.json.Encoder()

    def write(self, forward: Forward) -> None:
        """Append one forward."""
        if self._file is None:  # opened in the process of the stage, not in the launcher that forks it
            self._file = file_of(self._folder, forward.stage).open("ab", buffering=0)
        self._file.write(self._encoder.encode(forward) + b"\n")


def file_of(folder: Path, stage: int) -> Path:
    """The file of a stage."""
    return folder / f"stage{stage}.jsonl"


def read(folder: Path) -> list[list[Forward]]:
    """All forwards, by stage, in launch order.

    Raises:
        FileNotFoundError: no stage wrote anything.
    """
    stages: list[list[Forward]] = []
    while (path := file_of(folder, len(stages))).exists():
        decoder = msgspec.json.Decoder(Forward)
        stages.append([decoder.decode(line) for line in path.read_bytes().splitlines()])
    if not stages:
        raise FileNotFoundError(f"no trace in {folder}")
    return stages
