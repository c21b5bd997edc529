"""SGLang's prefix cache behind one lock, because two threads of a rank use it.

The tree's own cores are safe at most call by call; match then lock, or evict then allocate, are not. Every
method that reads or changes the tree takes the lock, and whoever needs several of them in one step takes it
around them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.registry import TreeCacheBuildContext, create_unified_radix_cache
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

BACKEND: Final = "wavepp"
"""Name under which the factory is registered as a radix cache backend."""

GUARDED: Final = (
    "advance_unpublished_req",
    "checkpoint",
    "claim_kv_row",
    "dec_host_lock_ref",
    "dec_lock_ref",
    "dfs_weight_order",
    "evict",
    "evict_for_alloc",
    "evict_host",
    "free_kv_row",
    "inc_host_lock_ref",
    "inc_lock_ref",
    "init_load_back",
    "insert",
    "load_back",
    "loading_check",
    "lock",
    "match_prefix",
    "on_release",
    "path_device_indices",
    "prefix_device_indices",
    "release_aborted_request",
    "release_swa",
    "release_swa_prefix_lock",
    "reset",
    "sanity_check",
    "touch_prefix",
    "unlock",
    "writing_check",
)
"""Methods that touch the tree. They nest, so the lock is reentrant; none of them waits for another rank."""


class GuardedRadixCache(UnifiedRadixCache):
    """`UnifiedRadixCache` whose methods in `GUARDED` hold `mutex`."""

    mutex: threading.RLock

    def __init__(self, params: CacheInitParams) -> None:
        self.mutex = threading.RLock()
        super().__init__(params)


def _guarded(name: str) -> Callable[..., Any]:
    def method(self: GuardedRadixCache, /, *args: Any, **kwargs: Any) -> Any:
        with self.mutex:
            # Looked up at each call: SGLang's method may be hooked after this class was made.
            return getattr(super(GuardedRadixCache, self), name)(*args, **kwargs)

    method.__name__ = name
    method.__qualname__ = f"{GuardedRadixCache.__qualname__}.{name}"
    method.__doc__ = f"`UnifiedRadixCache.{name}` under the mutex."
    return method


for _name in GUARDED:
    setattr(GuardedRadixCache, _name, _guarded(_name))


def make_guarded_cache(ctx: TreeCacheBuildContext) -> GuardedRadixCache:
    """Build a rank's cache; for `register_radix_cache_backend`.

    Raises:
        ValueError: the model or an option needs a cache that WavePP can't admit on.
    """
    if ctx.is_hybrid_swa:
        raise ValueError("--wavepp doesn't serve models with sliding window layers yet")
    if ctx.enable_hierarchical_cache:
        raise ValueError("--wavepp has no host tier yet; leave out --enable-hierarchical-cache")
    cache = create_unified_radix_cache(ctx, cache_class=GuardedRadixCache)
    if not isinstance(cache, GuardedRadixCache):
        raise ValueError(
            f"--wavepp needs SGLang's unified radix cache, this model gets {type(cache).__name__}"
        )
    return cache
