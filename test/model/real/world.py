"""Sizes and habits of one random history."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from sglang_wavepp.planning.snapshots import PublishRule


@dataclass(frozen=True)
class World:
    """Sizes of a run; `pools` (in pages) and `slots` have one entry per rank.

    Attributes:
        grid: pages between positions where a recurrent snapshot may be taken.
        block: tokens of a hint's block.
        longest: pages of the longest prompt.
        output: tokens of the longest answer.
        budget: pages of the largest wave.
        period: grid steps between positions of a prompt that are published for their own sake.
        roots: texts that most prompts begin with.
        warm: whether each rank knows the roots to another depth, with snapshots at other places.
        haste: how readily rank 0 launches spans; a low one lets leases pile up.
        aborts, chaos, flushes: chance of each before a step.
        gain: tokens that a request must gain to be held back until an earlier one has computed them, and the same
            while nothing is left to plan; None: nobody is held back.
        patience: steps after which some request must have ended.
    """

    page: int = 4
    pools: tuple[int, ...] = (24, 30)
    slots: tuple[int, ...] | None = None
    grid: int = 1
    block: int = 4
    rows: int = 4
    batch: int = 3
    longest: int = 8
    output: int = 4
    budget: int = 4
    period: int = 1
    requests: int = 20
    roots: int = 3
    warm: bool = False
    haste: float = 1
    headroom: int = 0
    ahead: int | None = None
    gain: tuple[int, int] | None = None
    policy: str = "lru"
    aborts: float = 0.01
    chaos: float = 0.01
    flushes: float = 0.002
    patience: int = 6000

    @property
    def ranks(self) -> int:
        return len(self.pools)

    @property
    def step(self) -> int:
        """Tokens between positions where a span may end before its request does."""
        return self.page * self.grid

    @property
    def extra_buffer(self) -> bool:
        """Whether recurrent states are tracked beside the running one; SGLang needs it for pages of several tokens."""
        return self.slots is not None and self.page > 1

    @property
    def publish_rule(self) -> PublishRule:
        """What spans publish."""
        period = self.step * self.period
        if self.slots is None:
            return PublishRule.dense(grid=self.step, period=period)
        return PublishRule(grid=self.step, period=period, inside=self.extra_buffer)

    @property
    def slots_per_request(self) -> int:
        """Running state, tracking slot, two that rotate."""
        if self.slots is None:
            return 0
        return 4 if self.extra_buffer else 3


def random_world(rng: random.Random, *, requests: int = 16) -> World:
    """Any kind of model, page and pressure."""
    page = rng.choice((1, 4, 4, 16))
    hybrid = rng.random() < 0.6
    grid = rng.choice((1, 1, 2)) if page > 1 else 1
    ranks = rng.choice((2, 2, 2, 3, 3, 4, 8))
    longest = rng.randint(4, 12)
    roomy = rng.choice((1.2, 2, 4, 8))
    least = longest + 2
    pools = tuple(rng.randint(least, max(least, int(least * roomy))) for _ in range(ranks))
    rows = rng.randint(2, 5)
    slots = None
    if hybrid:
        each = 4 if page > 1 else 3
        slots = tuple(rng.randint(each, each * rows + 10) for _ in range(ranks))
    return World(
        page=page,
        pools=pools,
        slots=slots,
        grid=grid,
        block=rng.choice([each for each in (1, 2, 4, 8, 16, 32) if each <= 2 * page]),
        rows=rows,
        batch=rng.randint(1, 4),
        longest=longest,
        output=rng.randint(1, page + 3),
        budget=max(grid, rng.choice((1, 3, 6, longest, 2 * longest))),
        period=rng.choice((1, 2, 4, 100)) if hybrid else 1,
        requests=requests,
        roots=rng.choice((1, 2, 3)),
        warm=rng.random() < 0.7,
        headroom=rng.choice((0, 0, 2 * page, 6 * page)),
        ahead=rng.choice((None, None, page, 6 * page)),
        gain=rng.choice((None, (1, 1), (page, page), (page, 4 * page), (2 * page, longest * page))),
        policy=rng.choice(("lru", "lru", "lru", "lfu", "slru", "priority", "fifo", "mru")),
        aborts=rng.choice((0, 0.002, 0.008)),
        chaos=rng.choice((0, 0.003, 0.02, 0.1)),
        flushes=rng.choice((0.05, 0.3)),
    )


def restless_world(rng: random.Random, *, requests: int = 24) -> World:
    """Much cached, and what is cached changes between a hint and its attempt: ranks hold different endpoints."""
    world = random_world(rng, requests=requests)
    least = world.longest + 2
    slots = world.slots
    if slots is not None:
        slots = tuple(rng.randint(12, 30) for _ in slots)
    return replace(
        world,
        pools=tuple(rng.randint(2 * least, 4 * least) for _ in world.pools),
        slots=slots,
        rows=rng.randint(3, 6),
        headroom=0,
        ahead=None,
        warm=True,
        aborts=rng.choice((0, 0.002)),
        chaos=rng.choice((0.05, 0.15, 0.3)),
    )


def crowded_world(rng: random.Random, *, requests: int = 24) -> World:
    """Many leases on different snapshots, and hardly more recurrent slots than they are entitled to."""
    world = random_world(rng, requests=requests)
    least = world.longest + 2
    each = 4 if world.page > 1 else 3
    return replace(
        world,
        pools=tuple(rng.randint(3 * least, 6 * least) for _ in world.pools),
        slots=tuple(each * rng.randint(1, 3) + rng.randint(0, 3) for _ in world.pools),
        rows=rng.randint(3, 6),
        block=min(world.block, world.page),
        headroom=0,
        ahead=None,
        warm=True,
        haste=0.05,
        aborts=rng.choice((0, 0.002)),
        chaos=rng.choice((0, 0.003)),
    )


def hint_step(world: World) -> int:
    """Tokens between endpoints that block, page and snapshots allow."""
    return math.lcm(world.block, world.step)
