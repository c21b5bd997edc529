"""The trace as Chrome trace events, which chrome://tracing and ui.perfetto.dev open.

One process per rank, one thread per track. Viewers nest what overlaps on one thread, so events of a track that overlap
without nesting (two admissions, say) are dealt over several threads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sglang_wavepp.telemetry.reading import RankTrace
from sglang_wavepp.telemetry.trace import ADMISSION, ROUNDS, WAVES, Event

_TRACK_ORDER = {WAVES: 0, ADMISSION: 1, ROUNDS: 2}


def chrome_trace(ranks: Sequence[RankTrace]) -> dict[str, Any]:
    """Every event of all ranks as one JSON document; times in microseconds from the first event."""
    origin = min((event.ts for rank in ranks for event in rank.events), default=0)
    metadata: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    for rank in ranks:
        pid = rank.header.rank
        metadata.append(_named("process_name", pid, 0, name=f"rank {pid} ({rank.header.name})"))
        metadata.append(_named("process_sort_index", pid, 0, sort_index=pid))
        thread = 0
        for track, tracked in _by_track(rank.events):
            for number, lane in enumerate(_deal(tracked)):
                label = track if number == 0 else f"{track} {number + 1}"
                metadata.append(_named("thread_name", pid, thread, name=label))
                metadata.append(_named("thread_sort_index", pid, thread, sort_index=thread))
                events.extend(_chrome_event(event, pid, thread, origin) for event in lane)
                thread += 1
    events.sort(key=lambda event: (event["ts"], -event.get("dur", 0.0)))
    return {"displayTimeUnit": "ms", "traceEvents": metadata + events}


def _by_track(events: Sequence[Event]) -> list[tuple[str, list[Event]]]:
    tracks: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        tracks[event.track].append(event)
    return sorted(tracks.items(), key=lambda item: (_TRACK_ORDER.get(item[0], len(_TRACK_ORDER)), item[0]))


def _deal(events: Sequence[Event]) -> list[list[Event]]:
    """Split a track into lanes in which complete events follow or nest; instants and counters stay in the first."""
    lanes: list[list[Event]] = [[]]
    open_ends: list[list[int]] = [[]]  # per lane: ends of the events that enclose the next one
    for event in sorted(events, key=lambda e: (e.ts, -e.dur)):
        if event.ph != "X":
            lanes[0].append(event)
            continue
        end = event.ts + event.dur
        for ends in open_ends:
            while ends and ends[-1] <= event.ts:
                ends.pop()
        fitting = (k for k, ends in enumerate(open_ends) if not ends or end <= ends[-1])
        number = next(fitting, len(lanes))
        if number == len(lanes):
            lanes.append([])
            open_ends.append([])
        lanes[number].append(event)
        open_ends[number].append(end)
    return lanes


def _named(kind: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}


def _chrome_event(event: Event, pid: int, tid: int, origin: int) -> dict[str, Any]:
    chrome: dict[str, Any] = {
        "ph": event.ph,
        "name": event.name,
        "cat": event.track,
        "pid": pid,
        "tid": tid,
        "ts": (event.ts - origin) / 1000,
        "args": event.args,
    }
    if event.ph == "X":
        chrome["dur"] = event.dur / 1000
    elif event.ph == "i":
        chrome["s"] = "t"
    return chrome
