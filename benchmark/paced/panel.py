"""One panel of a picture: a figure of a workload, a slot per concurrency, a point with whiskers per arm."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from benchmark.interleaved import Spread
from benchmark.paced.records import Record, usable
from sglang_wavepp.telemetry.palette import LINE, PAPER, SOFT
from sglang_wavepp.telemetry.strokes import text

HEIGHT = 170
_ARM, _MARGIN, _LEAST_SLOT = 17, 20, 72


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A workload's place in the picture. Places and lengths in pixels.

    Attributes:
        left: where its axis is.
        colours: of all arms of the picture.
        slots: by arm, what was measured; as many as `labels`.
        one_speed: whether the device ran at the same speed in the whole picture; else each slot says its own.
    """

    name: str
    left: float
    colours: Mapping[str, str]
    slots: Sequence[Mapping[str, Sequence[Record]]]
    labels: Sequence[str]
    one_speed: bool

    @property
    def width(self) -> float:
        """Of all slots."""
        return self._slot * len(self.slots)

    @property
    def _slot(self) -> float:
        return max(_LEAST_SLOT, _ARM * len(self.colours) + _MARGIN)

    def drawn(self, top: float, value: Callable[[Record], float]) -> list[str]:
        """The panel of one figure."""
        spreads = [
            {
                arm: Spread.of([value(record) for record in usable(group) or group])
                for arm, group in slot.items()
            }
            for slot in self.slots
        ]
        most = max(spread.high for slot in spreads for spread in slot.values())
        step = nice_step(most / 4)
        steps = max(1, math.ceil(most / step - 1e-9))
        parts = _grid(self.left, top, self.width, step, steps)

        def y(of: float) -> float:
            return top + HEIGHT * (1 - of / (step * steps))

        for number, (arm, colour) in enumerate(self.colours.items()):
            at = self.left + (self._slot - _ARM * (len(self.colours) - 1)) / 2 + _ARM * number
            places = [place for place in range(len(self.slots)) if arm in spreads[place]]
            for run in self._joined(arm):
                ends = [f"{at + place * self._slot:.1f},{y(spreads[place][arm].median):.1f}" for place in run]
                if len(ends) > 1:
                    parts.append(
                        f'<path d="M{" L".join(ends)}" stroke="{colour}" stroke-opacity="0.5" fill="none"/>'
                    )
            for place in places:
                spread, good = spreads[place][arm], bool(usable(self.slots[place][arm]))
                words = f"{self.name} {self.labels[place]}, {arm}: {spread.text(0 if spread.median >= 100 else 2)}"
                ends_at = (y(spread.low), y(spread.median), y(spread.high))
                parts.append(
                    _point(
                        at + place * self._slot,
                        ends_at,
                        colour,
                        words if good else f"{words}, rejected",
                        good,
                    )
                )
        return parts + self._labels(top)

    def _joined(self, arm: str) -> list[list[int]]:
        """Slots beside each other whose points a line joins: of one speed, each with figures that may be used."""
        speeds = [
            self._scale(place) if usable(slot.get(arm, ())) else None for place, slot in enumerate(self.slots)
        ]
        runs = itertools.groupby(range(len(speeds)), key=speeds.__getitem__)
        return [list(run) for speed, run in runs if speed is not None]

    def _labels(self, top: float) -> list[str]:
        parts = []
        for place, label in enumerate(self.labels):
            x = self.left + (place + 0.5) * self._slot
            parts.append(text(x, top + HEIGHT + 17, label, 12, SOFT, anchor="middle"))
            if not self.one_speed:
                speed = f"speed {self._scale(place):g}"
                parts.append(text(x, top + HEIGHT + 31, speed, 10, SOFT, anchor="middle"))
        return parts

    def _scale(self, place: int) -> float:
        return next(iter(self.slots[place].values()))[0].scale


def nice_step(least: float) -> float:
    """1, 2 or 5 times a power of ten, not below `least`."""
    power = 10.0 ** math.floor(math.log10(max(least, 1e-6)))
    return next(k * power for k in (1, 2, 5, 10) if k * power >= least * (1 - 1e-9))


def _grid(left: float, top: float, width: float, step: float, steps: int) -> list[str]:
    parts = []
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    for k in range(steps + 1):
        y = top + HEIGHT * (1 - k / steps)
        parts.append(f'<path d="M{left:.1f},{y:.1f} h{width:.1f}" stroke="{LINE}"/>')
        parts.append(text(left - 7, y + 4, f"{k * step:,.{digits}f}", 11, SOFT, anchor="end"))
    return parts


def _point(x: float, y: tuple[float, float, float], colour: str, words: str, filled: bool) -> str:
    """Whiskers from the first to the last of `y`, a circle at the middle one."""
    low, middle, high = y
    whisker = f"M{x:.1f},{low:.1f} V{high:.1f} M{x - 4:.1f},{low:.1f} h8 M{x - 4:.1f},{high:.1f} h8"
    return (
        f'<g><title>{escape(words)}</title><path d="{whisker}" stroke="{colour}" stroke-width="1.5" fill="none"/>'
        f'<circle cx="{x:.1f}" cy="{middle:.1f}" r="5" fill="{colour if filled else PAPER}" stroke="{colour}" '
        'stroke-width="2"/></g>'
    )
