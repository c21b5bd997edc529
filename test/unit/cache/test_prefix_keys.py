"""Tokens compared before the mutex is taken: the walk finds what it always found, and looks at no token twice."""

from __future__ import annotations

import random
from array import array
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.mem_cache.radix_cache import RadixKey
from unit.cache.indexed_tree import IndexedTree
from unit.cache.real_rank import record

from sglang_wavepp.cache import prefix_keys
from sglang_wavepp.cache.prefix_keys import STRETCH, NodeKey, PromptKey
from sglang_wavepp.cache.radix_tree import IndexedRadixTree

pytestmark = pytest.mark.unit


def key(tokens: list[int], **options: Any) -> RadixKey:
    return RadixKey(array("q", tokens), **options)


def prompt_of(tokens: list[int], limit: int | None = None) -> PromptKey:
    return PromptKey(
        array("q", tokens), extra_key=None, cache_salt=None, limit=len(tokens) if limit is None else limit
    )


# --- keys -------------------------------------------------------------------------------------------------

runs = st.lists(st.integers(0, 1), max_size=12)


@settings(deadline=None, derandomize=True, max_examples=400)
@given(mine=runs, theirs=runs, offset=st.integers(0, 12), limits=st.tuples(*[st.integers(0, 12)] * 3))
def test_a_match_is_as_long_as_sglangs(
    mine: list[int], theirs: list[int], offset: int, limits: tuple[int, int, int]
) -> None:
    plain = key(mine, limit=limits[0])
    prompt = prompt_of(theirs, limits[1])
    node = NodeKey.of(plain)
    if offset > len(prompt):
        with pytest.raises(IndexError):
            node.match_at(prompt, offset)
        return
    with mock.patch.object(prefix_keys, "STRETCH", 3):
        for page in (1, 2, 4):
            expected = plain.match_at(key(theirs, limit=limits[1]), offset, page)
            assert node.match_at(key(theirs, limit=limits[1]), offset, page) == expected
            assert node.match_at(prompt, offset, page) == expected
        whole = plain.match_at(prompt, offset) == len(plain)
        assert prompt.compare(node, offset) == whole
        shorter = prompt.upto(min(limits[1], limits[2]))
        if offset <= len(shorter):
            other = prompt_of(theirs, limits[1])
            other.upto(shorter.limit).compare(node, offset)  # a shorter look first
            for page in (1, 2, 4):
                expected = plain.match_at(key(theirs, limit=limits[1]), offset, page)
                assert node.match_at(other, offset, page) == expected
        if offset <= len(shorter):
            for page in (1, 2, 4):
                expected = plain.match_at(key(theirs, limit=shorter.limit), offset, page)
                assert node.match_at(shorter, offset, page) == expected
                with mock.patch.object(NodeKey, "_is_all_at", side_effect=AssertionError):
                    assert node.match_at(shorter, offset, page) == expected


@pytest.mark.parametrize("differs", [None, 0, STRETCH - 1, STRETCH, 2 * STRETCH, 2 * STRETCH + 4])
def test_long_keys_are_compared_to_their_last_token(differs: int | None) -> None:
    tokens = list(range(2 * STRETCH + 5))
    other = tokens.copy()
    if differs is not None:
        other[differs] = -1
    expected = len(tokens) if differs is None else differs
    assert NodeKey.of(key(tokens)).match_at(key([9, *other]), 1) == expected


def test_pairs_of_tokens_are_left_to_sglang() -> None:
    node, other = NodeKey.of(key([1, 2, 3], is_bigram=True)), key([1, 2, 4], is_bigram=True)
    assert (len(node), node.match_at(other, 0)) == (2, 1)
    prompt = prompt_of([1, 2, 3, 4])
    prompt.child_key_at(0, 2)
    pairs, _ = prompt.maybe_to_bigram_view(True)
    assert list(pairs.page_aligned(2)) == [(1, 2), (2, 3)]
    assert pairs.child_key_at(0, 2) == ((1, 2), (2, 3))


def test_namespaces_are_kept_apart() -> None:
    node = NodeKey.of(key([1, 2], extra_key="a"))
    assert node.match_at(key([1, 2], extra_key="a"), 0) == 2
    with pytest.raises(ValueError, match="matching extra_key"):
        node.match_at(key([1, 2], extra_key="b"), 0)


