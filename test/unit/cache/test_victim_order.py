"""The order of victims alone: what comes out, what stays, and what a walk costs."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import pytest
from sglang.srt.mem_cache import evict_policy

from sglang_wavepp.cache.victim_order import SLACK, VictimOrder, order_key

pytestmark = pytest.mark.unit


@dataclass
class Leaf:
    id: int
    time: float
    open: bool = True


class Grove:
    """Leaves without a tree."""

    def __init__(self) -> None:
        self.leaves: dict[int, Leaf] = {}
        self.keys = 0
        self.order = VictimOrder(self._key, self.leaves.get, lambda leaf: leaf.open)
        self._ids = itertools.count()

    def _key(self, leaf: Leaf) -> float:
        self.keys += 1
        return leaf.time

    def grow(self, time: float) -> Leaf:
        leaf = Leaf(next(self._ids), time)
        self.leaves[leaf.id] = leaf
        self.order.offer(leaf)
        return leaf

    def fell(self, leaf: Leaf) -> None:
        del self.leaves[leaf.id]
        self.order.forget(leaf.id)

    def ids(self) -> list[int]:
        return [leaf.id for leaf in self.order.walk()]

    def sorted(self) -> list[int]:
        return [leaf.id for leaf in sorted(self.leaves.values(), key=lambda x: x.time) if leaf.open]


def test_a_walk_gives_each_candidate_once_and_takes_none_away() -> None:
    grove = Grove()
    for time in (5, 1, 4, 2, 3):
        grove.grow(time)
    assert grove.ids() == grove.ids() == [1, 3, 4, 2, 0]


def test_a_leaf_that_was_used_meanwhile_comes_later_without_being_told() -> None:
    grove = Grove()
    first, second = grove.grow(1), grove.grow(2)
    first.time = 3
    assert grove.ids() == [second.id, first.id]


def test_a_leaf_that_goes_earlier_must_be_told() -> None:
    grove = Grove()
    first, second = grove.grow(1), grove.grow(2)
    second.time = 0
    grove.order.moved(second)
    assert grove.ids() == [second.id, first.id]
    stranger = Leaf(99, -1)
    grove.leaves[99] = stranger
    grove.order.moved(stranger)
    assert grove.ids() == [second.id, first.id], "moved does not let in what was never offered"


def test_locked_leaves_are_left_out_and_come_back_when_offered() -> None:
    grove = Grove()
    leaf, other = grove.grow(1), grove.grow(2)
    leaf.open = False
    assert grove.ids() == [other.id]
    leaf.open = True
    grove.order.offer(leaf)
    assert grove.ids() == [leaf.id, other.id]


def test_what_is_offered_during_a_walk_takes_its_place_in_it() -> None:
    grove = Grove()
    for time in (1, 3):
        grove.grow(time)
    seen = []
    for leaf in grove.order.walk():
        seen.append(leaf.time)
        if leaf.time == 1:
            grove.fell(leaf)
            grove.grow(2)
            grove.grow(0)
    assert seen == [1, 0, 2, 3]


def test_what_a_walk_takes_is_not_looked_at_again() -> None:
    grove = Grove()
    leaves = [grove.grow(time) for time in range(5)]
    for leaf in grove.order.walk():
        leaf.open = leaf.id > 2
    assert len(grove.order) == 2
    leaves[1].open = True
    grove.order.offer(leaves[1])
    assert grove.ids() == [1, 3, 4]


def test_walks_may_nest_and_may_be_left() -> None:
    grove = Grove()
    for time in range(5):
        grove.grow(time)
    outer = grove.order.walk()
    assert [next(outer).id, next(outer).id] == [0, 1]
    assert grove.ids() == [0, 1, 2, 3, 4]
    left = grove.order.walk()
    next(left)
    assert [leaf.id for leaf in outer] == [2, 3, 4], "each once, whatever other walks did"
    assert grove.ids() == [0, 1, 2, 3, 4]
    assert [leaf.id for leaf in left] == [1, 2, 3, 4]


def test_a_walk_costs_what_it_takes_and_what_changed() -> None:
    grove = Grove()
    leaves = [grove.grow(time) for time in range(20_000)]
    for leaf in leaves[5:15]:
        leaf.time += 50_000
    grove.keys = 0
    taken = list(itertools.islice(grove.order.walk(), 20))
    assert [leaf.id for leaf in taken] == [*range(5), *range(15, 30)]
    assert grove.keys <= 20 + 10


def test_stale_entries_are_swept_out() -> None:
    grove = Grove()
    leaves = [grove.grow(time) for time in range(100)]
    for time in range(100, 50_000):
        leaf = leaves[time % 100]
        leaf.time = -time
        grove.order.offer(leaf)
        assert len(grove.order) <= 1.25 * 100 + SLACK
    assert grove.ids() == grove.sorted()


@pytest.mark.parametrize("seed", range(5))
def test_any_history_gives_what_sorting_gives(seed: int) -> None:
    rng = random.Random(seed)
    grove = Grove()
    for _ in range(3000):
        leaves = list(grove.leaves.values())
        leaf = rng.choice(leaves) if leaves else None
        step = rng.random()
        if leaf is None or step < 0.3:
            grove.grow(rng.random())
        elif step < 0.4:
            grove.fell(leaf)
        elif step < 0.6:
            leaf.time += rng.random()
        elif step < 0.7:
            leaf.time -= rng.random()
            grove.order.moved(leaf)
        elif step < 0.8:
            leaf.open = not leaf.open
            grove.order.offer(leaf)
        elif step < 0.95:
            some = rng.randrange(4)
            assert [x.id for x in itertools.islice(grove.order.walk(), some)] == grove.sorted()[:some]
        else:
            assert grove.ids() == grove.sorted()
    grove.order.clear()
    assert grove.ids() == [] and len(grove.order) == 0


@dataclass
class Node:
    last_access_time: float = 1.0
    creation_time: float = 1.0
    hit_count: int = 0
    priority: int = 0


def test_ties_of_a_strategy_go_to_the_node_that_was_used_earlier() -> None:
    for strategy in (evict_policy.FIFOStrategy(), evict_policy.FILOStrategy(), evict_policy.LFUStrategy()):
        key = order_key(strategy)
        assert key(Node(last_access_time=1)) < key(Node(last_access_time=2))
    assert order_key(evict_policy.LFUStrategy())(Node(3, hit_count=0)) < order_key(
        evict_policy.LFUStrategy()
    )(Node(2, hit_count=1))
