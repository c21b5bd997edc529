"""Learns what a wave costs from waves whose times were measured.

A weighted least-squares fit of the three non-negative parts of `WaveCost`, by relative error, in which outliers lose
their weight. Samples are kept by size: steady traffic of one size must not push out the few small waves from which
the cost of a wave itself is known. As these may be old, all samples are taken over to the new speed when the device
has become faster or slower. Where the samples can't tell parts apart, because all waves are alike, the ratios of
`GUESS` do, with the weight of one vague observation each.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from sglang_wavepp.planning.cost import GUESS, WaveCost
from sglang_wavepp.planning.measured_wave import MeasuredWave, cost_of, parts_of
from sglang_wavepp.planning.spans import PlannedSpan
from sglang_wavepp.planning.speed_watch import SpeedWatch

FEWEST = 12
"""Samples before the first estimate."""
REFIT_AFTER = 16
"""New samples before the next fit, at least; a quarter of those that are kept if that is more."""
ROUNDS = 5
"""Times that the weights of outliers are adjusted."""
TOLERANCE = 1.5
"""Residuals that are larger than that many median residuals lose weight."""
VAGUE = 1.0
"""Standard deviation of the guessed ratios, relative."""
LEAST_NOISE = 0.01
"""Relative error that measured times have at least."""
LEAST_RATIO = 1 / 8
"""Of the guessed ratio, the least that a wave costs by itself: noise must not make it free, for waves would be tiny."""
WORST_FIT = 0.3
"""Median relative residual above which there is no estimate."""
_GUESSED = tuple(part / parts_of(GUESS)[1] for part in parts_of(GUESS))
_CHOICES = tuple(chosen for size in (3, 2, 1) for chosen in combinations(range(3), size))


@dataclass(slots=True)
class CostEstimator:
    """Collects measured waves and says what they cost.

    Attributes:
        window: samples that are kept for each size of waves (sizes differ by a factor of two).
    """

    window: int = 48
    _samples: dict[int, deque[MeasuredWave]] = field(default_factory=dict)
    _watch: SpeedWatch = field(default_factory=SpeedWatch)
    _count: int = 0
    _new: int = 0
    _due: int = FEWEST
    _fitted: WaveCost | None = None

    def add(self, spans: Iterable[PlannedSpan], seconds: float) -> None:
        """A wave of these spans took so long on the measured stage.

        Raises:
            ValueError: the time isn't a positive number, or there are no spans.
        """
        wave = MeasuredWave.of(spans, seconds, number=self._count)
        self._count += 1
        of_size = self._samples.setdefault(wave.size.bit_length(), deque(maxlen=self.window))
        change = None
        if self._fitted is not None:
            change = self._watch.note(wave, parts_of(self._fitted), of_size)
        of_size.append(wave)
        self._new += 1
        if change is not None:
            self._take_over(*change)

    def estimate(self) -> WaveCost | None:
        """The cost, None while the samples don't tell it. Fits again only after enough new samples."""
        if self._new >= self._due:
            samples = [sample for of_size in self._samples.values() for sample in of_size]
            self._new, self._due = 0, max(REFIT_AFTER, len(samples) // 4)
            self._fitted = _fit(samples) or self._fitted
        return self._fitted

    def _take_over(self, first: int, factor: float) -> None:
        """What was measured before wave `first` counts as if it had taken `factor` times as long; fit at once."""
        for of_size in self._samples.values():
            for place, wave in enumerate(of_size):
                if wave.number < first:
                    of_size[place] = wave.slowed(factor)
        self._due = self._new


def _fit(samples: Sequence[MeasuredWave]) -> WaveCost | None:
    weights = [1.0] * len(samples)
    per_token = min(1 / sample.tokens for sample in samples)
    noise = 1.0
    for _ in range(ROUNDS):
        normal = _Normal.of(samples, weights)
        normal.expect(0, _GUESSED[0] * per_token, noise / VAGUE)
        normal.expect(2, _GUESSED[2] * per_token, noise / VAGUE)
        parts = normal.best()
        if parts[1] > 0:
            per_token = parts[1]
        residuals = [abs(sample.off(parts)) for sample in samples]
        spread = sorted(residuals)[len(residuals) // 2]
        noise = max(spread * TOLERANCE, LEAST_NOISE)
        limit = max(TOLERANCE * spread, 1e-9)
        weights = [1.0 if residual <= limit else (limit / residual) ** 2 for residual in residuals]
    if spread > WORST_FIT or parts[1] <= 0:
        return None
    per_wave = max(parts[0], LEAST_RATIO * _GUESSED[0] * parts[1])
    return cost_of((per_wave, parts[1], parts[2]))


@dataclass(frozen=True, slots=True)
class _Normal:
    """Normal equations of a weighted fit to 1.

    Attributes:
        matrix: products of the features.
        right: sums of the features.
    """

    matrix: list[list[float]]
    right: list[float]

    @classmethod
    def of(cls, samples: Sequence[MeasuredWave], weights: Sequence[float]) -> _Normal:
        """The equations of these samples."""
        ww = wt = wp = tt = tp = pp = w1 = t1 = p1 = 0.0
        for weight, sample in zip(weights, samples, strict=True):
            wave, tokens, pairs = weight * sample.wave, weight * sample.tokens, weight * sample.pairs
            w1 += wave
            t1 += tokens
            p1 += pairs
            ww += wave * sample.wave
            wt += wave * sample.tokens
            wp += wave * sample.pairs
            tt += tokens * sample.tokens
            tp += tokens * sample.pairs
            pp += pairs * sample.pairs
        return cls([[ww, wt, wp], [wt, tt, tp], [wp, tp, pp]], [w1, t1, p1])

    def best(self) -> list[float]:
        """The non-negative parts of the least error: the best of all choices of parts that aren't zero."""
        best = [0.0, 0.0, 0.0]
        least = math.inf
        for chosen in _CHOICES:
            solution = _solve(
                [[self.matrix[a][b] for b in chosen] for a in chosen], [self.right[a] for a in chosen]
            )
            if solution is None or min(solution) < 0:
                continue
            parts = [0.0, 0.0, 0.0]
            for place, value in zip(chosen, solution, strict=True):
                parts[place] = value
            squares = self.squares(parts)
            if squares < least:
                best, least = parts, squares
        return best

    def squares(self, parts: Sequence[float]) -> float:
        """Weighted sum of the squares of the relative residuals, but for a constant."""
        explained = sum(part * right for part, right in zip(parts, self.right, strict=True))
        product = sum(parts[a] * self.matrix[a][b] * parts[b] for a in range(3) for b in range(3))
        return product - 2 * explained

    def expect(self, place: int, value: float, sharpness: float) -> None:
        """One more observation: a part is about `value`, and the relative error of that weighs `sharpness`."""
        self.matrix[place][place] += (sharpness / value) ** 2
        self.right[place] += sharpness * sharpness / value


def _solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Solution of a small symmetric positive system by Cholesky's method, None when it is (nearly) singular."""
    size = len(right)
    lower = [[0.0] * size for _ in range(size)]
    for i in range(size):
        for j in range(i + 1):
            rest = matrix[i][j] - sum(lower[i][k] * lower[j][k] for k in range(j))
            if i == j:
                if rest <= 1e-7 * matrix[i][i]:
                    return None
                lower[i][i] = math.sqrt(rest)
            else:
                lower[i][j] = rest / lower[j][j]
    forward: list[float] = []
    for i in range(size):
        forward.append((right[i] - sum(lower[i][k] * forward[k] for k in range(i))) / lower[i][i])
    solution = [0.0] * size
    for i in reversed(range(size)):
        known = sum(lower[k][i] * solution[k] for k in range(i + 1, size))
        solution[i] = (forward[i] - known) / lower[i][i]
    return solution
