from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_wavepp.admission.components import Component
from sglang_wavepp.admission.hint import Hint, HintProbe, candidate_of
from sglang_wavepp.admission.hint_index import HintIndex

pytestmark = pytest.mark.unit

FULL, SWA, MAMBA = Component.FULL, Component.SWA, Component.MAMBA
K = 1024
BLOCK = 64
CHAIN = random.Random(1).sample(range(2**62), 200 * K // BLOCK)


def sparse(*positions: int, complete: bool = True) -> Hint:
    return Hint(positions[0] if positions else 0, positions, sparse=True, complete=complete)


def rank(
    full: int, *, snapshots: tuple[int, ...] | None = None, windows: tuple[range, ...] | None = None
) -> HintIndex:
    """An index that holds `full` tokens, snapshots at some positions and, by tokens, some of the sliding window."""
    components = [FULL, *([MAMBA] if snapshots is not None else []), *([SWA] if windows is not None else [])]
    index = HintIndex(components)
    index.add(FULL, CHAIN[: full // BLOCK])
    if snapshots is not None:
        index.add(MAMBA, [CHAIN[position // BLOCK - 1] for position in snapshots])
    for each in windows or ():
        index.add(SWA, CHAIN[each.start // BLOCK : each.stop // BLOCK])
    return index


@pytest.mark.parametrize(
    ("full", "limit", "step", "endpoint"),
    [
        (96 * K, 200 * K, 64, 96 * K),
        (96 * K, 90 * K + 1, 64, 90 * K),
        (96 * K + 64, 200 * K, 256, 96 * K),
        (200 * K, 200 * K - 1, 64, 200 * K - 64),
        (200 * K, 10**9, 64, 200 * K),
        (0, 200 * K, 64, 0),
        (96 * K, 0, 64, 0),
        (96 * K, 255, 256, 0),
    ],
)
def test_a_dense_hint_ends_on_the_grid(full: int, limit: int, step: int, endpoint: int) -> None:
    probe = HintProbe(rank(full), block=BLOCK, step=step)
    assert probe.hint(CHAIN, limit) == Hint(endpoint)


def test_a_sparse_hint_lists_the_snapshots_below_the_attention_cache() -> None:
    index = rank(90 * K, snapshots=(64 * K, 72 * K, 90 * K, 96 * K))
    assert HintProbe(index, block=BLOCK, step=BLOCK).hint(CHAIN, 200 * K) == sparse(90 * K, 72 * K, 64 * K)
    assert HintProbe(index, block=BLOCK, step=BLOCK).hint(CHAIN, 90 * K - 1) == sparse(72 * K, 64 * K)
    assert HintProbe(index, block=BLOCK, step=16 * K).hint(CHAIN, 200 * K) == sparse(64 * K)
    assert HintProbe(rank(90 * K, snapshots=()), block=BLOCK, step=BLOCK).hint(CHAIN, 200 * K) == sparse()


def test_a_sparse_hint_says_when_it_was_cut_off() -> None:
    index = rank(90 * K, snapshots=(64 * K, 72 * K, 90 * K))
    hints = [HintProbe(index, block=BLOCK, step=BLOCK, listed=n).hint(CHAIN, 200 * K) for n in (2, 3)]
    assert hints == [sparse(90 * K, 72 * K, complete=False), sparse(90 * K, 72 * K, 64 * K)]


def test_a_sliding_window_bounds_a_hint() -> None:
    windows = (range(1 * K), range(30 * K, 32 * K), range(60 * K, 61 * K))
    index = rank(90 * K, windows=windows)
    assert HintProbe(index, block=BLOCK, step=BLOCK, window=2 * K).hint(CHAIN, 200 * K) == Hint(32 * K)
    assert HintProbe(index, block=BLOCK, step=BLOCK, window=2 * K - 1).hint(CHAIN, 200 * K) == Hint(32 * K)
    assert HintProbe(index, block=BLOCK, step=BLOCK, window=2 * K + 1).hint(CHAIN, 200 * K) == Hint(1 * K)
    assert HintProbe(index, block=BLOCK, step=3 * K, window=1 * K).hint(CHAIN, 200 * K) == Hint(0)


def test_a_snapshot_without_its_window_is_none() -> None:
    index = rank(90 * K, snapshots=(32 * K, 64 * K), windows=(range(30 * K, 32 * K),))
    assert HintProbe(index, block=BLOCK, step=BLOCK, window=2 * K).hint(CHAIN, 200 * K) == sparse(32 * K)


def test_a_probe_refuses_a_grid_or_window_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match="no multiple"):
        HintProbe(rank(0), block=64, step=96)
    with pytest.raises(ValueError, match="no multiple"):
        HintProbe(rank(0), block=64, step=0)
    with pytest.raises(ValueError, match="window None"):
        HintProbe(rank(0, windows=()), block=64, step=64)
    with pytest.raises(ValueError, match="window 128"):
        HintProbe(rank(0), block=64, step=64, window=128)


def test_a_hint_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="deepest snapshot"):
        Hint(5, (4,), sparse=True)
    with pytest.raises(ValueError, match="deepest snapshot"):
        Hint(5, sparse=True)
    with pytest.raises(ValueError, match="only a sparse hint"):
        Hint(5, (5,))
    with pytest.raises(ValueError, match="only a sparse hint"):
        Hint(5, complete=False)


def test_snapshots_settle_on_the_deepest_common_one() -> None:
    first = rank(100 * K, snapshots=(64 * K, 72 * K, 90 * K))
    second = rank(100 * K, snapshots=(64 * K, 80 * K))
    hints = [HintProbe(each, block=BLOCK, step=BLOCK).hint(CHAIN, 200 * K) for each in (first, second)]
    assert candidate_of(hints) == 64 * K


def test_one_stage_at_32k_bounds_all() -> None:
    hints = [HintProbe(rank(n * K), block=BLOCK, step=BLOCK).hint(CHAIN, 200 * K) for n in (128, 32, 96, 160)]
    assert candidate_of(hints) == 32 * K


@pytest.mark.parametrize(
    ("hints", "candidate"),
    [
        ([Hint(96)], 96),
        ([Hint(96), Hint(0)], 0),
        ([sparse(90, 72), Hint(80)], 72),
        ([sparse(90, 72), sparse()], 0),
        ([sparse(90, 88), sparse(64, 32)], 0),
        ([sparse(90, 88, complete=False), sparse(64, 32)], 64),
        ([sparse(90, 60, complete=False), sparse(70, 40)], 40),
        ([sparse(90, 88, complete=False), sparse(89, 87, complete=False)], 87),
        ([sparse(90, 88, complete=False), sparse(89, 88, complete=False)], 88),
        ([sparse(90, 60, complete=False), Hint(50)], 50),
        ([sparse(90, 60, complete=False), sparse(90, 60), Hint(50)], 0),
    ],
)
def test_candidates(hints: list[Hint], candidate: int) -> None:
    assert candidate_of(hints) == candidate


def test_a_candidate_needs_a_rank() -> None:
    with pytest.raises(ValueError, match="at least one rank"):
        candidate_of([])


RANKS = st.lists(
    st.tuples(st.integers(0, 30), st.one_of(st.none(), st.sets(st.integers(1, 30)))), min_size=1, max_size=4
)


@given(RANKS, st.integers(1, 40))
def test_no_common_position_is_deeper_than_the_candidate(
    ranks: list[tuple[int, set[int] | None]], listed: int
) -> None:
    """And with lists that are long enough it is the deepest common position itself."""
    hints, common = [], set(range(31))
    for full, snapshots in ranks:
        places = None if snapshots is None else tuple(place * BLOCK for place in snapshots)
        index = rank(full * BLOCK, snapshots=places)
        hints.append(HintProbe(index, block=BLOCK, step=BLOCK, listed=listed).hint(CHAIN, 200 * K))
        common &= {0, *(p for p in range(full + 1) if snapshots is None or p in snapshots)}
    candidate = candidate_of(hints)
    assert candidate >= max(common) * BLOCK
    if all(hint.complete for hint in hints):
        assert candidate == max(common) * BLOCK
    assert all(hint.allows(candidate) for hint in hints)
