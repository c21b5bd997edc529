"""Where the time of each stage went that it did not compute: a row per cell, a column per arm, a bar per stage."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmark.paced.records import Record, StageRecord, by_cell_and_arm, usable
from sglang_wavepp.simulate.picture import key
from sglang_wavepp.telemetry.palette import INK, LINE, SOFT
from sglang_wavepp.telemetry.strokes import document, rect, text, text_length

LEFT, TOP, HEIGHT, GAP = 112, 112, 84, 44
BAR = 16


def idle_picture(records: Sequence[Record], title: str) -> str:
    """Shares of each stage's span, medians of the repeats that may be used, of all where none may."""
    groups = by_cell_and_arm(records)
    cells = list(dict.fromkeys((workload, concurrency) for workload, concurrency, _ in groups))
    arms = list(dict.fromkeys(arm for _, _, arm in groups))
    column = max([170, *(BAR * len(record.stages) + 24 for record in records)])
    parts = [text(16, 28, title, 17, INK, weight=650)]
    drawn, x = key(16, 41)
    parts += drawn
    right = max(x, 16 + text_length(title, 19), LEFT + column * len(arms))
    for number, arm in enumerate(arms):
        parts.append(text(LEFT + number * column, TOP - 30, arm, 13, INK, weight=600))
    for row, cell in enumerate(cells):
        top = TOP + row * (HEIGHT + GAP)
        found = [(place, groups.get((cell[0], cell[1], arm))) for place, arm in enumerate(arms)]
        shown = [(place, group) for place, group in found if group]
        parts.append(
            text(LEFT - 14, top + HEIGHT / 2 + 4, shown[0][1][0].cell, 13, INK, weight=600, anchor="end")
        )
        for place, group in shown:
            parts += _bars(LEFT + place * column, top, group)
    return document(title, round(right + 16), TOP + len(cells) * (HEIGHT + GAP), parts)


def _bars(left: float, top: float, group: Sequence[Record]) -> list[str]:
    good = usable(group)
    shown = good or group
    idle = statistics.median(record.idle for record in shown)
    parts = [text(left, top - 6, f"idle {idle:.0%}" + ("" if good else ", rejected"), 12, SOFT)]
    count = len(shown[0].stages)
    for stage in range(count):
        shares = [_shares(record.stages[stage]) for record in shown]
        late, upstream = (statistics.median(values) for values in zip(*shares, strict=True))
        x, floor = left + stage * BAR, top + HEIGHT
        words = f"stage {stage}: {late:.1%} late, {upstream:.1%} upstream"
        parts.append(rect(x, floor - HEIGHT * late, BAR - 3, HEIGHT * late, "url(#late)", words=words))
        parts.append(
            rect(
                x,
                floor - HEIGHT * (late + upstream),
                BAR - 3,
                HEIGHT * upstream,
                "url(#upstream)",
                words=words,
            )
        )
        parts.append(text(x + (BAR - 3) / 2, floor + 13, str(stage), 10, SOFT, anchor="middle"))
    width = count * BAR - 3
    parts.append(f'<path d="M{left},{top} h{width} M{left},{top + HEIGHT} h{width}" stroke="{LINE}"/>')
    return parts


def _shares(stage: StageRecord) -> tuple[float, float]:
    """Late and upstream as shares of the stage's span."""
    waited = stage.late_s + stage.upstream_s
    if waited <= 0:
        return 0.0, 0.0
    return stage.idle * stage.late_s / waited, stage.idle * stage.upstream_s / waited
