"""Random histories of a server's queue: arrivals, results, admissions and planning in any order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_wavepp.planning.cost import WaveCost
from sglang_wavepp.planning.grid import SpanGrid
from sglang_wavepp.planning.mpu import MpuPlanner
from sglang_wavepp.planning.spans import PlannedSpan, Remainder
from sglang_wavepp.planning.supply import Plan, Supply

DEADLINE = 0.25
COSTS = st.one_of(
    st.none(),
    st.builds(
        WaveCost,
        per_wave=st.one_of(st.just(0.0), st.floats(1e-4, 1.0)),
        per_token=st.floats(1e-6, 1e-3),
        per_pair=st.one_of(st.just(0.0), st.floats(1e-12, 1e-8)),
    ),
)


@dataclass
class World:
    """One server's queue and ring, with everything that must hold checked after each step."""

    stages: int
    largest: int
    smallest: int
    grid: SpanGrid
    most: int
    cost: WaveCost | None
    queue: dict[str, list[int]] = field(default_factory=dict)
    flying: deque[tuple[PlannedSpan, ...]] = field(default_factory=deque)
    arriving: deque[tuple[str, int, int]] = field(default_factory=deque)
    now: float = 0.0
    waits: int = 0
    waited_since: float | None = None
    computed: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.planner, self.twin = self._make(), self._make()
        self.least = min(-(-self.smallest // self.grid.step) * self.grid.step, self.largest)
        self.arrived = 0

    def _make(self) -> MpuPlanner:
        return MpuPlanner(
            max_tokens=self.largest,
            min_tokens=self.smallest,
            grid=self.grid,
            max_requests=self.most,
            stages=self.stages,
            progress_deadline=DEADLINE,
            cost=self.cost,
        )

    def supply(self) -> Supply:
        return Supply(
            queue=iter([Remainder(rid, start, prompt) for rid, (start, prompt) in self.queue.items()]),
            unplanned=sum(prompt - start for start, prompt in self.queue.values()),
            flying=tuple(self.flying),
            arriving_tokens=sum(length for _, _, length in self.arriving),
            arriving_requests=len(self.arriving),
            now=self.now,
        )

    def arrive(self, pages: int, length: int) -> None:
        self.arrived += 1
        self.arriving.append((f"r{self.arrived}", pages * self.grid.page, length))

    def admit(self) -> None:
        if self.arriving:
            rid, start, length = self.arriving.popleft()
            self.queue[rid] = [start, start + length]
            self.turns[rid] = 0

    def land(self) -> None:
        if self.flying:
            self.flying.popleft()

    def forget(self) -> None:
        """A request is aborted."""
        if self.queue:
            self.queue.pop(next(iter(self.queue)))

    def plan(self) -> None:
        if len(self.flying) >= 2 * self.stages:
            return
        plan = self.planner.plan(self.supply())
        assert plan == self.twin.plan(self.supply()), "the same supply, another plan"
        budget = self.planner.budget
        assert budget % self.grid.step == 0
        assert min(self.smallest, self.largest // self.grid.step * self.grid.step) <= budget <= self.largest
        if plan.spans:
            self._launch(plan)
        elif self.queue:
            self._wait(plan)
        else:
            assert plan.ask_again is None

    def _wait(self, plan: Plan) -> None:
        assert len(self.flying) >= self.stages and self.arriving, "a wait without a reason"
        assert plan.ask_again is not None and self.now < plan.ask_again <= self.now + DEADLINE
        self.waits += 1
        assert self.waits == 1, "the same wave waits twice"

    def _launch(self, plan: Plan) -> None:
        self.waits = 0
        order = list(self.queue)
        places = [order.index(span.rid) for span in plan.spans]
        assert places == sorted(set(places)), "not in the order of admission"
        assert places[0] == 0, "the first request is not in the wave"
        assert sum(span.length for span in plan.spans) <= self.largest
        assert len(plan.spans) <= self.most
        for span in plan.spans:
            start, prompt = self.queue[span.rid]
            assert span.start == start, "tokens out of order"
            assert self.grid.complaint(start=start, length=span.length, prompt=prompt) is None
            self.computed.setdefault(span.rid, []).append((span.start, span.end))
            self.queue[span.rid][0] = span.end
            if span.end == prompt:
                del self.queue[span.rid]
        first = plan.spans[0]
        done = first.rid not in self.queue
        assert done or first.length >= min(self.least, self.largest) - first.start % self.grid.step
        self.flying.append(plan.spans)

    def drain(self) -> None:
        """Everything that has arrived ends within the promised number of decisions."""
        while self.arriving:
            self.admit()
        bound = sum(
            2 + 2 * (prompt - start) // max(1, self.least - self.grid.step + self.grid.page)
            for start, prompt in self.queue.values()
        )
        for _ in range(bound + 1):
            if not self.queue:
                return
            self.land()
            self.plan()
        raise AssertionError(f"{len(self.queue)} requests are left after {bound} decisions")


@given(st.data())
@settings(max_examples=150)
def test_any_history_keeps_order_limits_and_progress(data: st.DataObject) -> None:
    page = data.draw(st.sampled_from((1, 16, 64)), "page")
    grid = SpanGrid(page=page, recurrent=data.draw(st.sampled_from((1, 64)), "recurrent"))
    a, b = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
    world = World(
        stages=data.draw(st.integers(1, 8), "stages"),
        largest=grid.step * max(a, b) + data.draw(st.integers(0, grid.step - 1)),
        smallest=grid.step * min(a, b),
        grid=grid,
        most=data.draw(st.integers(1, 5), "most"),
        cost=data.draw(COSTS, "cost"),
    )
    steps = data.draw(
        st.lists(
            st.one_of(
                st.tuples(st.just("arrive"), st.integers(0, 50), st.integers(1, 4000)),
                st.tuples(st.sampled_from(("admit", "land", "plan", "plan", "plan")), st.just(0), st.just(0)),
                st.tuples(st.just("forget"), st.just(0), st.just(0)),
            ),
            max_size=80,
        ),
        "steps",
    )
    for step, pages, length in steps:
        world.now += 0.01
        if step == "arrive":
            world.arrive(pages, length)
        else:
            getattr(world, step)()
    world.drain()
    for pieces in world.computed.values():
        for (_, end), (start, _) in pairwise(pieces):
            assert start == end
