import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_wavepp.planning.cost import GUESS, WaveCost
from sglang_wavepp.planning.cost_estimate import FEWEST, CostEstimator
from sglang_wavepp.planning.spans import PlannedSpan

SIZES = (512, 1024, 2048, 4096, 8192, 16384)


def _wave(rng: random.Random, sizes: tuple[int, ...] = SIZES) -> tuple[PlannedSpan, ...]:
    return (PlannedSpan("a", rng.randrange(0, 131_072, 64), rng.choice(sizes)),)


def _learned(
    true: WaveCost,
    *,
    seed: int,
    samples: int = 200,
    noise: float = 0.0,
    outliers: float = 0.0,
    sizes: tuple[int, ...] = SIZES,
) -> WaveCost:
    rng, estimator = random.Random(seed), CostEstimator()
    for _ in range(samples):
        spans = _wave(rng, sizes)
        seconds = true.of(spans) * max(0.2, rng.gauss(1, noise))
        if rng.random() < outliers:
            seconds *= rng.uniform(2, 6)
        estimator.add(spans, seconds)
        estimator.estimate()
    cost = estimator.estimate()
    assert cost is not None
    return cost


@given(st.floats(64, 3000), st.floats(5e-6, 1e-4), st.floats(0, 5e-10), st.integers(0, 1000))
@settings(max_examples=30)
def test_exact_times_tell_the_cost(ratio: float, per_token: float, per_pair: float, seed: int) -> None:
    per_wave = ratio * per_token
    true = WaveCost(per_wave=per_wave, per_token=per_token, per_pair=per_pair)
    cost = _learned(true, seed=seed)
    assert cost.per_wave == pytest.approx(per_wave, rel=0.1)
    assert cost.per_token == pytest.approx(per_token, rel=0.05)
    rng = random.Random(seed + 1)
    for _ in range(20):
        spans = _wave(rng)
        assert cost.of(spans) == pytest.approx(true.of(spans), rel=0.03)


def test_a_sixth_of_times_that_are_five_times_too_long_changes_nothing() -> None:
    rng, estimator = random.Random(1), CostEstimator()
    true = WaveCost(per_wave=8e-3, per_token=17.5e-6, per_pair=1.4e-10)
    for number in range(300):
        spans = _wave(rng)
        estimator.add(spans, true.of(spans) * (5 if number % 6 == 0 else 1))
        estimator.estimate()
    cost = estimator.estimate()
    assert cost is not None
    for _ in range(20):
        spans = _wave(rng)
        assert cost.of(spans) == pytest.approx(true.of(spans), rel=0.01)


def test_a_wave_is_never_free() -> None:
    true = WaveCost(per_wave=0.0, per_token=2e-5, per_pair=1e-10)
    cost = _learned(true, seed=1, noise=0.05)
    assert cost.per_wave >= 64 * cost.per_token


@given(st.integers(0, 10_000))
@settings(max_examples=25)
def test_noise_and_outliers_leave_it_near(seed: int) -> None:
    true = WaveCost(per_wave=8e-3, per_token=17.5e-6, per_pair=1.4e-10)
    cost = _learned(true, seed=seed, noise=0.05, outliers=0.1)
    assert 4e-3 < cost.per_wave < 14e-3
    rng = random.Random(seed + 1)
    for _ in range(20):
        spans = _wave(rng)
        assert cost.of(spans) == pytest.approx(true.of(spans), rel=0.1)


@given(st.integers(0, 10_000))
@settings(max_examples=25)
def test_waves_that_are_all_alike_give_the_guessed_ratios(seed: int) -> None:
    true = WaveCost(per_wave=8e-3, per_token=17.5e-6, per_pair=1.4e-10)
    cost = _learned(true, seed=seed, noise=0.05, outliers=0.05, sizes=(16384, 16000, 15040))
    assert 0 <= cost.per_wave / cost.per_token < 3 * GUESS.per_wave / GUESS.per_token
    spans = (PlannedSpan("a", 65_536, 16384),)
    assert cost.of(spans) == pytest.approx(true.of(spans), rel=0.1)


def test_a_device_that_has_become_slower_is_learned_anew() -> None:
    rng, estimator = random.Random(1), CostEstimator()
    before, after = WaveCost(8e-3, 17.5e-6, 1.4e-10), WaveCost(16e-3, 35e-6, 2.8e-10)
    for true in (before, after):
        for _ in range(600):
            spans = _wave(rng)
            estimator.add(spans, true.of(spans))
            estimator.estimate()
    cost = estimator.estimate()
    assert cost is not None
    assert cost.per_token == pytest.approx(after.per_token, rel=0.1)


def test_steady_traffic_does_not_push_out_the_small_waves() -> None:
    rng, estimator = random.Random(1), CostEstimator()
    true = WaveCost(per_wave=40e-3, per_token=17.5e-6, per_pair=1.4e-10)
    for sizes, count in ((SIZES, 100), ((16384,), 1000)):
        for _ in range(count):
            spans = _wave(rng, sizes)
            estimator.add(spans, true.of(spans) * rng.gauss(1, 0.02))
            estimator.estimate()
    cost = estimator.estimate()
    assert cost is not None
    assert cost.per_wave == pytest.approx(true.per_wave, rel=0.2)


def test_a_few_waves_tell_nothing() -> None:
    rng, estimator = random.Random(1), CostEstimator()
    for number in range(FEWEST):
        assert estimator.estimate() is None, number
        spans = _wave(rng)
        estimator.add(spans, GUESS.of(spans))
    assert estimator.estimate() is not None


def test_times_without_any_order_tell_nothing() -> None:
    rng, estimator = random.Random(1), CostEstimator()
    for _ in range(100):
        estimator.add(_wave(rng), 10 ** rng.uniform(-4, 2))
        assert estimator.estimate() is None


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_impossible_times_are_errors(seconds: float) -> None:
    with pytest.raises(ValueError, match="no measured wave"):
        CostEstimator().add((PlannedSpan("a", 0, 64),), seconds)


def test_a_wave_without_tokens_is_an_error() -> None:
    with pytest.raises(ValueError, match="no measured wave"):
        CostEstimator().add((), 1.0)
