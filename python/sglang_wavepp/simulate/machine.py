"""The pipeline that is simulated: its stages, what a wave costs on them and on their hosts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from sglang_wavepp.planning.cost import WaveCost
from sglang_wavepp.planning.grid import SpanGrid
from sglang_wavepp.planning.spans import PlannedSpan

COST = WaveCost(per_wave=8e-3, per_token=17.5e-6, per_pair=1.4e-10)
"""A stage of eight that reads its weights in 8 ms and computes 16,384 tokens in 0.3 to 0.9 s."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One pipeline.

    Attributes:
        stages: how long each stage takes for a wave, relative to `cost`; as many as the pipeline has stages.
        cost: seconds of a wave on a stage of factor 1.
        max_tokens: `M`, tokens of the largest wave, and SGLang's default chunk size.
        page: tokens of a cache page.
        max_requests: requests of a wave, at most.
        host: seconds that a stage's host spends on a wave. Half of it precedes the launch.
        stock_host: the same for stock SGLang.
        empty_tick: seconds that a stage's host spends on a tick of SGLang's loop that has no batch.
        transfer: seconds from the end of a forward to its activations being on the next stage, per token.
        latency: seconds from the end of a wave on the last stage to its result on rank 0.
        admitted_waves: waves of `M` tokens that WavePP may have admitted and not planned before nobody new is admitted;
            a request counts as one wave at most.
        admission: seconds from arrival to admission when nothing is in the way.

    Raises:
        ValueError: a time is negative or infinite, nothing is ever admitted, or a wave holds no page.
    """

    stages: tuple[float, ...]
    cost: WaveCost = COST
    max_tokens: int = 16384
    page: int = 64
    max_requests: int = 64
    host: float = 0.01
    stock_host: float = 0.01
    empty_tick: float = 0.001
    transfer: float = 0.0
    latency: float = 0.001
    admission: float = 0.003
    admitted_waves: float = 4.0

    def __post_init__(self) -> None:
        if not self.stages or not all(0 < factor < math.inf for factor in self.stages):
            raise ValueError(f"a pipeline has stages, each of a positive, finite factor, got {self.stages}")
        if self.max_tokens < self.page or self.page < 1:
            raise ValueError(f"a wave of {self.max_tokens} tokens holds no page of {self.page}")
        if self.max_requests < 1 or not self.admitted_waves > 0:
            raise ValueError("a wave holds a request, and some must be admitted before it is planned")
        host = (self.host, self.stock_host, self.empty_tick, self.transfer, self.latency, self.admission)
        device = (self.cost.per_wave, self.cost.per_token, self.cost.per_pair)
        if not all(0 <= seconds < math.inf for seconds in (*host, *device)):
            raise ValueError(f"a pipeline's times are finite and not negative, got {self}")

    @classmethod
    def even(cls, stages: int) -> Machine:
        """The default machine with equal stages."""
        return cls(stages=(1.0,) * stages)

    @property
    def grid(self) -> SpanGrid:
        """Where spans may end."""
        return SpanGrid(page=self.page)

    def seconds(self, spans: Iterable[PlannedSpan]) -> float:
        """Seconds of a wave on a stage of factor 1."""
        return self.cost.of(spans)
