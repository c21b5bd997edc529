from __future__ import annotations

import itertools
from array import array

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sglang_wavepp.admission.block_hash import ChainEnd, block_hashes, namespace_seed

pytestmark = pytest.mark.unit

SEED = namespace_seed(extra_key=None, cache_salt=None)
TOKENS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40).map(lambda each: array("q", each))
BLOCKS = st.integers(1, 9)


def pieces_of(tokens: array[int], cuts: list[int]) -> list[array[int]]:
    places = [0, *sorted(cut % (len(tokens) + 1) for cut in cuts), len(tokens)]
    return [tokens[start:end] for start, end in itertools.pairwise(places)]


@given(TOKENS, BLOCKS)
def test_only_full_blocks_have_a_hash(tokens: array[int], block: int) -> None:
    assert len(block_hashes(tokens, block=block, seed=SEED)) == len(tokens) // block


@given(TOKENS, TOKENS, BLOCKS)
def test_two_prompts_share_exactly_the_hashes_of_their_common_blocks(
    first: array[int], second: array[int], block: int
) -> None:
    one, two = (block_hashes(tokens, block=block, seed=SEED) for tokens in (first, second))
    for i, (a, b) in enumerate(zip(one, two, strict=False)):
        assert (a == b) == (first[: (i + 1) * block] == second[: (i + 1) * block])
    assert len(set(one)) == len(one)


def test_a_late_block_hashes_differently_after_another_first_block() -> None:
    one = block_hashes(array("q", [1, 2, 7, 8, 7, 8]), block=2, seed=SEED)
    two = block_hashes(array("q", [1, 3, 7, 8, 7, 8]), block=2, seed=SEED)
    assert not set(one) & set(two)


def test_namespaces_never_share() -> None:
    seeds = [
        namespace_seed(extra_key=extra_key, cache_salt=cache_salt)
        for extra_key, cache_salt in [
            (None, None),
            ("", None),
            ("a", None),
            (None, "a"),
            ("a", "a"),
            ("ab", None),
            ("a", "b"),
            ("a\1b", "c"),
            ("a", "b\1c"),
        ]
    ]
    assert len(set(seeds)) == len(seeds)


def test_namespaces_are_the_trees() -> None:
    """SGLang's tree appends the adapter to the extra key and takes an empty salt for none."""
    assert namespace_seed(extra_key="k", cache_salt=None, lora="l") == namespace_seed(
        extra_key="kl", cache_salt=None
    )
    assert namespace_seed(extra_key=None, cache_salt="", lora="l") == namespace_seed(
        extra_key="l", cache_salt=None
    )


def test_a_view_is_hashed_like_the_array() -> None:
    tokens = array("q", range(50))
    whole = block_hashes(tokens, block=4, seed=SEED)
    assert block_hashes(memoryview(tokens)[:41], block=4, seed=SEED) == whole[:10]
    tokens.append(50)  # no view is left on it


@pytest.mark.parametrize("tokens", [array("i", [1, 2]), b"12345678", memoryview(b"12345678")])
def test_other_integers_are_refused(tokens: object) -> None:
    with pytest.raises(TypeError, match="64-bit"):
        block_hashes(tokens, block=1, seed=SEED)  # type: ignore[arg-type]


def test_a_block_has_a_token() -> None:
    with pytest.raises(ValueError, match="at least 1 token"):
        block_hashes(array("q", [1]), block=0, seed=SEED)


@given(TOKENS, BLOCKS, st.lists(st.integers(0, 1000), max_size=6))
def test_a_chain_goes_on_from_anywhere(tokens: array[int], block: int, cuts: list[int]) -> None:
    end = ChainEnd.start(block=block, seed=SEED)
    hashes: list[int] = []
    for piece in pieces_of(tokens, cuts):
        more, end = end.extend(piece)
        hashes += more
    assert hashes == list(block_hashes(tokens, block=block, seed=SEED))
    assert end.position == len(tokens)
    assert end.on_grid == (len(tokens) % block == 0)
    assert end == ChainEnd.start(block=block, seed=SEED).extend(tokens)[1]


@given(TOKENS, TOKENS, BLOCKS, st.integers(0, 40))
def test_a_split_is_what_two_extensions_give(
    before: array[int], tokens: array[int], block: int, cut: int
) -> None:
    start = ChainEnd.start(block=block, seed=SEED).extend(before)[1]
    hashes, _ = start.extend(tokens)
    upper, middle = start.extend(tokens[:cut])
    lower, _ = middle.extend(tokens[cut:])
    assert start.split(hashes, tokens[:cut]) == (upper, lower, middle)


def test_a_split_needs_the_hashes() -> None:
    with pytest.raises(ValueError, match="2 blocks end"):
        ChainEnd.start(block=2, seed=SEED).split([1], array("q", range(5)))


@given(TOKENS, TOKENS, BLOCKS, st.integers(0, 40))
def test_a_known_chain_gives_the_same_as_hashing(
    before: array[int], tokens: array[int], block: int, known: int
) -> None:
    start = ChainEnd.start(block=block, seed=SEED).extend(before)[1]
    chain = block_hashes(before + tokens, block=block, seed=SEED)[:known]
    assert start.extend(tokens, chain) == start.extend(tokens)


def test_a_known_chain_saves_the_hashing() -> None:
    """Seen by a hash in the middle that no hashing would give."""
    tokens = array("q", range(8))
    chain = block_hashes(tokens, block=2, seed=SEED)
    chain[0] = 99
    hashes, end = ChainEnd.start(block=2, seed=SEED).extend(tokens[:7], chain)
    assert hashes == list(chain[:3])
    assert end == ChainEnd(2, 3, chain[2], array("q", [6]).tobytes())


@given(TOKENS, TOKENS, TOKENS, BLOCKS)
def test_the_chain_of_a_prompt_that_ends_otherwise_is_not_used(
    before: array[int], tokens: array[int], other: array[int], block: int
) -> None:
    start = ChainEnd.start(block=block, seed=SEED).extend(before)[1]
    chain = block_hashes(other, block=block, seed=SEED)
    last = slice((min(len(before + tokens), len(other)) // block - 1) * block, None)
    assume((before + tokens)[last][:block] != other[last][:block])
    assert start.extend(tokens, chain) == start.extend(tokens)


def test_the_chain_of_a_prompt_that_began_otherwise_is_not_used() -> None:
    tokens = array("q", range(10))
    other = array("q", [9]) + tokens[1:]
    start = ChainEnd.start(block=2, seed=SEED).extend(tokens[:4])[1]
    assert start.extend(tokens[4:], block_hashes(other, block=2, seed=SEED)) == start.extend(tokens[4:])
