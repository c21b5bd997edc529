"""The static planner: every wave takes the same token budget, packed first come, first served."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sglang_wavepp.planning.grid import SpanGrid
from sglang_wavepp.planning.packing import pack
from sglang_wavepp.planning.spans import PlannedSpan, Remainder
from sglang_wavepp.planning.supply import Plan, Supply


@dataclass(frozen=True, slots=True)
class StaticPlanner:
    """Fills a wave with the spans of the earliest requests.

    Attributes:
        budget: tokens of a wave, at least one step of the grid.
        max_requests: spans in a wave, at most.
    """

    budget: int
    grid: SpanGrid
    max_requests: int

    def __post_init__(self) -> None:
        if self.budget < self.grid.step:
            raise ValueError(
                f"a wave of {self.budget} tokens holds no span: it must have at least {self.grid.step} tokens"
                f" (page {self.grid.page}, recurrent grid {self.grid.recurrent})"
            )
        if self.max_requests < 1:
            raise ValueError(f"a wave must hold at least one request, got {self.max_requests}")

    def plan(self, supply: Supply) -> Plan:
        """The wave to launch now: always as much as the budget allows."""
        return Plan(self.pack(supply.queue))

    def pack(self, queue: Iterable[Remainder]) -> tuple[PlannedSpan, ...]:
        """Spans of the next wave, earliest request first, at most one a request.

        A remainder of the budget that is too small to end on the grid goes to a later request that it finishes, or
        stays unused. Empty when the queue is.
        """
        return pack(queue, budget=self.budget, fragment=1, grid=self.grid, max_requests=self.max_requests)
