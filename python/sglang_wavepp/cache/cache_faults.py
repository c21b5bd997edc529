"""Makes one rank's cache differ from the others', on demand of a test. See `sglang_wavepp.faults`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sglang.srt.mem_cache.base_prefix_cache import EvictParams

from sglang_wavepp import faults
from sglang_wavepp.cache.guarded_cache import GuardedRadixCache


@dataclass(slots=True)
class CacheFaults:
    """Evictions that nobody needs, on one rank.

    Attributes:
        cache: the rank's cache.
        evict_every: results between two evictions of half of the cache, None for never.
        flush_every: results between two evictions of all of it, None for never.
    """

    cache: GuardedRadixCache
    evict_every: int | None = None
    flush_every: int | None = None
    _results: int = 0

    @classmethod
    def of(cls, cache: GuardedRadixCache, rank: int) -> CacheFaults | None:
        """The faults that the environment asks for on a rank, None when there are none."""
        evict_every = faults.number_for_rank(faults.EVICT_CACHE, rank)
        flush_every = faults.number_for_rank(faults.FLUSH_CACHE, rank)
        if evict_every is None and flush_every is None:
            return None
        return cls(cache=cache, evict_every=evict_every, flush_every=flush_every)

    def after_result(self) -> None:
        """A result was applied."""
        self._results += 1
        if self.flush_every and self._results % self.flush_every == 0:
            self._drop(1)
        elif self.evict_every and self._results % self.evict_every == 0:
            self._drop(2)

    def _drop(self, share: int) -> None:
        with self.cache.mutex:
            tokens = self.cache.full_evictable_size() // share
            slots = self.cache.mamba_evictable_size() // share if self.cache.supports_mamba() else 0
            if tokens or slots:
                self.cache.evict(EvictParams(num_tokens=tokens, mamba_num=slots))


def shrink_pool(scheduler: Any, rank: int) -> None:
    """Give a rank a smaller KV pool, as if its GPU had less memory.

    Args:
        scheduler: SGLang's scheduler, whose pools are still empty.
        rank: index of the rank.
    """
    tokens = faults.number_for_rank(faults.POOL_TOKENS, rank)
    if tokens is None:
        return
    allocator = scheduler.token_to_kv_pool_allocator
    page = allocator.page_size
    size = tokens // page * page
    if not 0 < size < allocator.size:
        raise ValueError(
            f"{faults.POOL_TOKENS} must lie below the pool's {allocator.size} tokens, got {tokens}"
        )
    allocator.size = size
    if hasattr(allocator, "num_pages"):
        allocator.num_pages = size // page
    allocator.clear()
    for holder in (scheduler.invariant_checker, scheduler.pool_stats_observer):
        object.__setattr__(holder, "max_total_num_tokens", size)  # one of them is frozen
