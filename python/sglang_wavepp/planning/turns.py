"""Which kind of wave goes next when prefill and decode are both ready."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class WaveKind(Enum):
    """The two kinds of waves."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(slots=True)
class Turns:
    """Lets decode and prefill waves alternate: neither waits for more than `max_run` waves of the other.

    Attributes:
        max_run: waves of one kind that may pass in a row while the other kind is ready.
    """

    max_run: int = 1
    _last: WaveKind = WaveKind.DECODE
    _run: int = 0

    def __post_init__(self) -> None:
        self._run = self.max_run  # prefill goes first

    def choose(self, *, prefill_ready: bool, decode_ready: bool) -> WaveKind | None:
        """The kind whose turn it is, None when nothing is ready."""
        if prefill_ready and decode_ready:
            other = WaveKind.PREFILL if self._last is WaveKind.DECODE else WaveKind.DECODE
            return other if self._run >= self.max_run else self._last
        if prefill_ready:
            return WaveKind.PREFILL
        return WaveKind.DECODE if decode_ready else None

    def launched(self, kind: WaveKind) -> None:
        """A wave of this kind was launched, whosever turn it was."""
        self._run = self._run + 1 if kind is self._last else 1
        self._last = kind
