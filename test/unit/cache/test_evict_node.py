from __future__ import annotations

import pytest
from unit.cache.indexed_tree import IndexedTree

pytestmark = pytest.mark.unit


def test_a_hold_takes_a_leaf_from_sglang_and_its_parent_is_next() -> None:
    tree = IndexedTree(page=4)
    tree.insert([1] * 8 + [2] * 8)
    tree.insert([1] * 8 + [3] * 4)
    upper = tree.match([1] * 8).best_match_node
    first, second = (node_id for node_id, _ in tree.candidates())
    assert [tokens for _, tokens in tree.candidates()] == [8, 4]
    tree.core.hold(first, 8)
    tree.book.held[first] = 8
    assert tree.candidates() == [(second, 4)]
    tree.core.hold(second, 4)
    tree.book.held[second] = 4
    assert tree.candidates() == [(upper, 8)]
    assert tree.evict(1000) == 0
    tree.check()
    assert tree.cache.evict_node(upper) == 20
    assert tree.book.held == {} and tree.book.freed == 12
    tree.check()
