"""Says what is going on: one line that renews itself on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_PLAIN_LINE_SECONDS = 10.0


class Progress:
    """Numbered steps, each with a changing detail.

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
        self._started = time.monotonic()
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
        self._write(f"{text} ({time.monotonic() - self._started:.0f} s)", final=True)

    def _write(self, detail: str, final: bool = False) -> None:
        line = f"[{self._number}/{self._steps}] {self._text}{': ' if detail else ' ...'}{detail}"
        if self._live:
            self._stream.write(f"\r\x1b[2K{line}" + ("\n" if final else ""))
        else:
            self._stream.write(line + "\n")
        self._stream.flush()
