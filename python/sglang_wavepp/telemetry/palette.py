"""Colours that people with any colour vision tell apart, and marks that don't need colour.

Requests take turns through light and dark tones of hues that differ in lightness too. What a stage waited for is a
pattern, so it reads in black and white.
"""

from __future__ import annotations

from sglang_wavepp.telemetry.idle import Cause

INK, SOFT, LINE, PAPER = "#1b2130", "#5d667a", "#dfe3ea", "#ffffff"

REQUESTS = (
    "#7cabd9",
    "#ddaa33",
    "#5b4b9e",
    "#d9788a",
    "#99ddff",
    "#a0a035",
    "#eedd88",
    "#44aa99",
    "#bbcc33",
    "#117733",
    "#ffaabb",
    "#882255",
    "#ee8866",
    "#332288",
)
"""One a request, in the order of arrival, and again from the start."""

IDLE: dict[Cause, tuple[str, str, str]] = {
    Cause.LATE: ("#fdebe7", "#c4321f", "M-1,1 l2,-2 M0,6 l6,-6 M5,7 l2,-2"),
    Cause.UPSTREAM: ("#f0f2f6", "#c3cbd7", "M-1,5 l2,2 M0,0 l6,6 M5,-1 l2,2"),
    Cause.RESULTS: ("#f0f2f6", "#b9c2d0", "M1,1.5 h1 M4,4.5 h1"),
    Cause.ADMISSION: ("#fff6da", "#b98a10", "M3,0 v6"),
}
"""Background, colour of the lines, and the lines on a tile of 6 by 6; what isn't listed is left white."""


def request_colour(index: int) -> str:
    """Colour of the request that arrived as number `index`, from 0."""
    return REQUESTS[index % len(REQUESTS)]


def ink_on(colour: str) -> str:
    """Dark or white, whichever reads better on this colour."""
    red, green, blue = (int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return PAPER if luminance < 0.19 else INK
