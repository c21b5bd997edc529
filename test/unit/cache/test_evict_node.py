"""Soft holds on a real tree: what they keep from whom, what becomes of them, and how a held node is evicted."""

from __future__ import annotations

from unittest import mock

import pytest
from unit.cache.indexed_tree import BACKEND, IndexedTree

from sglang_wavepp.cache.soft_holds import HoldError

pytestmark = pytest.mark.unit


def fork(page: int = 4, **options: object) -> tuple[IndexedTree, int, int, int]:
    """A prefix of 8 tokens with two branches, of 8 and of 4 tokens; the longer one is older."""
    tree = IndexedTree(page=page, **options)  # type: ignore[arg-type]
    tree.insert([1] * 8 + [2] * 8)
    tree.insert([1] * 8 + [3] * 4)
    upper = tree.match([1] * 8 + [9] * 4).last_visited_node_id
    newer, older = sorted(tree.candidates(), key=lambda each: each[1])
    return tree, upper, older[0], newer[0]


def test_a_hold_takes_a_leaf_from_sglang_and_its_parent_is_next() -> None:
    tree, upper, older, newer = fork()
    assert tree.candidates() == [(older, 8), (newer, 4)]
    tree.hold(older, 8)
    assert tree.candidates() == [(newer, 4)]
    tree.hold(newer, 4)
    assert tree.candidates() == [(upper, 8)]
    assert tree.evict(1000) == 0, "SGLang takes nothing that is held, nor what is above it"
    tree.check()
    assert tree.cache.evict_node(upper) == 20
    assert (tree.book.held, tree.book.freed) == ({}, 12)
    assert tree.free() == tree.tokens
    tree.check()


def test_holders_share_a_node_up_to_its_tokens() -> None:
    tree, _, older, newer = fork()
    tree.hold(older, 3)
    tree.hold(older, 2)
    assert tree.candidates() == [(older, 3), (newer, 4)]
    with pytest.raises(HoldError, match="can't hold 4 more of the 8 tokens"):
        tree.core.hold(older, 4)
    with pytest.raises(HoldError, match="can't hold 0"):
        tree.core.hold(older, 0)
    tree.hold(older, 3)
    assert tree.candidates() == [(newer, 4)]
    tree.unhold(older, 8)
    with pytest.raises(HoldError, match="can't let go"):
        tree.core.unhold(older, 1)
    assert tree.candidates() == [(older, 8), (newer, 4)]
    tree.check()


def test_sglang_skips_a_node_that_is_held_in_part() -> None:
    tree, _, older, newer = fork()
    tree.hold(older, 1)
    assert tree.evict(1) == 4, "the newer leaf goes instead"
    assert tree.core.exists(older) and not tree.core.exists(newer)
    assert tree.evict(1000) == 0
    tree.unhold(older, 1)
    assert tree.evict(1) == 8
    tree.check()


def test_a_split_divides_what_is_held_and_fills_the_lower_part_first() -> None:
    tree = IndexedTree(page=4)
    leaf = tree.insert([1] * 4 + [2] * 8)
    assert leaf is not None
    tree.hold(leaf, 10)
    upper = tree.match([1] * 4).best_match_node
    assert tree.book.held == {leaf: 8, upper: 2}
    assert tree.candidates() == [(upper, 2)], "what is below it is held"
    tree.match([1] * 4 + [2] * 4)
    assert tree.book.held[leaf] == 4 and sum(tree.book.held.values()) == 10
    tree.check()
    tree.check_order()


def test_a_lock_on_a_held_node_is_a_claim_once() -> None:
    tree, upper, older, newer = fork()
    tree.hold(older, 8)
    tree.hold(newer, 4)
    tree.hold(upper, 1)
    lock = tree.lock([1] * 8 + [2] * 8)
    assert sorted(tree.core.claims) == sorted([older, upper])
    again = tree.cache.lock(older)
    assert len(tree.core.claims) == 2, "claimed already"
    assert tree.core.is_locked(older) and not tree.core.is_locked(newer)
    with pytest.raises(HoldError, match="locked"):
        tree.core.hold(upper, 1)
    with pytest.raises(ValueError, match="locked"):
        tree.cache.evict_node(older)
    tree.unhold(older, 8)
    tree.unhold(upper, 1)
    tree.cache.unlock(again)
    tree.cache.unlock(lock)
    assert tree.candidates() == [(older, 8)]
    tree.check()


def test_a_pin_is_a_claim() -> None:
    tree, upper, older, _ = fork()
    tree.hold(older, 1)
    tree.core.inc_full_pin(upper)
    assert tree.core.claims == []
    tree.core.inc_full_pin(older)
    assert tree.core.claims == [older]


def test_a_claimed_node_that_is_split_is_claimed_in_both_parts() -> None:
    tree = IndexedTree(page=4)
    leaf = tree.insert([1] * 4 + [2] * 8)
    assert leaf is not None
    tree.hold(leaf, 12)
    lock = tree.cache.lock(leaf)
    assert tree.core.claims == [leaf]
    tree.insert([1] * 4 + [5] * 4)
    (upper,) = set(tree.book.held) - {leaf}
    assert tree.core.claims == [leaf, upper]
    assert tree.book.held == {leaf: 8, upper: 4}
    tree.cache.unlock(lock)
    tree.check()


