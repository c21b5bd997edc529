"""Keeps the budget from following every small change of the supply."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Hysteresis:
    """The position in the halving sequence (0 is the largest budget) that is in force.

    More than one step up applies at once: a burst must not wait behind waves that are too small for it. One step up
    must be asked for `ring / 2` decisions in a row, a step down `ring` decisions.

    Attributes:
        ring: slots of the executor.
        position: in force now.
    """

    ring: int
    position: int = 0
    _asked: int = 0
    _direction: int = 0

    def restart(self, position: int) -> None:
        """Nothing is in flight: what is wanted applies at once, in either direction."""
        self.position, self._asked, self._direction = position, 0, 0

    def decide(self, wanted: int, *, may_go_down: bool) -> int:
        """The position for the next wave.

        Args:
            wanted: what the supply asks for by itself.
            may_go_down: whether a smaller budget is still wanted when the supply is a little larger than now.
        """
        if wanted < self.position - 1:
            self.restart(wanted)
            return self.position
        direction = (wanted > self.position) - (wanted < self.position)
        if direction > 0 and not may_go_down:
            direction = 0
        if direction == 0 or direction != self._direction:
            self._asked, self._direction = 0, direction
        if direction:
            self._asked += 1
            if self._asked >= (max(1, self.ring // 2) if direction < 0 else self.ring):
                self.restart(self.position + direction)
        return self.position
