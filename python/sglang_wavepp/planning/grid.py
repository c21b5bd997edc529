"""Where a span may end.

A span that isn't the last of its request must end at an absolute multiple of the grid `G = lcm(page, recurrent
checkpoint grid)`: a recurrent state that is tracked off the page grid is filed under the wrong depth, silently, and
every later hit there computes wrong tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpanGrid:
    """Grid of one server, in tokens.

    Attributes:
        page: cache page size; a span starts at a multiple of it.
        recurrent: distance of recurrent checkpoints, 1 for models without recurrent layers.
    """

    page: int
    recurrent: int = 1

    def __post_init__(self) -> None:
        if self.page < 1 or self.recurrent < 1:
            raise ValueError(f"page and recurrent grid must be positive, got {self}")

    @property
    def step(self) -> int:
        """Tokens between two positions at which a span may end before its request does."""
        return math.lcm(self.page, self.recurrent)

    def longest(self, *, start: int, remaining: int, budget: int) -> int:
        """Length of the longest legal span of at most `budget` tokens, 0 if there is none.

        Args:
            start: position of the span's first token.
            remaining: tokens that the request still lacks from `start` on.
        """
        if remaining <= budget:
            return remaining
        return max(0, (start + budget) // self.step * self.step - start)

    def complaint(self, *, start: int, length: int, prompt: int, publish: int = 0) -> str | None:
        """Why a span of a prompt of `prompt` tokens may not be computed, None when it may.

        Args:
            publish: position that it publishes, 0 for none.
        """
        end = start + length
        if length < 1 or end > prompt:
            return f"span [{start}, {end}) does not lie in a prompt of {prompt} tokens"
        if start % self.page:
            return f"span [{start}, {end}) does not start on a page of {self.page} tokens"
        if end < prompt and end % self.step:
            return f"span [{start}, {end}) of {prompt} tokens does not end on the grid of {self.step} tokens"
        if publish and (not start < publish <= end or publish % self.step):
            return f"span [{start}, {end}) can't publish position {publish} on the grid of {self.step} tokens"
        return None
