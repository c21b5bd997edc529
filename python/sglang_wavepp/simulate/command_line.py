"""Reads cells, arms, numbers and files from a command line; what is wrong with them is said in one line."""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path
from typing import NoReturn

from sglang_wavepp.simulate.arms import ARMS, Arm
from sglang_wavepp.simulate.records import GRID, OTHERS, workload_of
from sglang_wavepp.simulate.workload import STRETCHES


class OneLineParser(argparse.ArgumentParser):
    """Ends with status 2 and `error: ...` alone: behind the usage of so many options nobody would see it."""

    def error(self, message: str) -> NoReturn:
        """End the program."""
        self.exit(2, f"error: {' '.join(message.split())}\n")


class WrongText(ValueError, argparse.ArgumentTypeError):
    """A text on the command line that can't be read. Argparse says of it what it says itself."""


def count(text: str) -> int:
    """A whole number, at least 1."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise WrongText(f"{text!r} is not a whole number of at least 1")
    return int(text)


def counts(text: str) -> tuple[int, ...]:
    """Whole numbers between commas or spaces, each of at least 1; at least one of them, none twice."""
    return tuple(dict.fromkeys(count(part) for part in _parts(text, "number")))


def positive(text: str) -> float:
    """A finite number above 0."""
    value = _finite(text)
    if value <= 0:
        raise WrongText(f"{text!r} is not above 0")
    return value


def not_negative(text: str) -> float:
    """A finite number, at least 0."""
    value = _finite(text)
    if value < 0:
        raise WrongText(f"{text!r} is less than 0")
    return value


def positives(text: str) -> tuple[float, ...]:
    """Finite numbers above 0 between commas or spaces, at least one."""
    return tuple(positive(part) for part in _parts(text, "number"))


def cells_of(text: str) -> list[tuple[str, int]]:
    """Cells between commas or spaces, such as `reuse131:4`, `cold65` (one request outstanding) or `phases`.

    An empty text asks for all of them. None comes twice.

    Raises:
        ValueError: one isn't a cell, or only separators are there.
    """
    if not text.strip():
        return [*GRID, *OTHERS]
    return list(dict.fromkeys(_cell(part) for part in _parts(text, "cell")))


def open_workloads_of(text: str) -> list[str]:
    """Names of workloads between commas or spaces for an open loop; an empty text asks for all of them.

    Raises:
        ValueError: a concurrency is named, or only separators are there.
    """
    if not text.strip():
        return list(dict.fromkeys(name for name, _ in (*GRID, *OTHERS) if name != "phases"))
    parts = list(dict.fromkeys(_parts(text, "workload")))
    for part in parts:
        if ":" in part:
            raise WrongText(f"an open loop has no concurrency: {part.partition(':')[0]}, not {part}")
    return parts


def arms_of(text: str) -> list[Arm]:
    """Arms by their names between commas or spaces; an empty text asks for all of them. None comes twice.

    Raises:
        ValueError: there is no such arm, or only separators are there.
    """
    if not text.strip():
        return list(ARMS.values())
    names = list(dict.fromkeys(_parts(text, "arm")))
    unknown = [name for name in names if name not in ARMS]
    if unknown:
        raise WrongText(f"unknown arm {', '.join(unknown)}; there are {', '.join(ARMS)}")
    return [ARMS[name] for name in names]


def prepare(target: Path) -> None:
    """Make the folder of a file to come, and see that the file can be written, which doesn't change it.

    Raises:
        ValueError: it can't.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            target.open("ab").close()
        else:
            tempfile.TemporaryFile(dir=target.parent).close()
    except OSError as error:
        raise _cannot_write(target, error) from error


def write(target: Path, text: str) -> None:
    """Write a file.

    Raises:
        ValueError: it can't be written.
    """
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _cannot_write(target, error) from error


def _cannot_write(target: Path, error: OSError) -> ValueError:
    return ValueError(f"{target} can't be written: {error.strerror or error}")


def _finite(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise WrongText(f"{text!r} is not a finite number")
    return value


def _cell(text: str) -> tuple[str, int]:
    name, colon, concurrency = text.partition(":")
    if colon and (not concurrency.isdecimal() or int(concurrency) < 1):
        raise WrongText(f"{text!r} is no cell: write it as reuse131:4, or phases")
    cell = (name, int(concurrency) if colon else max(STRETCHES) if name == "phases" else 1)
    workload_of(*cell, rounds=1)
    return cell


def _parts(text: str, what: str) -> list[str]:
    parts = text.replace(",", " ").split()
    if not parts:
        raise WrongText(f"{text!r} names no {what}")
    return parts