def test_the_chosen_node_goes_and_no_other() -> None:
    tree, upper, older, newer = fork()
    tree.hold(newer, 4)
    assert tree.cache.evict_node(newer) == 4
    assert tree.book.freed == 4
    assert tree.core.exists(older) and tree.core.exists(upper) and not tree.core.exists(newer)
    with pytest.raises(KeyError):
        tree.cache.evict_node(newer)
    tree.check()


def test_what_came_below_a_held_node_goes_with_it() -> None:
    tree = IndexedTree(page=4)
    leaf = tree.insert([1] * 8)
    assert leaf is not None
    tree.hold(leaf, 8)
    below = tree.insert([1] * 8 + [2] * 4)
    assert tree.candidates() == [(below, 4)]
    assert tree.cache.evict_node(leaf) == 12
    assert tree.book.freed == 8, "only what was held is the holder's"
    tree.check()


def test_a_leaf_that_goes_for_its_snapshot_is_reported() -> None:
    tree = IndexedTree(page=1, slots=2)
    leaf = tree.insert([1] * 8)
    assert leaf is not None
    tree.hold(leaf, 8)
    tree.evict(0, slots=1)
    assert (tree.book.held, tree.book.freed) == ({}, 8)
    tree.check()


def test_a_held_node_above_the_last_of_its_free_children_becomes_covered() -> None:
    tree, upper, older, newer = fork()
    root = tree.insert([7] * 4)
    tree.hold(upper, 8)
    tree.hold(older, 8)
    tree.evict(4)
    assert not tree.core.exists(newer)
    assert tree.candidates() == [(root, 4)]
    tree.check()


def test_use_moves_a_node_whose_children_are_held_earlier_under_mru() -> None:
    tree, upper, older, newer = fork(policy="mru")
    other = tree.insert([7] * 4)
    tree.hold(older, 8)
    tree.hold(newer, 4)
    assert tree.candidates() == [(other, 4), (upper, 8)]
    tree.match([1] * 8 + [2] * 8)
    assert tree.candidates() == [(upper, 8), (other, 4)]


def test_an_emptied_tree_holds_nothing() -> None:
    tree, _, older, _ = fork()
    tree.hold(older, 8)
    tree.cache.lock(older)
    tree.cache.reset()
    assert tree.book.emptied == 1
    assert tree.book.held == {} and tree.core.claims == [] and len(tree.core.order) == 0
    assert tree.core.index.contents() == {component: {} for component in tree.core.index.components}


def test_holding_while_iterating_reaches_the_root() -> None:
    tree, upper, older, newer = fork()
    order = []
    for node_id, tokens in tree.core.candidates():
        tree.hold(node_id, tokens)
        order.append(node_id)
    assert order == [older, newer, upper]
    assert tree.cache.evict_node(upper) == tree.book.freed == 20


def test_many_nodes_are_freed_together() -> None:
    tree, upper, older, newer = fork()
    other = tree.insert([7] * 4)
    tree.hold(older, 8)
    with mock.patch.object(tree.allocator, "free_segment", wraps=tree.allocator.free_segment) as free:
        assert tree.cache.evict_nodes([older, upper, newer, other]) == 24  # type: ignore[list-item]
    assert free.call_count == 1
    assert tree.book.freed == 8 and tree.free() == tree.tokens
    tree.check()


def test_what_went_before_a_locked_node_is_free() -> None:
    tree, _, older, newer = fork()
    tree.cache.lock(newer)
    with pytest.raises(ValueError, match=f"node {newer} is locked"):
        tree.cache.evict_nodes([older, newer])
    assert not tree.core.exists(older) and tree.core.exists(newer)
    tree.check()


def test_a_node_with_a_copy_on_the_host_stays_there() -> None:
    tree, upper, older, _ = fork(host=True)
    tree.copy_to_host(tree.core.node_by_id(older))
    tree.hold(older, 8)
    tree.hold(upper, 8)
    assert tree.cache.evict_node(upper) == 20
    assert tree.book.freed == 16
    assert tree.core.exists(older) and tree.core.device_tokens(older) == 0
    tree.check()


def test_a_node_that_must_be_copied_first_is_refused() -> None:
    tree, _, older, newer = fork(host=True)
    tree.core.is_write_back = True
    tree.copy_to_host(tree.core.node_by_id(older))
    with pytest.raises(RuntimeError, match=f"node {newer} waits"):
        tree.cache.evict_nodes([older, newer])
    assert tree.core.device_tokens(older) == 0 and tree.core.device_tokens(newer) == 4
    tree.check()


def test_evict_node_needs_the_indexed_core() -> None:
    tree = IndexedTree(core="python")
    leaf = tree.insert([1] * 4)
    with pytest.raises(TypeError, match=BACKEND):
        tree.cache.evict_node(leaf)  # type: ignore[arg-type]
