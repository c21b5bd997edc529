"""Random histories by number: the same number is always the same history."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from model.real.pipeline import Pipeline
from model.real.world import World, random_world, restless_world


class Broken(AssertionError):
    """A history broke a rule; the message says which one and how to run it again."""


def world_of(seed: int) -> World:
    """Every third history is a restless one."""
    make: Callable[[random.Random], World] = restless_world if seed % 3 == 2 else random_world
    return make(random.Random(f"world {seed}"))


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
