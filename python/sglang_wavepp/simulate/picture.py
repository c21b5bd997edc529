"""Timelines of a run: stages as rows, waves coloured by request."""

from __future__ import annotations

from collections.abc import Sequence

from sglang_wavepp.simulate.outcome import Outcome, Wave
from sglang_wavepp.telemetry.idle import Cause
from sglang_wavepp.telemetry.palette import INK, LINE, PAPER, SOFT, request_colour
from sglang_wavepp.telemetry.strokes import document, rect, text, text_length

WIDTH, ROW, LEFT, TOP = 1200, 26, 70, 46
SEEN = 0.5
"""Pixels of the shortest idle time that is drawn."""
KEY = (
    (Cause.LATE, "late: the input was there and nothing launched (first stage: also no work)"),
    (Cause.UPSTREAM, "upstream: waiting for the stage before"),
)
SHADES = " .:-=+*#"


def text_timeline(outcome: Outcome, *, columns: int = 100) -> str:
    """One line for each stage; the darker a character, the busier the stage in that stretch of time."""
    end = max(wave.ends[-1] for wave in outcome.waves)
    step = end / columns
    lines = []
    for stage in range(len(outcome.waves[0].starts)):
        busy = [0.0] * columns
        for wave in outcome.waves:
            start, stop = wave.starts[stage], wave.ends[stage]
            for column in range(int(start / step), min(columns, int(stop / step) + 1)):
                low, high = max(start, column * step), min(stop, (column + 1) * step)
                busy[column] += max(0.0, high - low)
        marks = (SHADES[min(len(SHADES) - 1, int(share / step * (len(SHADES) - 1) + 0.5))] for share in busy)
        lines.append(f"stage {stage} |{''.join(marks)}|")
    lines.append(f"{'':8}0{f'{end:.2f} s':>{columns}}")
    return "\n".join(lines)


def svg_timeline(runs: Sequence[tuple[str, Outcome]]) -> str:
    """Runs below each other on one time axis: each wave in the colour of its first request, idle time in the pattern of
    its cause, white behind a stage's last wave."""
    end = max(wave.ends[-1] for _, run in runs for wave in run.waves)
    scale = (WIDTH - LEFT - 20) / end
    parts: list[str] = []
    top = TOP
    for title, run in runs:
        stages = len(run.waves[0].starts)
        words = f"{title}: {run.tok_s:,.0f} tok/s, {run.seconds:.2f} s, idle {run.idle:.0%}"
        parts.append(text(LEFT, top - 8, words, 14, INK))
        for stage in range(stages):
            y = top + stage * ROW
            parts.append(text(4, y + ROW - 9, f"stage {stage}", 12, INK))
            parts.append(rect(LEFT, y, end * scale, ROW - 4, LINE))
            parts.append(rect(LEFT + 1, y + 1, end * scale - 2, ROW - 6, PAPER))
            parts += [
                rect(LEFT + start * scale, y, (stop - start) * scale, ROW - 4, f"url(#{cause.name.lower()})")
                for start, stop, cause in gaps(run.waves, stage)
                if (stop - start) * scale >= SEEN
            ]
            parts += [_bar(wave, stage, y, scale) for wave in run.waves]
        top += stages * ROW + TOP
    parts.append(text(LEFT, top - TOP + 18, "0 s", 12, SOFT))
    parts.append(text(LEFT + end * scale, top - TOP + 18, f"{end:.2f} s", 12, SOFT, anchor="end"))
    parts += key(LEFT + 60, top - TOP + 9)[0]
    return document("When each stage computed which request", WIDTH, top, parts)


def gaps(waves: Sequence[Wave], stage: int) -> list[tuple[float, float, Cause]]:
    """When a stage was idle before each of its waves, and why: until the stage before had computed the wave, and from
    then on because its host had not launched it. On the first stage nothing was launched: its host was late, or there
    was no work."""
    found = []
    at = 0.0
    for wave in waves:
        start = wave.starts[stage]
        ready = min(max(at, wave.ends[stage - 1] if stage else at), start)
        found += [(at, ready, Cause.UPSTREAM), (ready, start, Cause.LATE)]
        at = wave.ends[stage]
    return [(start, stop, cause) for start, stop, cause in found if stop > start]


def key(x: float, y: float) -> tuple[list[str], float]:
    """What the patterns of idle time mean, in a line with its upper left corner there; and where it ends."""
    parts = []
    for cause, words in KEY:
        parts += [rect(x, y, 26, 12, f"url(#{cause.name.lower()})"), text(x + 33, y + 10, words, 12, SOFT)]
        x += 33 + text_length(words, 12) + 24
    return parts, x


def _bar(wave: Wave, stage: int, y: int, scale: float) -> str:
    start, stop = wave.starts[stage], wave.ends[stage]
    said = ", ".join(f"request {span.rid} [{span.start}, {span.end})" for span in wave.spans)
    return rect(
        LEFT + start * scale,
        y,
        max(0.3, (stop - start) * scale - 0.4),
        ROW - 4,
        request_colour(int(wave.spans[0].rid)),
        words=f"{said}: {stop - start:.3f} s",
    )
