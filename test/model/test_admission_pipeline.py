"""Random histories of whole pipelines: whatever is delivered when, ranks agree, nobody runs short, waits for ever or
leaks.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from model.pipeline import Pipeline, World

from sglang_wavepp.admission.decision import Verdict

pytestmark = pytest.mark.model


def any_admission(rng: random.Random) -> dict[str, Any]:
    return {
        "admission": rng.choice(("two-walk", "lease", "lease")),
        "headroom": rng.choice((0, 0, 2, 4)),
        "ahead": rng.choice((None, 1, 3, 6)),
    }


def random_world(rng: random.Random) -> World:
    ranks = rng.choice((2, 2, 3, 4))
    hybrid = rng.random() < 0.6
    return World(
        pools=tuple(rng.randint(5, 12) for _ in range(ranks)),
        slots=tuple(rng.randint(4, 13) for _ in range(ranks)) if hybrid else None,
        rows=rng.randint(1, 4),
        batch=rng.randint(1, 4),
        chunk=rng.randint(1, 4),
        grid=rng.choice((1, 2, 2, 3)),
        requests=rng.randint(2, 12),
        longest=rng.randint(2, 8),
        output=rng.randint(1, 4),
        aborts=rng.choice((0, 0.02, 0.08)),
        chaos=rng.choice((0, 0.02, 0.1)),
        fences=rng.choice((0, 0.02)),
        **any_admission(rng),
    )


def deep_world(rng: random.Random) -> World:
    """Long shared prompts whose snapshots come and go: ranks hold different endpoints, and room is short."""
    ranks = rng.choice((2, 3, 4))
    return World(
        pools=tuple(rng.randint(16, 30) for _ in range(ranks)),
        slots=tuple(rng.randint(13, 24) for _ in range(ranks)),
        rows=rng.randint(3, 6),
        batch=rng.randint(2, 5),
        chunk=rng.randint(1, 6),
        grid=rng.choice((1, 2, 3)),
        requests=rng.randint(12, 24),
        longest=rng.randint(8, 14),
        output=3,
        aborts=rng.choice((0, 0.01)),
        chaos=rng.choice((0.05, 0.2)),
        fences=rng.choice((0, 0.01)),
        warm=3,
        **any_admission(rng),
    )


def histories(first: int, count: int, make: Callable[[random.Random], World] = random_world) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in range(first, first + count):
        world = make(random.Random(f"world {seed}"))
        try:
            seen += Pipeline(world, seed).run()
        except Exception as failure:
            raise AssertionError(f"seed {seed}, {world}") from failure
    return seen


def test_random_histories_keep_all_rules_and_meet_every_outcome() -> None:
    seen = histories(0, 250)
    for what in (*(verdict.value for verdict in Verdict), "finished", "withdrawn", "aborted running"):
        assert seen[what] > 10, f"{what} was hardly ever met, so it was not tested: {seen}"
    assert seen["aborted at admission"] > 0


def test_requests_that_ranks_hold_at_different_endpoints_are_admitted_and_passed_by_few() -> None:
    seen = histories(0, 60, lambda rng: replace(deep_world(rng), admission="two-walk", ahead=None))
    assert seen["lower"] > 100, seen
    assert seen["passed"] > 10, seen


def test_leases_that_differ_are_trimmed_and_admitted() -> None:
    seen = histories(0, 60, lambda rng: replace(deep_world(rng), admission="lease"))
    assert seen["lower"] > 30, seen
    assert seen["wait"] > 100, seen


@pytest.mark.full
def test_many_random_histories() -> None:
    histories(1_000_000, 15_000)
    histories(1_000_000, 3_000, deep_world)


class AnyInterleaving(RuleBasedStateMachine):
    """The same pipeline, with Hypothesis in the place of the network, the clients and the clock."""

    @initialize(seed=st.integers(0, 1 << 32), hybrid=st.booleans())
    def start(self, seed: int, hybrid: bool) -> None:
        world = random_world(random.Random(seed))
        slots = tuple(4 + pool % 6 for pool in world.pools) if hybrid else None
        self.pipeline = Pipeline(replace(world, requests=0, slots=slots), seed)

    @rule(text=st.lists(st.integers(0, 1), min_size=1, max_size=8), output=st.integers(1, 3))
    def arrive(self, text: list[int], output: int) -> None:
        self.pipeline.submit(text, output)

    @precondition(lambda self: self.pipeline.order)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        rid = data.draw(st.sampled_from(self.pipeline.order))
        if not self.pipeline.ended[rid] and rid not in self.pipeline.aborting:
            self.pipeline.abort(rid)

    @rule(rank=st.integers(0, 3))
    def evict(self, rank: int) -> None:
        self.pipeline.ranks[rank % len(self.pipeline.ranks)].tree.evict_one()

    @rule()
    def fence(self) -> None:
        self.pipeline.fence()

    @precondition(lambda self: self.pipeline.enabled())
    @rule(data=st.data(), times=st.integers(1, 4))
    def act(self, data: st.DataObject, times: int) -> None:
        for _ in range(times):
            names = [name for name, _ in self.pipeline.enabled()]
            if names:
                self.pipeline.step(data.draw(st.sampled_from(names)))

    @precondition(lambda self: not self.pipeline.done() and not self.pipeline.enabled())
    @rule()
    def let_time_pass(self) -> None:
        self.pipeline.tick()

    @invariant()
    def all_promises_can_be_kept(self) -> None:
        if hasattr(self, "pipeline"):
            self.pipeline.check()

    def teardown(self) -> None:
        if hasattr(self, "pipeline"):
            self.pipeline.last_end = self.pipeline.steps
            self.pipeline.drain()


TestAnyInterleaving = AnyInterleaving.TestCase
TestAnyInterleaving.settings = settings(
    max_examples=60,
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
