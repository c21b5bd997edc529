"""Maximum Pipeline Utilization: the planner that sizes waves so that every stage has work."""

from __future__ import annotations

from itertools import islice

from sglang_wavepp.planning.cost import WaveCost
from sglang_wavepp.planning.grid import SpanGrid
from sglang_wavepp.planning.halving import halvings
from sglang_wavepp.planning.hysteresis import Hysteresis
from sglang_wavepp.planning.outlook import Outlook
from sglang_wavepp.planning.packing import pack
from sglang_wavepp.planning.patience import Patience
from sglang_wavepp.planning.supply import Plan, Supply

LOOK = 64
"""Requests of the queue that a decision looks at."""


class MpuPlanner:
    """Chooses a token budget for each wave and packs it first come, first served.

    Args:
        max_tokens: tokens of the largest wave, `M`.
        min_tokens: no budget is smaller, `b_min`; at least one step of the grid.
        grid: where spans may end.
        max_requests: spans in a wave, at most.
        stages: pipeline stages, `P`.
        fills: `F`: the known work should make `2P + (F - 1) P` waves.
        progress_deadline: seconds that a wave may be held back, at most.
        cost: seconds of a wave, None while unknown. May be replaced at any time.
    """

    def __init__(
        self,
        *,
        max_tokens: int,
        min_tokens: int,
        grid: SpanGrid,
        max_requests: int,
        stages: int,
        fills: int = 2,
        progress_deadline: float = 0.005,
        cost: WaveCost | None = None,
    ) -> None:
        if max_requests < 1 or stages < 1 or fills < 1 or progress_deadline < 0:
            raise ValueError(
                "requests of a wave, stages and fills must be positive, the deadline not negative"
            )
        self.cost = cost
        self._budgets = halvings(largest=max_tokens, smallest=min_tokens, step=grid.step)
        self._min_tokens = min_tokens
        self._grid = grid
        self._max_requests = max_requests
        self._ring = 2 * stages
        self._supply_waves = self._ring + (fills - 1) * stages
        self._hysteresis = Hysteresis(ring=self._ring)
        self._patience = Patience(deadline=progress_deadline)

    @property
    def budget(self) -> int:
        """Tokens that the next wave may have, as decided last."""
        return self._budgets[self._hysteresis.position]

    def plan(self, supply: Supply) -> Plan:
        """The wave to launch now, or a wait for a request in admission."""
        looked = list(islice(supply.queue, LOOK))
        if not looked:
            return Plan()
        self._size(supply, Outlook.of(supply, looked))
        budget = self.budget
        lone = 2 * supply.unplanned < budget and len(looked) < self._max_requests
        if lone and supply.flying and supply.arriving_requests:
            until = self._patience.wait((looked[0].rid, looked[0].start), supply.now)
            if until is not None:
                return Plan(ask_again=until)
        return Plan(
            pack(
                looked,
                budget=budget,
                fragment=max(self._min_tokens, budget // 2),
                grid=self._grid,
                max_requests=self._max_requests,
            )
        )

    def _size(self, supply: Supply, outlook: Outlook) -> None:
        wanted = self._position(outlook, target=self._supply_waves)
        if not supply.flying:
            self._hysteresis.restart(wanted)
            return
        still = self._position(outlook, target=self._supply_waves * 7 // 8) > self._hysteresis.position
        self._hysteresis.decide(wanted, may_go_down=still)

    def _position(self, outlook: Outlook, *, target: int) -> int:
        """Place of the largest budget that supplies `target` waves, within the limit on splitting."""
        last = len(self._budgets) - 1
        for position, budget in enumerate(self._budgets):
            waves = outlook.waves(budget)
            if waves >= target or position == last:
                return position
            split = outlook.newly_split(larger=budget, smaller=self._budgets[position + 1])
            if waves >= self._ring and 8 * split > outlook.tokens:
                return position
        return last
