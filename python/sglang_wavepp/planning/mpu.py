"""Maximum Pipeline Utilization: the planner that sizes waves so that every stage has work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sglang_wavepp.planning.backlog import Ledger
from sglang_wavepp.planning.cost import WaveCost
from sglang_wavepp.planning.courtesy import Courtesy
from sglang_wavepp.planning.grid import SpanGrid
from sglang_wavepp.planning.halving import halvings
from sglang_wavepp.planning.hysteresis import Hysteresis
from sglang_wavepp.planning.outlook import Outlook
from sglang_wavepp.planning.pace import wave_seconds
from sglang_wavepp.planning.packing import pack
from sglang_wavepp.planning.patience import Patience
from sglang_wavepp.planning.spans import PlannedSpan, Remainder
from sglang_wavepp.planning.supply import Plan, Supply
from sglang_wavepp.planning.timed import WaveLimits, pack_timed

LOOK = 64
"""Requests of the queue that a decision looks at, at most; more only when these don't fill the largest wave."""
DEPTH = 8
"""With a cost, it looks no further than that many requests of a quarter of the largest wave or more."""


class MpuPlanner:
    """Sizes each wave and packs it first come, first served.

    With a cost, waves are balanced by time (`pace`): a wave holds so much work that the ends of a run and the waves
    themselves cost the stages equally much. Without one, the budget is the largest of a halving sequence that makes
    enough waves of the known work to fill the ring.

    Args:
        max_tokens: tokens of the largest wave, `M`.
        min_tokens: no budget is smaller, `b_min`; at least one step of the grid.
        grid: where spans may end.
        max_requests: spans in a wave, at most.
        stages: pipeline stages, `P`.
        fills: `F`: without a cost, the known work should make `2P + (F - 1) P` waves.
        progress_deadline: seconds that a wave may be held back, at most.
        cost: seconds of a wave, None while unknown. May be replaced at any time.

    Attributes:
        cost: as above.
        host: seconds that a stage's host needs for a wave, in the seconds of `cost`: no wave is made shorter. May be
            replaced at any time.

    Raises:
        ValueError: unless grid step <= `min_tokens` <= `max_tokens`, and the other limits are positive.
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
        self.host = 0.0
        self._budgets = halvings(largest=max_tokens, smallest=min_tokens, step=grid.step)
        self._budget = self._budgets[0]
        self._min_tokens = min_tokens
        self._grid = grid
        self._max_requests = max_requests
        self._stages = stages
        self._ring = 2 * stages
        self._supply_waves = self._ring + (fills - 1) * stages
        self._hysteresis = Hysteresis(ring=self._ring)
        self._patience = Patience(deadline=progress_deadline)
        self._ledger = Ledger()
        self._courtesy = Courtesy()
        self._limits = WaveLimits(
            max_tokens=self._budgets[0],
            min_tokens=min(min_tokens, self._budgets[0]),
            max_requests=max_requests,
            grid=grid,
        )

    @property
    def budget(self) -> int:
        """Tokens that a wave of the first request may have, as decided last: a multiple of the grid step."""
        return self._budget

    def plan(self, supply: Supply) -> Plan:
        """The wave to launch now, or a wait for a request in admission."""
        looked = self._look(supply.queue)
        if not looked:
            return Plan()
        cost = self.cost
        seconds = 0.0
        if cost is None:
            self._budget = self._by_supply(supply, Outlook.of(supply, looked))
        else:
            backlog = self._ledger.read(supply, looked, cost)
            seconds = wave_seconds(backlog, per_wave=cost.per_wave, stages=self._stages, host=self.host)
            self._budget = self._limits.tokens(looked[0].start, seconds=seconds, cost=cost)
        until = self._wait(supply, looked)
        if until is not None:
            return Plan(ask_again=until)
        if cost is None:
            spans = self._by_tokens(looked)
        else:
            spans = pack_timed(
                looked,
                seconds=seconds,
                cost=cost,
                limits=self._limits,
                courtesy=self._courtesy,
                alone=len(looked) == 1 and not supply.arriving_tokens,
                floor=self.host - cost.per_wave,
            )
        self._ledger.launched(spans)
        return Plan(spans)

    def _look(self, queue: Iterable[Remainder]) -> list[Remainder]:
        looked: list[Remainder] = []
        largest = self._budgets[0]
        most = largest if self.cost is None else max(1, largest // 4)
        enough = LOOK * largest if self.cost is None else DEPTH * most
        tokens = weight = 0
        for item in queue:
            count = len(looked)
            if weight >= enough or (count >= LOOK and (tokens >= largest or count >= self._max_requests)):
                break
            looked.append(item)
            tokens += item.length
            weight += min(item.length, most)
        return looked

    def _wait(self, supply: Supply, looked: Sequence[Remainder]) -> float | None:
        """When to ask again, if the wave is small and alone, the ring is busy and somebody is about to be admitted."""
        if (
            2 * supply.unplanned >= self._budget
            or len(supply.flying) < self._stages
            or not supply.arriving_requests
            or len(looked) >= self._max_requests
        ):
            return None
        return self._patience.wait((looked[0].rid, looked[0].start), supply.now)

    def _by_tokens(self, looked: Sequence[Remainder]) -> tuple[PlannedSpan, ...]:
        return pack(
            looked,
            budget=self._budget,
            fragment=max(self._min_tokens, self._budget // 2),
            grid=self._grid,
            max_requests=self._max_requests,
        )

    def _by_supply(self, supply: Supply, outlook: Outlook) -> int:
        wanted = self._position(outlook, target=self._supply_waves)
        if not supply.flying:
            self._hysteresis.restart(wanted)
        else:
            relaxed = self._position(outlook, target=self._supply_waves * 7 // 8)
            self._hysteresis.decide(wanted, may_go_down=relaxed > self._hysteresis.position)
        return self._budgets[self._hysteresis.position]

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
