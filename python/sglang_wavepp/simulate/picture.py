"""Timelines of a run: stages as rows, waves coloured by request."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from sglang_wavepp.simulate.outcome import Outcome, Wave

WIDTH, ROW, LEFT, TOP = 1200, 26, 70, 46
GOLDEN_ANGLE = 137.508
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
    """Runs below each other on one time axis: each wave in the colour of its first request, idle time left white."""
    end = max(wave.ends[-1] for _, run in runs for wave in run.waves)
    scale = (WIDTH - LEFT - 20) / end
    parts: list[str] = []
    top = TOP
    for title, run in runs:
        stages = len(run.waves[0].starts)
        parts.append(
            _text(
                LEFT,
                top - 8,
                f"{title}: {run.tok_s:,.0f} tok/s, {run.seconds:.2f} s, idle {run.idle:.0%}",
                14,
            )
        )
        for stage in range(stages):
            y = top + stage * ROW
            parts.append(_text(4, y + ROW - 9, f"stage {stage}", 12))
            parts.append(
                f'<rect x="{LEFT}" y="{y}" width="{end * scale:.1f}" height="{ROW - 4}" fill="#fff" stroke="#ccc"/>'
            )
            parts += [_bar(wave, stage, y, scale) for wave in run.waves]
        top += stages * ROW + TOP
    parts.append(_text(LEFT, top - TOP + 18, "0 s", 12))
    parts.append(_text(WIDTH - 80, top - TOP + 18, f"{end:.2f} s", 12))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top}" font-family="sans-serif">\n'
        + f'<rect width="{WIDTH}" height="{top}" fill="#fafafa"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _bar(wave: Wave, stage: int, y: int, scale: float) -> str:
    start, stop = wave.starts[stage], wave.ends[stage]
    hue = int(wave.spans[0].rid) * GOLDEN_ANGLE % 360
    said = ", ".join(f"request {span.rid} [{span.start}, {span.end})" for span in wave.spans)
    return (
        f'<rect x="{LEFT + start * scale:.2f}" y="{y}" width="{max(0.3, (stop - start) * scale - 0.4):.2f}"'
        f' height="{ROW - 4}" fill="hsl({hue:.0f},60%,62%)"><title>{escape(said)}: {stop - start:.3f} s</title></rect>'
    )


def _text(x: int, y: int, words: str, size: int) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}">{escape(words)}</text>'
