"""When a small wave waits for a request that is about to be admitted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Patience:
    """Lets a wave wait for one planning decision, and never beyond a deadline.

    Attributes:
        deadline: seconds that a wait lasts at most.
    """

    deadline: float
    _head: tuple[str, int] | None = None

    def wait(self, head: tuple[str, int], now: float) -> float | None:
        """When to ask again if the wave may wait now, None when it must go.

        Args:
            head: request and position of the wave's first span: a wave waits once.
            now: clock, in seconds.
        """
        if self._head == head or self.deadline <= 0:
            return None
        self._head = head
        return now + self.deadline
