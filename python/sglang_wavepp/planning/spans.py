"""What is left of a request, and the pieces of it that waves compute."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Remainder:
    """What a request still has to compute: the tokens `[start, prompt)`."""

    rid: str
    start: int
    prompt: int

    @property
    def length(self) -> int:
        """Tokens left."""
        return self.prompt - self.start


@dataclass(frozen=True, slots=True)
class PlannedSpan:
    """`length` tokens of request `rid` from `start` on.

    `publish` is the position in it up to which the request is then published to the cache, 0 for none; a planner leaves
    it open.
    """

    rid: str
    start: int
    length: int
    publish: int = 0

    @property
    def end(self) -> int:
        """Position after the span's last token."""
        return self.start + self.length
