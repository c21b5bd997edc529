"""Says what is going on and how long it will take: a line that renews itself on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_PLAIN_LINE_SECONDS = 10.0
_WIDTH = 150
"""Of a line that renews itself: one that wraps would not go away."""


class Progress:
    """Numbered steps, each with a changing detail; from half a minute on, also the time that is left.

    Args:
        steps: how many there will be.
        stream: where to write; standard output when None.
    """

    def __init__(self, steps: int, stream: TextIO | None = None) -> None:
        self._steps = steps
        self._stream = sys.stdout if stream is None else stream
        self._live = self._stream.isatty()
        self._number = 0
        self._text = ""
        self._begun = self._started = time.monotonic()
        self._ended = 0
        self._said = 0.0

    def step(self, text: str) -> None:
        """Begin the next step."""
        self._number += 1
        self._text = text
        self._started = time.monotonic()
        self._said = self._started
        self._write("")

    def detail(self, text: str) -> None:
        """Say how far the step is; on a stream that is no terminal only every few seconds."""
        now = time.monotonic()
        if self._live or now - self._said >= _PLAIN_LINE_SECONDS:
            self._said = now
            self._write(text)

    def done(self, text: str = "done") -> None:
        """End the step."""
        self._ended = self._number
        self._write(f"{text} ({time.monotonic() - self._started:.0f} s)", final=True)

    def left(self) -> float | None:
        """Seconds that are left if the steps to come take as long as those that ended; None before the first has."""
        if not self._ended:
            return None
        return (time.monotonic() - self._begun) / self._ended * (self._steps - self._ended)

    def _write(self, detail: str, final: bool = False) -> None:
        left = self.left() or 0.0
        rest = f", {left / 60:.0f} min left" if left > 30 else ""
        line = f"[{self._number}/{self._steps}{rest}] {self._text}{': ' if detail else ' ...'}{detail}"
        if self._live:
            self._stream.write(f"\r\x1b[2K{line[:_WIDTH]}" + ("\n" if final else ""))
        else:
            self._stream.write(line + "\n")
        self._stream.flush()
