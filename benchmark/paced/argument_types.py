"""What one argument may be: functions for argparse that make a value of its text, or say in one line what is wrong."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from benchmark.paced.device_model import PRESETS

T = TypeVar("T")


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """A whole number from `least` on, up to `most` if there is one."""
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number {bounds}")
        return value

    return read


def listed(one: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """One or more, with commas or blanks between them; what is named twice counts once."""

    def read(text: str) -> tuple[T, ...]:
        words = text.replace(",", " ").split()
        if not words:
            raise argparse.ArgumentTypeError("nothing is listed")
        return tuple(dict.fromkeys(map(one, words)))

    return read


def device(text: str) -> str:
    """The name of a device."""
    if text not in PRESETS:
        raise argparse.ArgumentTypeError(f"no such device: {text!r}; there are {' '.join(PRESETS)}")
    return text


def file(text: str) -> Path | None:
    """A file that exists; None where none is named."""
    if text and not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"no such file: {text}")
    return Path(text) if text else None
