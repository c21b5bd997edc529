"""Pictures of paced runs: throughput and times to the first token by workload and concurrency, arms as coloured series.

Points are medians of the repeats that may be used, whiskers go from the least to the most. Where none may be used the
point is hollow. Lines join neighbours that ran at the same speed of the device and may be used.
`benchmark.paced.idle_picture` draws what stages waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmark.paced.cells import PHASES
from benchmark.paced.idle_picture import idle_picture
from benchmark.paced.panel import HEIGHT, Panel
from benchmark.paced.records import Record, by_cell_and_arm, usable
from sglang_wavepp.telemetry.palette import INK, REQUESTS, SOFT
from sglang_wavepp.telemetry.strokes import document, text, text_length

LEFT, TOP, GAP, AXIS = 16, 104, 58, 62
COLOURS = tuple(REQUESTS[k] for k in (2, 1, 0, 9, 3, 5, 7, 11, 12, 8, 13))
"""Of the palette those that stand out from white paper, the first for WavePP."""
ROWS: tuple[tuple[str, Callable[[Record], float]], ...] = (
    ("input tokens a second", lambda record: record.tok_s),
    ("p50 to the first token, s", lambda record: record.p50_s),
    ("p95 to the first token, s", lambda record: record.p95_s),
)


def draw(records: Sequence[Record], out: Path) -> list[Path]:
    """Write the pictures of a run beside its JSON.

    Args:
        out: the JSON; ``paced.json`` gets ``paced-throughput.svg`` and ``paced-idle.svg``.
    """
    title = f"{out.stem}: {_setting(records)}"
    drawn = {"throughput": throughput_picture(records, title), "idle": idle_picture(records, title)}
    paths = []
    for name, picture in drawn.items():
        path = out.with_name(f"{out.stem}-{name}.svg")
        path.write_text(picture)
        paths.append(path)
    return paths


def throughput_picture(records: Sequence[Record], title: str) -> str:
    """A column of panels per workload, in it a slot per concurrency (or arrival rate), in that a place per arm."""
    groups = by_cell_and_arm(records)
    arms = list(dict.fromkeys(arm for _, _, arm in groups))
    colours = arm_colours(arms)
    slots: dict[str, dict[tuple[float, str], dict[str, list[Record]]]] = {}
    for (workload, concurrency, arm), group in groups.items():
        name, slot = _place(workload, concurrency)
        slots.setdefault(name, {}).setdefault(slot, {})[arm] = group
    rejected = any(not usable(group) for group in groups.values())
    parts, right = _key(title, colours, rejected=rejected)
    one_speed = len({record.scale for record in records}) < 2
    x = float(LEFT)
    for name, by_slot in slots.items():
        ordered = sorted(by_slot)
        panel = Panel(
            name=name,
            left=x + AXIS,
            colours=colours,
            slots=[by_slot[slot] for slot in ordered],
            labels=[words for _, words in ordered],
            one_speed=one_speed,
        )
        parts.append(text(panel.left, TOP - 12, name, 14, INK, weight=600))
        for row, (label, value) in enumerate(ROWS):
            top = TOP + row * (HEIGHT + GAP)
            if x == LEFT:
                parts.append(text(LEFT, top - (32 if row == 0 else 8), label, 12, SOFT))
            parts += panel.drawn(top, value)
        x = panel.left + panel.width + 18
    return document(title, round(max(x, right) + LEFT), TOP + len(ROWS) * (HEIGHT + GAP), parts)


def arm_colours(arms: Iterable[str]) -> dict[str, str]:
    """By name: WavePP always has the same one."""
    others = [arm for arm in arms if arm != "wavepp"]
    taken = {arm: COLOURS[1 + place % (len(COLOURS) - 1)] for place, arm in enumerate(others)}
    return {arm: taken.get(arm, COLOURS[0]) for arm in arms}


def _place(workload: str, concurrency: int) -> tuple[str, tuple[float, str]]:
    """The panel of a cell, and its slot: a number to sort by, and words."""
    name, _, rate = workload.partition("@")
    if rate:
        return name, (float(rate), f"{rate}/s")
    return name, (concurrency, "c1 to 32" if workload == PHASES else f"c{concurrency}")


def _key(title: str, colours: dict[str, str], *, rejected: bool) -> tuple[list[str], float]:
    parts = [text(LEFT, 28, title, 17, INK, weight=650)]
    x = float(LEFT)
    for arm, colour in colours.items():
        parts += [f'<circle cx="{x + 5:.1f}" cy="46" r="5" fill="{colour}"/>', text(x + 16, 50, arm, 13, INK)]
        x += 16 + text_length(arm, 13) + 22
    if rejected:
        words = "hollow: rejected, not to be used"
        parts.append(text(x, 50, words, 12, SOFT))
        x += text_length(words, 12)
    return parts, max(x, LEFT + text_length(title, 19))


def _setting(records: Sequence[Record]) -> str:
    if not records:
        return "nothing measured"
    first = records[0]
    scales = sorted({record.scale for record in records})
    speed = f"{scales[0]:g}" if len(scales) == 1 else f"{scales[0]:g} to {scales[-1]:g} by cell"
    repeats = max(record.repeat for record in records) + 1
    return (
        f"{first.pp} stages on a paced device, M {first.wave_tokens:,}, lengths / {first.shorten}, speed {speed}, "
        f"{repeats} repeat{'' if repeats == 1 else 's'}"
    )
