"""The timeline as one SVG file: what a newcomer should see of a run at a glance, for a page or a slide.

From top to bottom: a key of what occurs, the requests (in admission, waiting, being computed), the stages with their
waves and what they waited for, a time axis. It loads nothing and needs no script.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from sglang_wavepp.telemetry.idle import Cause, Gap, idle_by_cause, idle_times
from sglang_wavepp.telemetry.palette import IDLE, INK, LINE, SOFT, ink_on, request_colour
from sglang_wavepp.telemetry.reading import Admission, RankTrace, Wave
from sglang_wavepp.telemetry.strokes import document, rect, text, text_length

WIDTH, LEFT, RIGHT = 1280, 96, 168
LISTED = 24
"""Requests up to which each has a line and a label of its own."""

MEANING: dict[Cause, str] = {
    Cause.LATE: "late launch: input there, not launched yet",
    Cause.UPSTREAM: "upstream: the stage before computes it",
    Cause.RESULTS: "results: ring full, or the token before",
    Cause.ADMISSION: "admission: nothing admitted yet",
}


@dataclass(slots=True)
class _Request:
    """One line of the upper part; times in ns, None where unknown."""

    rid: str
    colour: str
    announced: int | None
    admitted: int | None
    endpoint: int
    first: int | None = None
    last: int | None = None
    computed: int = 0
    lane: int = 0
    label: str = ""

    def begin(self) -> int:
        return next(each for each in (self.announced, self.admitted, self.first) if each is not None)

    def end(self) -> int:
        return max(each for each in (self.announced, self.admitted, self.last) if each is not None)


@dataclass(frozen=True, slots=True)
class _Scale:
    """Times to places."""

    begin: int
    end: int

    def x(self, ns: int) -> float:
        share = (ns - self.begin) / max(1, self.end - self.begin)
        return LEFT + share * (WIDTH - LEFT - RIGHT)


def figure(ranks: Sequence[RankTrace], title: str) -> str:
    """The SVG text.

    Args:
        ranks: of one trace, in rank order, on one clock.
        title: heading.
    """
    waves = [sorted(rank.waves(), key=lambda wave: wave.start_ns) for rank in ranks]
    requests = _requests(ranks, waves)
    colours = {request.rid: request.colour for request in requests}
    gaps = idle_times(ranks)
    forwards = [wave for of_rank in waves for wave in of_rank]
    begins = [request.begin() for request in requests] + [wave.start_ns for wave in forwards]
    ends = [request.end() for request in requests] + [wave.end_ns for wave in forwards]
    scale = _Scale(min(begins, default=0), max(ends, default=1))

    key, top = _key(88, waves, requests, gaps)
    top += 8
    lanes, lane = _lanes(requests)
    floor = top + 22 + lanes * lane
    row, gap = (30, 12) if len(ranks) <= 8 else (20, 8)
    stages = floor + (26 if requests else 12)
    bottom = stages + len(ranks) * (row + gap) - gap
    parts = [
        *_head(title, ranks, waves, requests, gaps, scale),
        *key,
        *_axis(scale, top + 10, bottom),
        *(text(LEFT - 12, top + 14, "requests", 12, SOFT, anchor="end"),) * bool(requests),
    ]
    for request in requests:
        parts += _bar(request, scale, top + 22 + request.lane * lane, lane, listed=len(requests) <= LISTED)
    for k, rank in enumerate(ranks):
        parts += _stage(_name(rank, ranks), waves[k], gaps[k], colours, scale, stages + k * (row + gap), row)
    height = bottom + 44
    return document(title, WIDTH, height, parts)


# --- numbers ------------------------------------------------------------------------------------------------------


def _requests(ranks: Sequence[RankTrace], waves: Sequence[Sequence[Wave]]) -> list[_Request]:
    """In order of arrival; those of which only waves are known behind them."""
    lead = next((k for k, rank in enumerate(ranks) if rank.header.rank == 0), 0)
    known: dict[str, _Request] = {}

    def add(rid: str, admission: Admission | None) -> _Request:
        colour = request_colour(len(known))
        if admission is None:
            return known.setdefault(rid, _Request(rid, colour, None, None, 0))
        return known.setdefault(
            rid, _Request(rid, colour, admission.announced_ns, admission.ended_ns, admission.endpoint)
        )

    for admission in ranks[lead].admissions() if ranks else ():
        add(admission.rid, admission)
    for k, of_rank in enumerate(waves):
        for wave in of_rank:
            for span in wave.spans:
                request = known.get(span.rid) or add(span.rid, None)
                request.first = min(wave.start_ns, wave.start_ns if request.first is None else request.first)
                request.last = max(wave.end_ns, request.last or 0)
                if k == lead and not wave.decode:
                    request.computed += span.length
    for number, request in enumerate(known.values(), start=1):
        own = request.rid.split(":", 1)[-1]
        request.label = own if len(own) <= 10 else f"request {number}"
    return list(known.values())


def _lanes(requests: Sequence[_Request]) -> tuple[int, float]:
    """Give each request a lane; how many there are, and their height."""
    if len(requests) <= LISTED:
        for lane, request in enumerate(requests):
            request.lane = lane
        return len(requests), 15
    ends: list[int] = []
    for request in sorted(requests, key=_Request.begin):
        lane = next((k for k, end in enumerate(ends) if end <= request.begin()), len(ends))
        if lane == len(ends):
            ends.append(0)
        ends[lane] = request.end()
        request.lane = lane
    return len(ends), max(3, min(12, 180 / len(ends)))


def _busy(waves: Sequence[Wave]) -> int:
    busy = reach = 0
    for wave in waves:
        busy += max(0, wave.end_ns - max(reach, wave.start_ns))
        reach = max(reach, wave.end_ns)
    return busy


def _name(rank: RankTrace, ranks: Sequence[RankTrace]) -> str:
    alone = all(each.header.tp_rank == 0 for each in ranks)
    return f"stage {rank.header.pp_rank}" if alone else rank.header.name


# --- parts --------------------------------------------------------------------------------------------------------


def _head(
    title: str,
    ranks: Sequence[RankTrace],
    waves: Sequence[Sequence[Wave]],
    requests: Sequence[_Request],
    gaps: Sequence[Sequence[Gap]],
    scale: _Scale,
) -> list[str]:
    first = waves[0] if waves else []
    prefill = [wave for wave in first if not wave.decode]
    total = sum(_busy(of_rank) for of_rank in waves) + sum(gap.length_ns for each in gaps for gap in each)
    facts = [
        _plural(len(ranks), "stage" if all(rank.header.tp_rank == 0 for rank in ranks) else "rank"),
        _plural(len(requests), "request"),
        _plural(len(prefill), "prefill wave"),
    ]
    if len(first) > len(prefill):
        facts.append(_plural(len(first) - len(prefill), "decode wave"))
    facts.append(f"{sum(wave.tokens for wave in prefill):,} prompt tokens computed")
    facts.append(f"{sum(request.endpoint for request in requests):,} reused")
    facts.append(f"{_time(scale.end - scale.begin)}")
    if total:
        facts.append(f"stages busy {sum(_busy(of_rank) for of_rank in waves) / total:.0%}")
    return [
        text(20, 34, title, 20, INK, weight=650),
        text(20, 57, " · ".join(facts), 13, SOFT),
    ]


def _key(
    y: float, waves: Sequence[Sequence[Wave]], requests: Sequence[_Request], gaps: Sequence[Sequence[Gap]]
) -> tuple[list[str], float]:
    """What occurs, in as many lines as it takes; the parts, and where they end."""
    causes = {gap.cause for each in gaps for gap in each}
    forwards = [wave for of_rank in waves for wave in of_rank]
    one, other, third = (request_colour(k) for k in range(3))
    items: list[tuple[list[str], str]] = []
    if any(request.announced is not None for request in requests):
        items += [
            ([rect(0, 3, 26, 7, one, 0.3)], "in admission"),
            ([rect(0, 3, 26, 7, one, 0.65)], "admitted, waiting for its first wave"),
            ([rect(0, 3, 26, 7, one)], "being computed"),
        ]
    if any(not wave.decode for wave in forwards):
        items.append(
            (
                [rect(0, 0, 26, 13, one), text(13, 10.5, "7", 11, ink_on(one), anchor="middle")],
                "prefill wave 7, in the colour of its request",
            )
        )
    if any(len(wave.spans) > 1 for wave in forwards):
        items.append(
            (
                [rect(0, 0, 26, 6, one), rect(0, 6, 26, 4, other), rect(0, 10, 26, 3, third)],
                "of several requests, by tokens",
            )
        )
    if any(wave.decode for wave in forwards):
        items.append(([rect(0, 3, 26, 7, other), rect(0, 3, 26, 7, "url(#decode)")], "decode wave"))
    items += [
        ([rect(0, 0, 26, 13, f"url(#{cause.name.lower()})")], f"idle, {meaning}")
        for cause, meaning in MEANING.items()
        if cause in causes
    ]
    parts: list[str] = []
    x = 20.0
    for marks, words in items:
        length = 34 + text_length(words, 12) + 22
        if x > 20 and x + length > WIDTH:
            x, y = 20, y + 21
        parts.append(f'<g transform="translate({x:.0f},{y - 11:.0f})">{"".join(marks)}</g>')
        parts.append(text(x + 33, y, words, 12, SOFT))
        x += length
    return parts, y + 6


def _axis(scale: _Scale, top: float, bottom: float) -> list[str]:
    """Grid lines with times from the left edge, and what they count."""
    span = max(1, scale.end - scale.begin)
    rough = span / 9
    power = 10 ** math.floor(math.log10(rough))
    step = next(k * power for k in (1, 2, 5, 10) if k * power >= rough)
    unit, divisor = next(
        (u, d) for u, d in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)) if span >= 2 * d or u == "µs"
    )
    digits = max(0, -math.floor(math.log10(step / divisor) + 1e-9))
    parts = []
    for k in range(int(span / step) + 1):
        x = scale.x(scale.begin + round(k * step))
        parts.append(f'<path d="M{x:.1f},{top:.0f} V{bottom + 6:.0f}" stroke="{LINE}"/>')
        parts.append(text(x, bottom + 21, f"{k * step / divisor:.{digits}f}", 12, SOFT, anchor="middle"))
    parts.append(text(LEFT - 24, bottom + 21, f"time ({unit})", 12, SOFT, anchor="end"))
    return parts


def _bar(request: _Request, scale: _Scale, y: float, lane: float, *, listed: bool) -> list[str]:
    thick = max(2.0, lane - 5 if listed else lane - 1)
    middle = y + lane / 2
    stretches = [
        (request.announced, request.admitted, 0.3),
        (request.admitted, request.first, 0.65),
        (request.first, request.last, 1.0),
    ]
    parts = [f"<g><title>{escape(_story(request))}</title>"]
    for begin, end, opacity in stretches:
        if begin is not None and end is not None and end > begin:
            left = scale.x(begin)
            width = max(1.0, scale.x(end) - left)
            parts.append(rect(left, middle - thick / 2, width, thick, request.colour, opacity))
    if listed:
        parts.append(text(LEFT - 12, middle + 3.5, request.label, 10, SOFT, anchor="end"))
        words = f"{request.endpoint:,} reused, {request.computed:,} computed"
        right, left = scale.x(request.end()) + 6, scale.x(request.begin()) - 6
        if right + text_length(words, 10) < WIDTH - 8:
            parts.append(text(right, middle + 3.5, words, 10, SOFT))
        elif left - text_length(words, 10) > LEFT:
            parts.append(text(left, middle + 3.5, words, 10, SOFT, anchor="end"))
    return [*parts, "</g>"]


def _story(request: _Request) -> str:
    parts = [request.rid]
    if request.announced is not None and request.admitted is not None:
        parts.append(f"in admission for {_time(request.admitted - request.announced)}")
        if request.first is not None:
            parts.append(f"first wave {_time(max(0, request.first - request.admitted))} later")
    parts.append(f"{request.endpoint:,} tokens reused, {request.computed:,} computed")
    return ", ".join(parts)


def _stage(
    name: str,
    waves: Sequence[Wave],
    gaps: Sequence[Gap],
    colours: dict[str, str],
    scale: _Scale,
    y: float,
    row: float,
) -> list[str]:
    parts = [text(LEFT - 12, y + row / 2 + 4.5, name, 13, INK, weight=600, anchor="end")]
    for gap in gaps:
        if gap.cause in IDLE:
            left, right = scale.x(gap.start_ns), scale.x(gap.end_ns)
            words = f"idle for {_time(gap.length_ns)}: {MEANING[gap.cause]}"
            parts.append(rect(left, y, right - left, row, f"url(#{gap.cause.name.lower()})", words=words))
    for wave in waves:
        parts += _wave(wave, colours, scale, y, row)
    return parts + _share(waves, gaps, y, row)


def _wave(wave: Wave, colours: dict[str, str], scale: _Scale, y: float, row: float) -> list[str]:
    left = scale.x(wave.start_ns)
    width = scale.x(wave.end_ns) - left
    width = max(0.8, width - (0.8 if width > 4 else 0.3 if width > 1.5 else 0))
    height = row * 0.56 if wave.decode else row
    top = y + (row - height) / 2
    kind = "decode" if wave.decode else "prefill"
    words = (
        f"{kind} wave {wave.wave}: {wave.tokens:,} tokens of {_plural(len(wave.spans), 'request')},"
        f" {_time(wave.end_ns - wave.start_ns)}"
    )
    parts = [f"<g><title>{escape(words)}</title>"]
    at = top
    for span in wave.spans:
        band = height * span.length / max(1, wave.tokens)
        parts.append(rect(left, at, width, band, colours[span.rid]))
        at += band
    if wave.decode:
        parts.append(rect(left, top, width, height, "url(#decode)"))
    label = str(wave.wave)
    if not wave.decode and width > text_length(label, 11) + 5 and wave.spans:
        # On the widest band, so that one ink reads on all of what is behind it.
        offsets = [0.0]
        for span in wave.spans:
            offsets.append(offsets[-1] + height * span.length / max(1, wave.tokens))
        widest = max(range(len(wave.spans)), key=lambda k: wave.spans[k].length)
        if offsets[widest + 1] - offsets[widest] >= 10:
            middle = top + (offsets[widest] + offsets[widest + 1]) / 2
            ink = ink_on(colours[wave.spans[widest].rid])
            parts.append(text(left + width / 2, middle + 4, label, 11, ink, anchor="middle"))
    return [*parts, "</g>"]


def _share(waves: Sequence[Wave], gaps: Sequence[Gap], y: float, row: float) -> list[str]:
    """Busy and idle shares at the right edge."""
    busy, idle = _busy(waves), idle_by_cause(gaps)
    total = busy + sum(idle.values())
    if not total:
        return []
    x, width = WIDTH - RIGHT + 18.0, RIGHT - 38.0
    late = idle.get(Cause.LATE, 0) / total
    parts = [text(x, y + row / 2 - 2, f"{busy / total:.0%} busy", 12, INK, weight=600)]
    parts.append(text(x + width, y + row / 2 - 2, f"{late:.1%} late", 11, SOFT, anchor="end"))
    for length, fill in [(busy, SOFT), *((idle[c], f"url(#{c.name.lower()})") for c in idle if c in IDLE)]:
        part = width * length / total
        parts.append(rect(x, y + row / 2 + 4, part, 7, fill))
        x += part
    parts.append(
        f'<rect x="{WIDTH - RIGHT + 18:.1f}" y="{y + row / 2 + 4:.1f}" width="{width:.1f}" height="7" fill="none" '
        f'stroke="{LINE}"/>'
    )
    return parts


# --- words ----------------------------------------------------------------------------------------------------------


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _time(ns: float) -> str:
    for unit, factor in (("s", 1e9), ("ms", 1e6)):
        if ns >= factor:
            return f"{ns / factor:.3g} {unit}"
    return f"{ns / 1e3:.3g} µs"
