import random
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_wavepp.planning.cost import GUESS, WaveCost
from sglang_wavepp.planning.cost_estimate import FEWEST, CostEstimator
from sglang_wavepp.planning.measured_wave import MeasuredWave, parts_of
from sglang_wavepp.planning.spans import PlannedSpan
from sglang_wavepp.planning.speed_watch import SpeedWatch

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


# --- another speed ------------------------------------------------------------------------------------------

TRUE = WaveCost(per_wave=8e-3, per_token=17.5e-6, per_pair=1.4e-10)


def _scaled(cost: WaveCost, factor: float) -> WaveCost:
    return WaveCost(
        per_wave=factor * cost.per_wave, per_token=factor * cost.per_token, per_pair=factor * cost.per_pair
    )


def _play(
    estimator: CostEstimator,
    rng: random.Random,
    true: WaveCost,
    waves: int,
    *,
    sizes: tuple[int, ...] = SIZES,
    noise: float = 0.0,
    longest: int = 131_072,
) -> None:
    for _ in range(waves):
        spans = (PlannedSpan("a", rng.randrange(0, longest, 64), rng.choice(sizes)),)
        estimator.add(spans, true.of(spans) * max(0.2, rng.gauss(1, noise)))
        estimator.estimate()


@pytest.mark.parametrize("factor", [0.25, 0.5, 0.8, 1.25, 2, 4])
@pytest.mark.parametrize("seed", range(5))
def test_what_small_waves_cost_follows_the_device_although_only_large_ones_are_left(
    factor: float, seed: int
) -> None:
    rng, estimator = random.Random(seed), CostEstimator()
    _play(estimator, rng, TRUE, 300, noise=0.02)
    now = _scaled(TRUE, factor)
    _play(estimator, rng, now, 100, sizes=(8192, 16384), noise=0.02)
    cost = estimator.estimate()
    assert cost is not None
    for size in SIZES:
        spans = (PlannedSpan("a", 100_000, size),)
        assert cost.of(spans) == pytest.approx(now.of(spans), rel=0.06)


def test_a_first_look_at_long_contexts_is_not_taken_for_another_speed() -> None:
    rng, estimator = random.Random(1), CostEstimator()
    _play(estimator, rng, TRUE, 300, longest=4096)
    _play(estimator, rng, WaveCost(per_wave=8e-3, per_token=17.5e-6, per_pair=6e-10), 100, sizes=(16384,))
    cost = estimator.estimate()
    assert cost is not None
    short = (PlannedSpan("a", 0, 512),)
    assert cost.of(short) == pytest.approx(TRUE.of(short), rel=0.15)


@given(st.integers(0, 10_000))
@settings(max_examples=25)
def test_noise_and_outliers_are_not_taken_for_another_speed(seed: int) -> None:
    rng = random.Random(seed)
    estimator = CostEstimator()
    with mock.patch.object(CostEstimator, "_take_over", side_effect=AssertionError):
        for _ in range(400):
            spans = _wave(rng)
            # One in ten: eight in a row, which is another speed, come once in 100 million.
            late = rng.uniform(1.2, 6) if rng.random() < 0.1 else 1.0
            estimator.add(spans, TRUE.of(spans) * max(0.2, rng.gauss(1, 0.05)) * late)
            estimator.estimate()


def test_eight_waves_in_a_row_are_needed_and_they_count_from_the_first() -> None:
    watch, parts = SpeedWatch(), parts_of(TRUE)
    spans = (PlannedSpan("a", 1024, 4096),)

    def wave(number: int, factor: float) -> MeasuredWave:
        return MeasuredWave.of(spans, factor * TRUE.of(spans), number=number)

    known = [wave(0, 1.0)]
    assert [watch.note(wave(n, 2.0), parts, known) for n in range(1, 8)] == [None] * 7
    assert watch.note(wave(8, 1.0), parts, known) is None, "one as before: it starts anew"
    assert [watch.note(wave(n, 2.0), parts, known) for n in range(9, 16)] == [None] * 7
    assert watch.note(wave(16, 0.5), parts, known) is None, "the other way: it starts anew"
    assert [watch.note(wave(n, 0.5), parts, known) for n in range(17, 23)] == [None] * 6
    found = watch.note(wave(23, 0.5), parts, known)
    assert found is not None and found[0] == 16 and found[1] == pytest.approx(0.5)
    assert [watch.note(wave(n, 2.0), parts, []) for n in range(30, 50)] == [None] * 20, (
        "nothing to compare with"
    )
