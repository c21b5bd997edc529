from __future__ import annotations

import math
import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_wavepp.admission.block_counts import BlockCountError
from sglang_wavepp.admission.components import Component
from sglang_wavepp.admission.hint_index import SCAN_STRETCH, HintIndex

pytestmark = pytest.mark.unit

FULL, SWA, MAMBA = Component.FULL, Component.SWA, Component.MAMBA
BLOCKS_OF_200K = 3125


def index_of(component: Component, hashes: list[int]) -> HintIndex:
    index = HintIndex(Component)
    index.add(component, hashes)
    return index


def chain(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.getrandbits(64) for _ in range(length)]


def test_components_are_counted_apart() -> None:
    index = HintIndex([FULL, MAMBA])
    index.add(FULL, [1, 2])
    index.add(MAMBA, [2])
    assert index.components == (FULL, MAMBA)
    assert index.contents() == {FULL: {1: 1, 2: 1}, MAMBA: {2: 1}}
    index.remove(FULL, [2])
    assert index.contents() == {FULL: {1: 1}, MAMBA: {2: 1}}
    index.clear()
    assert index.contents() == {FULL: {}, MAMBA: {}}


def test_a_block_stays_until_it_is_removed_as_often_as_it_was_added() -> None:
    index = index_of(FULL, [7])
    index.add(FULL, [7, 8])
    index.remove(FULL, [7])
    assert index.contents()[FULL] == {7: 1, 8: 1}
    index.remove(FULL, [7])
    assert index.contents()[FULL] == {8: 1}
    for _ in range(3):
        index.add(FULL, [8])
    index.remove(FULL, [8, 8])
    assert index.contents()[FULL] == {8: 2}


def test_clearing_forgets_how_often() -> None:
    index = index_of(FULL, [7, 7])
    index.clear()
    index.add(FULL, [7])
    assert index.contents()[FULL] == {7: 1}


def test_a_block_may_be_named_twice_in_one_call() -> None:
    index = index_of(FULL, [7, 7, 8])
    assert index.contents()[FULL] == {7: 2, 8: 1}
    index.remove(FULL, [7, 7])
    assert index.contents()[FULL] == {8: 1}


@pytest.mark.parametrize("wrong", [[5], [1, 5], [1, 1], [2, 2, 2]])
def test_removing_what_is_not_there_names_it_and_changes_nothing(wrong: list[int]) -> None:
    index = index_of(FULL, [1, 2, 2])
    before = index.contents()
    with pytest.raises(BlockCountError, match=f"{wrong[-1]:#018x} of full"):
        index.remove(FULL, wrong)
    assert index.contents() == before


@pytest.mark.parametrize("there", [0, 1, 2, 3, 63, 64, 65, 2047, 2048, 3124, 3125])
def test_the_dense_end_is_found_in_logarithmically_many_probes(there: int) -> None:
    hashes = chain(BLOCKS_OF_200K)
    index = index_of(FULL, hashes[:there])
    assert index.dense_end(FULL, hashes, BLOCKS_OF_200K) == there
    assert index.probes <= 2 * math.log2(BLOCKS_OF_200K) + 1


def test_the_dense_end_counts_the_probes_of_a_small_case() -> None:
    hashes = chain(10)
    index = index_of(FULL, hashes[:5])
    assert index.dense_end(FULL, hashes, 10) == 5
    assert index.probes == 6  # depths 1, 2, 4, 8, then 6 and 5


@given(st.integers(0, 40), st.integers(0, 40), st.integers(-1, 45))
def test_the_dense_end_under_a_limit(length: int, there: int, limit: int) -> None:
    hashes = chain(length)
    index = index_of(FULL, hashes[:there])
    assert index.dense_end(FULL, hashes, limit) == max(0, min(length, there, limit))


SPARSE = st.sets(st.integers(0, 3 * SCAN_STRETCH), max_size=12)


@given(SPARSE, st.integers(0, 3 * SCAN_STRETCH + 9), st.integers(1, 5), st.sampled_from([1, 2, 3, 64]))
def test_snapshots_are_the_deepest_on_the_grid(places: set[int], limit: int, most: int, grid: int) -> None:
    hashes = chain(3 * SCAN_STRETCH)
    index = index_of(MAMBA, [hashes[place - 1] for place in places if place])
    fitting = [place for place in sorted(places, reverse=True) if 0 < place <= limit and place % grid == 0]
    assert index.snapshots(MAMBA, hashes, limit, most, grid=grid) == tuple(fitting[:most])


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, SCAN_STRETCH)), max_size=8),
    st.integers(0, 4 * SCAN_STRETCH),
    st.integers(1, 2 * SCAN_STRETCH),
    st.sampled_from([1, 2, 3, 64]),
)
def test_a_window_is_whole_up_to_its_end_or_the_root(
    runs: list[tuple[bool, int]], limit: int, window: int, grid: int
) -> None:
    flags = [there for there, length in runs for _ in range(length)]
    hashes = chain(len(flags))
    index = index_of(SWA, [each for each, there in zip(hashes, flags, strict=True) if there])
    whole = [
        end for end in range(0, min(limit, len(flags)) + 1, grid) if all(flags[max(0, end - window) : end])
    ]
    assert index.window_end(SWA, hashes, limit, window, grid=grid) == max(whole)


def test_a_window_behind_gaps() -> None:
    hashes = chain(12)
    index = index_of(SWA, [hashes[i] for i in (0, 1, 2, 4, 5, 6, 8, 9, 11)])
    assert index.window_end(SWA, hashes, 12, 3) == 7
    assert index.window_end(SWA, hashes, 12, 3, grid=2) == 2
    assert index.window_end(SWA, hashes, 6, 3) == 3
    assert index.window_end(SWA, hashes, 12, 1) == 12


@given(st.lists(st.booleans(), min_size=1, max_size=120), st.integers(1, 20))
def test_a_window_scan_looks_at_no_block_twice(flags: list[bool], window: int) -> None:
    hashes = chain(len(flags))
    index = index_of(SWA, [each for each, there in zip(hashes, flags, strict=True) if there])
    index.window_end(SWA, hashes, len(hashes), window)
    assert index.probes <= len(hashes)


def test_a_window_scan_leaps_over_what_a_gap_rules_out() -> None:
    index = HintIndex([SWA])
    assert index.window_end(SWA, chain(3000), 3000, 100) == 0
    assert index.probes == 30


def test_a_scan_lets_go_of_the_mutex_between_stretches() -> None:
    hashes = chain(4 * SCAN_STRETCH)
    index = HintIndex([MAMBA])
    shard = index._shards[MAMBA]
    taken: list[int] = []

    class Counting:
        def __enter__(self) -> None:
            taken.append(shard.probes)

        def __exit__(self, *_: object) -> None:
            taken.append(shard.probes)

    shard._mutex = Counting()  # type: ignore[assignment]
    index.snapshots(MAMBA, hashes, len(hashes), 1)
    assert [after - before for before, after in zip(taken[::2], taken[1::2], strict=True)] == [
        SCAN_STRETCH
    ] * 4


def test_look_ups_beside_a_writer_see_whole_nodes() -> None:
    hashes = chain(512)
    index = HintIndex([FULL])
    stop = threading.Event()
    seen: set[int] = set()

    def look() -> None:
        while not stop.is_set():
            seen.add(index.dense_end(FULL, hashes, len(hashes)))

    reader = threading.Thread(target=look)
    reader.start()
    for _ in range(300):
        index.add(FULL, hashes)
        index.remove(FULL, hashes)
    stop.set()
    reader.join()
    assert seen <= {0, 512}
    assert index.contents() == {FULL: {}}
