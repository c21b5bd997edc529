"""The timeline as one self-contained HTML page: stages as rows, waves as boxes coloured by request.

This module only gathers the numbers; how they are drawn stands in ``assets/picture.js``. The page loads nothing else,
so it can be kept beside a result or mailed.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import msgspec

from sglang_wavepp.telemetry.figure import MEANING
from sglang_wavepp.telemetry.idle import Cause, idle_times
from sglang_wavepp.telemetry.palette import IDLE, REQUESTS
from sglang_wavepp.telemetry.reading import Admission, RankTrace, Wave
from sglang_wavepp.telemetry.trace import ADMISSION, ROUNDS

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{css}</style>
</head>
<body>
<header>
  <div>
    <h1>{title}</h1>
    <p id="subtitle"></p>
  </div>
  <div class="buttons" role="group" aria-label="View">
    <button id="zoom-in" title="Zoom in (+)">+</button>
    <button id="zoom-out" title="Zoom out (−)">−</button>
    <button id="reset" title="Show everything (0)">Reset</button>
    <button id="theme" title="Switch between light and dark">Theme</button>
  </div>
</header>
<section id="tiles" aria-label="Summary"></section>
<section class="panel">
  <div class="key" id="key"></div>
  <canvas id="timeline" tabindex="0" role="img" aria-label="Waves per stage; the tables hold the numbers"></canvas>
  <canvas id="overview" role="img" aria-label="Overview with the visible window"></canvas>
  <p class="help">
    Wheel: zoom · drag: move · double click or 0: everything · click a request: follow it · Esc: all requests
  </p>
</section>
<section class="panel">
  <h2>Requests</h2>
  <div id="legend"></div>
</section>
<section class="panel">
  <h2>Stages</h2>
  <table id="stages"></table>
</section>
<section class="panel">
  <details id="details"><summary>Table of requests</summary><table id="requests"></table></details>
</section>
<div id="tip" hidden></div>
<noscript>This page draws the timeline with JavaScript.</noscript>
<script type="application/json" id="data">{data}</script>
<script>
{script}</script>
</body>
</html>
"""


def picture(ranks: Sequence[RankTrace], title: str) -> str:
    """The whole page. ``ranks`` in rank order, on one clock."""
    assets = files("sglang_wavepp.telemetry") / "assets"
    data = msgspec.json.encode(picture_data(ranks)).decode().replace("<", "\\u003c")
    return _PAGE.format(
        title=html.escape(title),
        css=(assets / "picture.css").read_text("utf-8"),
        script=(assets / "picture.js").read_text("utf-8"),
        data=data,
    )


def picture_data(ranks: Sequence[RankTrace]) -> dict[str, Any]:
    """The numbers of the page; times in microseconds from the first event of the trace.

    ``requests``: ``[rid, announced or -1, ended or -1, endpoint or -1, verdict]`` in order of arrival. ``rows``: one
    per rank, its waves as ``[start, duration, wave, slot, decode, [request, start, length, ...]]`` with the request as
    an index, and its idle times as ``[start, duration, cause]`` with the cause as an index into ``causes``.
    ``rounds``: ``[start, duration]`` of rank 0's rounds. ``marks``: ``[time, name, request]``. ``colours`` are taken by
    requests in turn; a cause is ``[name, meaning, ground, line, tile]``, the last three empty where it is left blank.
    """
    waves = [rank.waves() for rank in ranks]
    admissions = ranks[0].admissions() if ranks else ()
    origin = min((event.ts for rank in ranks for event in rank.events), default=0)
    end = max((event.ts + event.dur for rank in ranks for event in rank.events), default=0)
    numbers = _numbering(admissions, waves)
    by_rid = {admission.rid: admission for admission in admissions}

    def micro(ns: int) -> float:
        return round((ns - origin) / 1000, 1)

    idle = idle_times(ranks)
    causes = list(Cause)
    requests: list[list[Any]] = []
    for rid in numbers:
        known = by_rid.get(rid)
        if known is None:
            requests.append([rid, -1, -1, -1, ""])
        else:
            requests.append(
                [rid, micro(known.announced_ns), micro(known.ended_ns), known.endpoint, known.verdict]
            )
    rows = [
        {
            "name": rank.header.name,
            "waves": [
                [
                    micro(wave.start_ns),
                    round((wave.end_ns - wave.start_ns) / 1000, 1),
                    wave.wave,
                    wave.slot,
                    int(wave.decode),
                    [
                        number
                        for span in wave.spans
                        for number in (numbers[span.rid], span.start, span.length)
                    ],
                ]
                for wave in of_rank
            ],
            "gaps": [
                [micro(gap.start_ns), round(gap.length_ns / 1000, 1), causes.index(gap.cause)] for gap in gaps
            ],
        }
        for rank, of_rank, gaps in zip(ranks, waves, idle, strict=True)
    ]
    leader = ranks[0].events if ranks else ()
    rounds = [
        [micro(e.ts), round(e.dur / 1000, 1)] for e in leader if e.track == ROUNDS and e.ph in ("X", "i")
    ]
    marks = [
        [micro(event.ts), event.name, numbers.get(str(event.args.get("rid")), -1)]
        for event in leader
        if event.track == ADMISSION and event.ph == "i" and event.name not in ("announced", "admitted")
    ]
    return {
        "duration": micro(end),
        "requests": requests,
        "rows": rows,
        "rounds": rounds,
        "marks": marks,
        "colours": REQUESTS,
        "causes": [[cause.value, MEANING.get(cause, ""), *IDLE.get(cause, ("", "", ""))] for cause in causes],
    }


def _numbering(admissions: Sequence[Admission], waves: Sequence[Sequence[Wave]]) -> dict[str, int]:
    """Requests in order of arrival, and behind them those of which only waves are known, by their first wave."""
    numbers: dict[str, int] = {}
    for admission in admissions:
        numbers.setdefault(admission.rid, len(numbers))
    for wave in sorted((wave for of_rank in waves for wave in of_rank), key=lambda wave: wave.start_ns):
        for span in wave.spans:
            numbers.setdefault(span.rid, len(numbers))
    return numbers
