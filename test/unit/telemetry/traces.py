"""Traces made by hand: times in ms."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sglang_wavepp.telemetry.reading import RankTrace
from sglang_wavepp.telemetry.trace import ADMISSION, WAVES, Event, Header

MS = 1_000_000


def header(pp_rank: int, tp_rank: int = 0, *, tp_size: int = 1) -> Header:
    return Header(
        format=1,
        rank=pp_rank * tp_size + tp_rank,
        name=f"pp{pp_rank} tp{tp_rank}",
        pp_rank=pp_rank,
        tp_rank=tp_rank,
        pid=1,
        launcher=1,
        host="h",
        boot="b",
        monotonic_ns=0,
        wall_ns=0,
    )


def prefill(wave: int, start: float, end: float, *spans: tuple[str, int, int], slot: int = 0) -> Event:
    return _forward(start, end, wave=wave, slot=slot, spans=[list(span) for span in spans])


def decode(wave: int, start: float, end: float, *rids: str, lane: int = 0) -> Event:
    return _forward(start, end, wave=wave, slot=0, lane=lane, rids=list(rids))


def result(wave: int, at: float) -> Event:
    return Event(ph="i", name="result", track=WAVES, ts=int(at * MS), args={"wave": wave})


def admission(rid: str, announced: float, admitted: float, endpoint: int = 0) -> list[Event]:
    return [
        Event(ph="i", name="announced", track=ADMISSION, ts=int(announced * MS), args={"rid": rid}),
        Event(
            ph="i",
            name="admitted",
            track=ADMISSION,
            ts=int(admitted * MS),
            args={"rid": rid, "endpoint": endpoint},
        ),
    ]


def rank(pp_rank: int, *events: Event | Iterable[Event], tp_rank: int = 0, tp_size: int = 1) -> RankTrace:
    flat = [e for each in events for e in ([each] if isinstance(each, Event) else each)]
    return RankTrace(
        header(pp_rank, tp_rank, tp_size=tp_size), tuple(sorted(flat, key=lambda event: event.ts))
    )


def _forward(start: float, end: float, **args: Any) -> Event:
    return Event(
        ph="X",
        name=f"wave {args['wave']}",
        track=WAVES,
        ts=int(start * MS),
        dur=int(end * MS) - int(start * MS),
        args=args,
    )
