"""Traces of public servers: lengths and hashes of blocks, no text, one JSON object a line.

The format is Mooncake's: ``input_length`` in tokens, and ``hash_ids`` with an id for each block of 512 tokens, the
last one perhaps cut. Blocks of the same id hold the same tokens.
"""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from benchmark.paced.cells import PAGE, SLOWER
from benchmark.paced.clients import Served
from benchmark.paced.prompts import Script, random_ids, request_of
from sglang_wavepp.simulate.workload import Job, Phase, Workload

BLOCK = 512


class TraceError(ValueError):
    """The file is no trace; the text says where."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One request of a trace."""

    length: int
    blocks: tuple[int, ...]

    def tokens(self, shorten: int = 1) -> list[int]:
        """Its token ids, every block and the length that many times shorter."""
        size = BLOCK // shorten
        ids: list[int] = []
        for block in self.blocks:
            ids += block_tokens(block, size)
        return ids[: max(1, self.length // shorten)]


def read_trace(path: Path, most: int | None = None) -> list[Entry]:
    """The first requests of a trace, plain or gzipped.

    Args:
        most: how many; None for all.

    Raises:
        TraceError: a line is no request, or its blocks don't fit its length.
    """
    entries: list[Entry] = []
    for number, line in enumerate(_lines(path), 1):
        if most is not None and len(entries) == most:
            break
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            length, blocks = int(fields["input_length"]), tuple(int(block) for block in fields["hash_ids"])
        except (ValueError, TypeError, KeyError) as error:
            raise TraceError(f"{path}:{number}: no request of a trace: {error}") from error
        if length < 1 or len(blocks) != -(-length // BLOCK):
            raise TraceError(f"{path}:{number}: {length} tokens don't take {len(blocks)} blocks of {BLOCK}")
        entries.append(Entry(length, blocks))
    if not entries:
        raise TraceError(f"{path} holds no requests")
    return entries


@lru_cache(maxsize=200_000)
def block_tokens(block: int, size: int) -> list[int]:
    """The tokens of a block: always the same for the same id."""
    return random_ids(random.Random(f"block-{block}"), size)


@dataclass(frozen=True, slots=True)
class TraceLoad:
    """A closed loop over a trace; each request generates one token.

    Attributes:
        stem: of the file's name.
    """

    stem: str
    entries: tuple[Entry, ...] = field(repr=False)
    concurrency: int

    @property
    def kind(self) -> str:
        return f"trace-{self.stem}"

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.concurrency}"

    @property
    def scale(self) -> float:
        return SLOWER

    @property
    def bounded(self) -> bool:
        return False

    def workload(self, *, shorten: int) -> Workload:
        jobs = tuple(Job(cached=0, prompt=max(1, entry.length // shorten)) for entry in self.entries)
        phases = (Phase(self.concurrency, len(jobs)),)
        return Workload(name=self.kind, concurrency=self.concurrency, jobs=jobs, phases=phases)

    def script(self, *, shorten: int, tag: str, seed: int) -> Script:
        measured = tuple(
            request_of(f"{tag}-{number}", entry.tokens(shorten), reusable=0)
            for number, entry in enumerate(self.entries)
        )
        return Script(priming={}, measured=measured, fresh=True)

    def settled(self, served: Sequence[Served]) -> list[Served]:
        """A prefix can be reused when a request that begins with it was answered before this one was sent."""
        known: dict[int, float] = {}
        ordered = sorted(range(len(served)), key=lambda place: served[place].answered)
        for place in ordered:
            entry = self.entries[_number_of(served[place].rid)]
            for end in _prefix_ends(entry):
                known.setdefault(end, served[place].answered)
        result = []
        for each in served:
            entry = self.entries[_number_of(each.rid)]
            depth = 0
            for depth_reached, end in enumerate(_prefix_ends(entry), 1):
                if known.get(end, each.sent) >= each.sent:
                    break
                depth = depth_reached
            share = min(depth * BLOCK, entry.length) / entry.length
            result.append(replace(each, reusable=int(share * (each.tokens - 1)) // PAGE * PAGE))
        return result


def _prefix_ends(entry: Entry) -> Iterator[int]:
    """What names the prefix up to the end of each whole block."""
    name = 0
    for block in entry.blocks[: entry.length // BLOCK]:
        name = hash((name, block))
        yield name


def _number_of(rid: str) -> int:
    return int(rid.rpartition("-")[2])


def _lines(path: Path) -> Iterator[str]:
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            yield from lines
    except (gzip.BadGzipFile, UnicodeDecodeError, EOFError, zlib.error) as error:
        raise TraceError(f"{path} is no text, plain or gzipped: {error}") from error
