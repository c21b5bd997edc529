"""Reads the files of a trace folder back, with all ranks on one clock."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sglang_wavepp.telemetry.trace import ADMISSION, FORMAT, WAVES, Event, Header

logger = logging.getLogger(__name__)


class TraceError(ValueError):
    """A trace folder holds no trace, or one of another format."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens ``[start, start + length)`` of one request, computed in one wave."""

    rid: str
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Wave:
    """The forward of one wave on one rank; times in ns. A decode wave has one span of length 1 per request."""

    wave: int
    slot: int
    decode: bool
    start_ns: int
    end_ns: int
    spans: tuple[Span, ...]
    lane: int = -1

    @property
    def tokens(self) -> int:
        """Tokens that it computes."""
        return sum(span.length for span in self.spans)


@dataclass(frozen=True, slots=True)
class Admission:
    """How one request was admitted, as rank 0 saw it; times in ns.

    ``endpoint`` is the position of its first span. ``verdict`` is the name of the event that ended the admission.
    ``announced_ns`` is ``ended_ns`` when the trace doesn't say when it was announced.
    """

    rid: str
    announced_ns: int
    ended_ns: int
    endpoint: int
    verdict: str


@dataclass(frozen=True, slots=True)
class RankTrace:
    """All events of one rank, by start time, in ns of a clock that all ranks of the trace share."""

    header: Header
    events: tuple[Event, ...]

    def between(self, start_ns: int, end_ns: int) -> RankTrace:
        """The events that began at ``start_ns`` or later and ended by ``end_ns``."""
        kept = (event for event in self.events if start_ns <= event.ts and event.ts + event.dur <= end_ns)
        return RankTrace(self.header, tuple(kept))

    def waves(self) -> tuple[Wave, ...]:
        """The forwards of this rank, in order."""
        return tuple(_wave(event) for event in self.events if event.track == WAVES and event.ph == "X")

    def results(self) -> dict[int, int]:
        """When this rank applied the result of each wave, in ns, by wave."""
        found = (event for event in self.events if event.track == WAVES and event.name == "result")
        return {int(event.args["wave"]): event.ts for event in found}

    def admissions(self) -> tuple[Admission, ...]:
        """The admissions that ended on this rank, in order of arrival."""
        return tuple(sorted(_admissions(self.events), key=lambda a: a.announced_ns))


def read_folder(directory: Path) -> tuple[RankTrace, ...]:
    """All ranks of the newest launch that wrote into ``directory``, in rank order.

    Raises:
        TraceError: there is no trace, or it was written by a release with another format.
    """
    paths = sorted(directory.glob("rank-*.jsonl"))
    ranks = [(path, *_read_file(path)) for path in paths if path.stat().st_size]
    if not ranks:
        raise TraceError(
            f"no trace in {directory}: expected files rank-*.jsonl, as --wavepp-trace writes them"
        )
    newest: dict[str, Header] = {}  # by clock, that is by host
    for _, header, _ in ranks:
        if header.boot not in newest or header.wall_ns > newest[header.boot].wall_ns:
            newest[header.boot] = header
    traces = []
    for path, header, events in ranks:
        if header.launcher != newest[header.boot].launcher:
            logger.warning("%s is left over from an earlier launch and is not used", path)
            continue
        shift = header.wall_ns - header.monotonic_ns if len(newest) > 1 else 0
        moved = (msgspec.structs.replace(event, ts=event.ts + shift) for event in events)
        traces.append(RankTrace(header, tuple(sorted(moved, key=lambda event: event.ts))))
    return tuple(traces)


def _read_file(path: Path) -> tuple[Header, list[Event]]:
    lines = path.read_bytes().split(b"\n")
    complete = lines[:-1]  # what follows the last newline was cut off by a crash
    if not complete:
        raise TraceError(f"{path} holds no complete line")
    try:
        header = msgspec.json.decode(complete[0], type=Header)
        events = [msgspec.json.decode(line, type=Event) for line in complete[1:]]
    except msgspec.DecodeError as error:
        raise TraceError(f"{path} is not a trace: {error}") from error
    if header.format != FORMAT:
        raise TraceError(f"{path} has trace format {header.format}, this release reads {FORMAT}")
    return header, events


def _wave(event: Event) -> Wave:
    args = event.args
    decode = "spans" not in args
    if decode:
        spans = tuple(Span(rid, -1, 1) for rid in args.get("rids", ()))
    else:
        spans = tuple(Span(str(rid), int(start), int(length)) for rid, start, length in args["spans"])
    return Wave(
        int(args["wave"]),
        int(args.get("slot", 0)),
        decode,
        event.ts,
        event.ts + event.dur,
        spans,
        int(args.get("lane", -1)),
    )


def _admissions(events: tuple[Event, ...]) -> Iterator[Admission]:
    """Either one complete event per admission, or an instant that names how it ended, after an ``announced`` one."""
    announced: dict[str, int] = {}
    for event in events:
        if event.track != ADMISSION or "rid" not in event.args:
            continue
        rid = str(event.args["rid"])
        endpoint = int(event.args.get("endpoint", 0))
        if event.ph == "X":
            yield Admission(rid, event.ts, event.ts + event.dur, endpoint, event.name)
        elif event.name == "announced":
            announced[rid] = event.ts
        elif event.name in ("admitted", "refused", "aborted", "withdrawn"):
            yield Admission(rid, announced.pop(rid, event.ts), event.ts, endpoint, event.name)
