from __future__ import annotations

from itertools import pairwise

import pytest

from sglang_wavepp.telemetry.idle import Cause
from sglang_wavepp.telemetry.palette import IDLE, REQUESTS, ink_on, request_colour

pytestmark = pytest.mark.unit

#: Linear RGB as it looks to people who lack one kind of cone, after Machado, Oliveira and Fernandes (2009).
VISIONS = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


def linear(colour: str) -> list[float]:
    values = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    return [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]


def perceived(colour: str, vision: str) -> tuple[float, float, float]:
    """Oklab coordinates."""
    r, g, b = (
        min(1.0, max(0.0, sum(w * v for w, v in zip(row, linear(colour), strict=True))))
        for row in VISIONS[vision]
    )
    long = (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b) ** (1 / 3)
    middle = (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b) ** (1 / 3)
    short = (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b) ** (1 / 3)
    return (
        0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.8086757660 * short,
    )


def distance(one: str, other: str, vision: str) -> float:
    pairs = zip(perceived(one, vision), perceived(other, vision), strict=True)
    return float(sum((a - b) ** 2 for a, b in pairs) ** 0.5)


@pytest.mark.parametrize("vision", VISIONS)
def test_requests_that_arrive_one_after_the_other_look_different_to_everybody(vision: str) -> None:
    for one, other in pairwise((*REQUESTS, REQUESTS[0])):
        assert distance(one, other, vision) > 0.15, (one, other)


def test_no_colour_is_used_twice_before_all_were() -> None:
    count = len(REQUESTS)
    assert len({request_colour(k) for k in range(count)}) == count >= 12
    assert request_colour(count) == request_colour(0)


@pytest.mark.parametrize("colour", REQUESTS)
def test_numbers_on_waves_can_be_read(colour: str) -> None:
    def luminance(of: str) -> float:
        return sum(w * v for w, v in zip((0.2126, 0.7152, 0.0722), linear(of), strict=True))

    dark, light = sorted((luminance(colour), luminance(ink_on(colour))))
    assert (light + 0.05) / (dark + 0.05) >= 4.5


def test_what_a_stage_waited_for_differs_by_pattern_not_by_colour_alone() -> None:
    assert set(IDLE) == set(Cause) - {Cause.NOTHING}
    assert len({lines for _, _, lines in IDLE.values()}) == len(IDLE)
