"""How stock SGLang fills its batches: one chunked request at a time, a chunk size that is fixed or predicted."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from sglang_wavepp.planning.cost import WaveCost
from sglang_wavepp.planning.spans import PlannedSpan
from sglang_wavepp.simulate.workload import Job

SMOOTHING = 0.75
"""SGLANG_DYNAMIC_CHUNKING_SMOOTH_FACTOR's default."""


@dataclass(frozen=True, slots=True)
class ChunkSizer:
    """Dynamic chunking of SGLang 0.5.23: the chunk after a history takes as long as the first one would.

    It fits `a l^2 + b l + c` to prefills without history, here exactly, so it gives what the device's own cost gives.

    Attributes:
        base: the configured chunk size.
        cost: of the device.
        page: chunks are multiples of it and of 64.
    """

    base: int
    cost: WaveCost
    page: int

    def size(self, history: int) -> int:
        """Tokens of the next chunk of a request that has computed `history` tokens."""
        a, b = self.cost.per_pair / 2, self.cost.per_token
        if a <= 0:
            return self.base  # SGLang then switches dynamic chunking off
        target = a * self.base**2 + b * self.base
        slope = 2 * a * history + b
        equal = (math.sqrt(slope * slope + 4 * a * target) - slope) / (2 * a)
        smoothed = max(int(self.base + SMOOTHING * (equal - self.base)), self.base // 4)
        step = max(self.page, 64)
        return max(min(smoothed, self.base) // step * step, step)


@dataclass(slots=True)
class StockQueue:
    """SGLang's waiting queue and its one chunked request.

    Attributes:
        chunk: tokens of a batch.
        page: a chunk that isn't the last ends on a page.
        max_requests: of a batch.
        sizer: predicts the chunk size of a batch that goes on with a chunked request, None for a fixed one.
    """

    chunk: int
    page: int
    max_requests: int
    sizer: ChunkSizer | None = None
    _waiting: deque[tuple[int, int, int]] = field(default_factory=deque)
    _chunked: tuple[int, int, int] | None = None

    def add(self, number: int, job: Job) -> None:
        """A request has arrived."""
        self._waiting.append((number, job.cached, job.prompt))

    def form(self) -> tuple[PlannedSpan, ...]:
        """The next batch, empty when nothing waits."""
        left = self.chunk
        spans: list[PlannedSpan] = []
        if self._chunked is not None:
            if self.sizer is not None:
                left = self.sizer.size(self._chunked[1])
            self._waiting.appendleft(self._chunked)
            self._chunked = None
        while self._waiting and left > 0 and len(spans) < self.max_requests:
            number, start, prompt = self._waiting[0]
            length = prompt - start
            if length > left:
                length = (start + left) // self.page * self.page - start
                if length <= 0:
                    break
            self._waiting.popleft()
            spans.append(PlannedSpan(str(number), start, length))
            left -= length
            if start + length < prompt:
                self._chunked = (number, start + length, prompt)
                break
        return tuple(spans)
