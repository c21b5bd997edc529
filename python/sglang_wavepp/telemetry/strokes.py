"""Rectangles, words and patterns of an SVG picture, and the picture around them. Places and lengths in pixels."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from sglang_wavepp.telemetry.palette import IDLE, PAPER

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def document(title: str, width: float, height: float, parts: Iterable[str]) -> str:
    """The SVG text, on white paper, so that it reads on a dark page too."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="{FONT}" role="img" aria-label="{escape(title)}">\n'
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>\n{_patterns()}\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def rect(
    x: float,
    y: float,
    width: float,
    height: float,
    fill: str,
    opacity: float = 1.0,
    *,
    words: str | None = None,
) -> str:
    """A rectangle.

    Args:
        fill: a colour, or ``url(#late)`` and so on: the pattern of a cause of idle time, or ``url(#decode)``.
        words: shown where the pointer rests on it.
    """
    shade = "" if opacity == 1 else f' fill-opacity="{opacity:g}"'
    place = f'x="{_short(x)}" y="{_short(y)}" width="{_short(max(0.0, width))}" height="{_short(height)}"'
    if words is None:
        return f'<rect {place} fill="{fill}"{shade}/>'
    return f'<rect {place} fill="{fill}"{shade}><title>{escape(words)}</title></rect>'


def text(
    x: float, y: float, words: str, size: float, fill: str, *, weight: int = 400, anchor: str = "start"
) -> str:
    """Words on the line `y`; `anchor` says which end of them, or the ``middle``, is at `x`."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" font-weight="{weight}" fill="{fill}" '
        f'text-anchor="{anchor}">{escape(words)}</text>'
    )


def text_length(words: str, size: float) -> float:
    """About how wide a text is."""
    narrow = sum(character in "iljtfr.,:·' |1" for character in words)
    return size * (0.64 * len(words) - 0.27 * narrow)


def _patterns() -> str:
    tiles = [
        f'<pattern id="{cause.name.lower()}" width="6" height="6" patternUnits="userSpaceOnUse">'
        f'<rect width="6" height="6" fill="{ground}"/><path d="{lines}" stroke="{colour}" fill="none"/></pattern>'
        for cause, (ground, colour, lines) in IDLE.items()
    ]
    tiles.append(
        '<pattern id="decode" width="4" height="4" patternUnits="userSpaceOnUse">'
        f'<path d="M0,2 h4" stroke="{PAPER}" stroke-width="1.4" stroke-opacity="0.8" fill="none"/></pattern>'
    )
    return f"<defs>{''.join(tiles)}</defs>"


def _short(place: float) -> str:
    """A place in hundredths of a pixel."""
    return f"{place:.2f}".rstrip("0").rstrip(".")
