"""Random histories by number: the same number is always the same history."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from model.real.pipeline import Pipeline
from model.real.world import World, crowded_world, random_world, restless_world

MAKERS: tuple[Callable[[random.Random], World], ...] = (
    random_world,
    restless_world,
    random_world,
    crowded_world,
)


class Broken(AssertionError):
    """A history broke a rule; the message says which one and how to run it again."""


def world_of(seed: int) -> World:
    """Half of the histories are of any kind, a quarter each of the kinds that strain one thing."""
    return MAKERS[seed % len(MAKERS)](random.Random(f"world {seed}"))


def run_history(seed: int) -> Counter[str]:
    """Run one history to its end and return what it met.

    Raises:
        Broken: a rule was broken.
    """
    world = world_of(seed)
    pipeline = Pipeline(world, seed)
    try:
        return pipeline.run()
    except Exception as failure:
        raise Broken(f"history {seed}, step {pipeline.steps}: {failure!r} in {world}") from failure
