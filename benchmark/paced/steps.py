"""One progress bar over all steps of a long run, with the time that is left."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_PLAIN_LINE_SECONDS = 10.0
_WIDTH = 24


class Steps:
    """A bar that renews itself on a terminal, and lines elsewhere.

    Args:
        count: how many steps there will be.
        stream: where to write; standard output when None.
    """

    def __init__(self, count: int, stream: TextIO | None = None) -> None:
        self._count = count
        self._stream = sys.stdout if stream is None else stream
        self._live = self._stream.isatty()
        self._done = 0
        self._text = ""
        self._begun = self._said = time.monotonic()

    def step(self, text: str) -> None:
        """Begin a step."""
        self._text = text
        self._said = time.monotonic()
        self._write("")

    def detail(self, text: str) -> None:
        """Say how far the step is."""
        now = time.monotonic()
        if self._live or now - self._said >= _PLAIN_LINE_SECONDS:
            self._said = now
            self._write(text)

    def done(self) -> None:
        """End the step."""
        self._done += 1
        self._write("done", final=self._done == self._count)

    def left(self) -> float | None:
        """Seconds that are left if the steps to come take as long as those that are done; None before the first."""
        if not self._done:
            return None
        return (time.monotonic() - self._begun) / self._done * (self._count - self._done)

    def _write(self, detail: str, final: bool = False) -> None:
        filled = round(_WIDTH * self._done / self._count)
        left = self.left()
        rest = "" if left is None else f" {left / 60:.0f} min left"
        line = f"[{'#' * filled}{'.' * (_WIDTH - filled)}] {self._done}/{self._count}{rest} {self._text}"
        line += f": {detail}" if detail else ""
        if self._live:
            self._stream.write(f"\r\x1b[2K{line[:150]}" + ("\n" if final else ""))
        else:
            self._stream.write(line + "\n")
        self._stream.flush()
