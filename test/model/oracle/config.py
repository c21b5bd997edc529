"""Sizes and traffic of one history."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """One entry per rank in `pools` and `slots`; lengths and pools in tokens.

    Attributes:
        pools: token places of each rank.
        slots: recurrent slots of each rank; 0 where the stage holds no recurrent layer.
        entitlement: recurrent slots that an admitted request may come to need: one active, two that rotate.
        requests: how many arrive by themselves.
        vocabulary: few token ids, so that prompts share prefixes.
        reserve: output tokens reserved beyond the prompt, at admission and by each extension.
        chunk: tokens of a prompt in one wave.
        rows: requests that run at once.
        batch: new attempts in one round.
        grid: a wave that ends at a multiple leaves a recurrent snapshot.
        aborts: chance of an abort before each step.
        chaos: chance before each step that a rank loses content that nobody holds.
        ring: waves in flight.
        warm: texts that every rank has cached to another depth before the first request.
        patience: steps without the end of a request that count as waiting for ever.
    """

    pools: tuple[int, ...] = (6, 8)
    slots: tuple[int, ...] = (0, 0)
    entitlement: int = 3
    requests: int = 6
    longest: int = 5
    most_output: int = 3
    vocabulary: int = 2
    reserve: int = 1
    chunk: int = 2
    rows: int = 3
    batch: int = 2
    grid: int = 2
    aborts: float = 0.02
    chaos: float = 0.02
    ring: int = 4
    patience: int = 6000
    warm: int = 0

    def __post_init__(self) -> None:
        if len(self.pools) != len(self.slots):
            raise ValueError(f"pools of {len(self.pools)} ranks and slots of {len(self.slots)}")


def random_config(rng: random.Random) -> Config:
    """Two to four ranks whose pools are just too small for the traffic, half of the time with recurrent layers."""
    ranks = rng.choice((2, 2, 3, 4))
    hybrid = rng.random() < 0.5
    return Config(
        pools=tuple(rng.randint(5, 10) for _ in range(ranks)),
        slots=tuple(rng.choice((0, 3, 4, 5, 6, 7)) if hybrid else 0 for _ in range(ranks)),
        requests=rng.randint(2, 10),
        longest=rng.randint(2, 6),
        most_output=rng.randint(1, 4),
        reserve=rng.randint(1, 2),
        chunk=rng.randint(1, 3),
        rows=rng.randint(1, 4),
        batch=rng.randint(1, 3),
        aborts=rng.choice((0, 0, 0.02, 0.08)),
        chaos=rng.choice((0, 0.02)),
    )


def growing_config(rng: random.Random) -> Config:
    """Outputs that grow beyond what was reserved, on a small rank 0 beside larger ranks: extension and retraction."""
    small = rng.randint(5, 7)
    others = [rng.choice((small, small + rng.randint(4, 14))) for _ in range(rng.choice((1, 1, 2)))]
    hybrid = rng.random() < 0.2
    pools = (small, *others)
    return Config(
        pools=pools,
        slots=tuple(rng.choice((0, 7, 9)) if hybrid else 0 for _ in pools),
        requests=rng.randint(3, 8),
        longest=rng.randint(1, 3),
        most_output=rng.randint(3, 6),
        reserve=1,
        chunk=rng.randint(1, 3),
        rows=rng.randint(2, 4),
        batch=rng.randint(1, 3),
        aborts=rng.choice((0, 0.02, 0.05)),
        chaos=rng.choice((0, 0.02)),
    )


def deep_config(rng: random.Random) -> Config:
    """Long shared prompts whose content and snapshots come and go: ranks hold different endpoints."""
    ranks = rng.choice((2, 3, 4))
    return Config(
        pools=tuple(rng.randint(12, 24) for _ in range(ranks)),
        slots=tuple(rng.choice((0, 5, 7, 9, 12)) for _ in range(ranks)),
        requests=rng.randint(6, 14),
        longest=rng.randint(6, 11),
        most_output=rng.randint(1, 3),
        reserve=rng.randint(1, 2),
        chunk=rng.randint(1, 4),
        rows=rng.randint(2, 5),
        batch=rng.randint(1, 4),
        grid=rng.choice((1, 2, 3)),
        aborts=rng.choice((0, 0.02)),
        chaos=rng.choice((0.05, 0.15)),
    )


def warm_config(rng: random.Random) -> Config:
    """Ranks that begin with different content of the same texts, so that many endpoints are lowered."""
    ranks = rng.choice((2, 3, 4))
    return Config(
        pools=tuple(rng.randint(16, 30) for _ in range(ranks)),
        slots=tuple(rng.choice((0, *range(9, 20))) for _ in range(ranks)),
        requests=rng.randint(8, 16),
        longest=rng.randint(8, 12),
        most_output=rng.randint(1, 3),
        reserve=rng.randint(1, 2),
        chunk=rng.randint(1, 6),
        rows=rng.randint(3, 6),
        batch=rng.randint(2, 5),
        grid=rng.choice((1, 2, 3)),
        aborts=rng.choice((0, 0.01)),
        chaos=rng.choice((0.05, 0.2)),
        warm=3,
    )


FAMILIES = {"mixed": random_config, "growing": growing_config, "deep": deep_config, "warm": warm_config}