def test_a_prompt_is_cut_to_pages_without_a_copy() -> None:
    prompt = prompt_of(list(range(10)), limit=9)
    cut = prompt.page_aligned(4)
    assert (list(cut), cut.token_ids is prompt.token_ids) == (list(range(8)), True)


# --- on a tree --------------------------------------------------------------------------------------------


class Looks:
    """A tree of pages of four tokens, and how many keys are compared while somebody has the mutex."""

    def __init__(self, **options: Any) -> None:
        self._requests: dict[tuple[int, ...], Any] = {}
        self.tree = IndexedTree(page=4, **options)
        self.walks = IndexedRadixTree(self.tree.cache, grid=4)

    def compared(self, tokens: list[int], limit: int) -> tuple[int, int]:
        """Endpoint, and keys compared to find it."""
        with mock.patch.object(NodeKey, "_is_all_at", autospec=True, side_effect=NodeKey._is_all_at) as look:
            found = self.walks.match(self.request(tokens), limit)
        return found.endpoint, look.call_count

    def request(self, tokens: list[int]) -> Any:
        return self._requests.setdefault(tuple(tokens), record("a", array("q", tokens)))


def test_what_was_compared_beforehand_is_not_compared_again() -> None:
    looks, tokens = Looks(), list(range(24))
    for end in (8, 16, 24):
        looks.tree.insert(tokens[:end])
    mine = [*tokens[:20], 0, 0, 0, 0, 0]
    assert looks.compared(mine, 24) == (20, 3)
    looks.walks.look_ahead(looks.request(mine), 24)
    assert looks.compared(mine, 24) == (20, 0)
    assert looks.compared(mine, 20) == (20, 0)
    assert looks.compared(mine, 12) == (12, 0), "a node is split for it"
    assert looks.compared(mine, 24) == (20, 2), "of the two that came out of it nothing is known"
    looks.walks.look_ahead(looks.request(mine), 24)
    assert looks.compared(mine, 24) == (20, 0)


def test_a_shorter_look_hides_nothing_from_a_longer_walk() -> None:
    looks, tokens = Looks(), list(range(24))
    for end in (8, 24):
        looks.tree.insert(tokens[:end])
    mine = looks.request(tokens)
    looks.walks.look_ahead(mine, 24)
    looks.walks.look_ahead(mine, 12)
    assert looks.compared(tokens, 24) == (24, 0), "what the longer look found is kept"
    again = looks.request([*tokens, 0])
    looks.walks._ahead = PromptKey(again.token_ids, extra_key=None, cache_salt=None, limit=25)
    looks.walks.look_ahead(again, 12)
    assert looks.compared([*tokens, 0], 25) == (24, 1), "beyond the shorter look nothing is known"
    looks.walks.look_ahead(again, 25)
    assert looks.compared([*tokens, 0], 25) == (24, 0)


def test_what_was_found_of_one_prompt_is_not_believed_of_another() -> None:
    looks = Looks()
    looks.tree.insert([1] * 8)
    looks.walks.look_ahead(looks.request([1] * 9), 8)
    assert looks.compared([1] * 4 + [2] * 5, 8) == (4, 1)
    again = record("a", array("q", [1] * 9), salt="another tenant")
    assert looks.walks.match(again, 8).endpoint == 0
    looks.walks.look_ahead(looks.request([1] * 10), 4)
    assert looks.compared([1] * 10, 8) == (8, 2), "beyond its limit nothing is known"


def test_whatever_changes_after_the_look_the_walk_finds_what_is_there() -> None:
    rng = random.Random(3)
    looks, plain = Looks(tokens=120), Looks(tokens=120)
    prompts = [[rng.randrange(2) for _ in range(rng.randrange(1, 8) * 4)] for _ in range(12)]
    for _ in range(1500):
        tokens, limit = rng.choice(prompts), rng.randrange(40)
        if rng.random() < 0.7:
            looks.walks.look_ahead(looks.request(tokens), limit)
        for _ in range(rng.randrange(3)):
            act, other, count = rng.randrange(3), rng.choice(prompts), 4 * rng.randrange(1, 6)
            for tree in (looks.tree, plain.tree):
                if act == 0:
                    tree.insert(other)
                elif act == 1:
                    tree.evict(count)
                else:
                    tree.match(other[:count])
        limit = rng.randrange(limit + 1)
        found = looks.walks.match(looks.request(tokens), limit).endpoint
        assert found == plain.walks.match(plain.request(tokens), limit).endpoint
    assert looks.tree.contents() == plain.tree.contents()
    looks.tree.core.check_index()
