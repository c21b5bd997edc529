from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_wavepp.admission.fits import clip_output, refusal
from sglang_wavepp.admission.pools import PoolLimits, positions, smallest

pytestmark = pytest.mark.unit

LIMITS = PoolLimits(tokens=4096, page_size=64, rows=8, context=8192)
POOLS = st.builds(
    PoolLimits,
    tokens=st.integers(0, 5000),
    page_size=st.sampled_from((1, 16, 64)),
    rows=st.integers(1, 4),
    context=st.integers(1, 6000),
)


@pytest.mark.parametrize("prompt", [4033, 4089, 4096])
def test_what_fits_alone_to_the_last_page_is_served(prompt: int) -> None:
    assert refusal(prompt=prompt, max_new_tokens=1, limits=LIMITS) is None


def test_what_never_fits_is_refused_with_the_numbers() -> None:
    message = refusal(prompt=4097, max_new_tokens=1, limits=LIMITS)
    assert message is not None
    assert "4097" in message
    assert "4160" in message
    assert "4096" in message
    assert refusal(prompt=4096, max_new_tokens=2, limits=LIMITS) is not None


def test_a_pool_counts_in_whole_pages() -> None:
    odd = replace(LIMITS, tokens=4095)
    assert odd.usable_tokens == 4032
    assert refusal(prompt=4033, max_new_tokens=1, limits=odd) is not None
    assert refusal(prompt=4032, max_new_tokens=1, limits=odd) is None


def test_context_slots_and_rows_are_judged_too() -> None:
    assert "context" in str(refusal(prompt=90, max_new_tokens=11, limits=replace(LIMITS, context=100)))
    assert refusal(prompt=90, max_new_tokens=10, limits=replace(LIMITS, context=100)) is None
    hybrid = replace(LIMITS, recurrent_slots=3, slots_per_request=4)
    assert "recurrent state slots" in str(refusal(prompt=9, max_new_tokens=1, limits=hybrid))
    assert refusal(prompt=9, max_new_tokens=1, limits=replace(hybrid, recurrent_slots=4)) is None
    assert "max-running-requests" in str(refusal(prompt=9, max_new_tokens=1, limits=replace(LIMITS, rows=0)))
    assert "empty" in str(refusal(prompt=0, max_new_tokens=1, limits=LIMITS))


@given(POOLS, st.integers(1, 6000), st.integers(1, 6000))
def test_clipped_output_fits_whenever_the_prompt_does(pools: PoolLimits, prompt: int, output: int) -> None:
    clipped = clip_output(prompt=prompt, max_new_tokens=output, limits=pools)
    assert 1 <= clipped <= output
    fits = refusal(prompt=prompt, max_new_tokens=1, limits=pools) is None
    assert (refusal(prompt=prompt, max_new_tokens=clipped, limits=pools) is None) == fits
    if fits and clipped < output:
        assert refusal(prompt=prompt, max_new_tokens=clipped + 1, limits=pools) is not None, (
            "clipped too much"
        )


@given(POOLS, st.integers(1, 5000), st.integers(1, 5000))
def test_what_is_not_refused_fits_an_empty_pool(pools: PoolLimits, prompt: int, output: int) -> None:
    if refusal(prompt=prompt, max_new_tokens=output, limits=pools) is None:
        need = pools.paged(positions(prompt=prompt, max_new_tokens=output))
        assert need <= pools.tokens // pools.page_size * pools.page_size


def test_the_smallest_rank_decides_in_each_component() -> None:
    a = PoolLimits(tokens=100, page_size=4, rows=9, context=50, recurrent_slots=20, slots_per_request=4)
    b = replace(a, tokens=200, rows=3, recurrent_slots=8)
    assert smallest([a, b]) == replace(a, rows=3, recurrent_slots=8)
    assert smallest([a]) == a


@pytest.mark.parametrize("change", [{"page_size": 8}, {"recurrent_slots": None}, {"slots_per_request": 5}])
def test_ranks_that_cannot_agree_are_named(change: dict[str, int | None]) -> None:
    a = PoolLimits(tokens=100, page_size=4, rows=9, context=50, recurrent_slots=20, slots_per_request=4)
    with pytest.raises(ValueError, match="alike"):
        smallest([a, replace(a, **change)])
    with pytest.raises(ValueError, match="at least one"):
        smallest([])


def test_the_last_output_token_stores_nothing() -> None:
    assert positions(prompt=10, max_new_tokens=4) == 13
    assert positions(prompt=10, max_new_tokens=1) == positions(prompt=10, max_new_tokens=0) == 10


@pytest.mark.parametrize(
    "change", [{"page_size": 0}, {"tokens": -1}, {"recurrent_slots": -1}, {"slots_per_request": 0}]
)
def test_impossible_pools_are_an_error(change: dict[str, int]) -> None:
    good = PoolLimits(tokens=100, page_size=4, rows=9, context=50, recurrent_slots=20, slots_per_request=4)
    with pytest.raises(ValueError, match="pool sizes|needs slots"):
        replace(good, **change)
