"""SGLang's prefix cache behind one lock, because two threads of a rank use it.

The tree's own cores are safe at most call by call; match then lock, or evict then allocate, are not. Every
method that reads or changes the tree takes the lock, and whoever needs several of them in one step takes it
around them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.registry import TreeCacheBuildContext, create_unified_radix_cache
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_cache.unified_tree_core_interface import BaseEvictionResult
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from sglang_wavepp.cache.tree_core import BACKEND as CORE_BACKEND
from sglang_wavepp.cache.tree_core import COMPONENT_CLASSES, IndexedTreeCore
from sglang_wavepp.settings.of import settings_of

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

    def evict_node(self, node_id: int) -> int:
        """`evict_nodes` for one node."""
        return self.evict_nodes((node_id,))

    def evict_nodes(self, node_ids: Iterable[int]) -> int:
        """Evict these nodes and, before each, all below it on the device, held or not. Their pages are freed together.

        Args:
            node_ids: a node that has gone with an earlier one is passed over.

        Returns:
            Tokens that are free now.

        Raises:
            KeyError: a node has left the tree before.
            ValueError: a request keeps one of them; those before it are gone.
            TypeError: the cache has no `IndexedTreeCore`.
            RuntimeError: one would have to be copied to the host first; those before it are gone.
        """
        if not isinstance(self.tree_core, IndexedTreeCore):
            raise TypeError(f"evicting a chosen node needs the tree core {CORE_BACKEND!r}")
        with self.mutex:
            gone = BaseEvictionResult()
            try:
                self.tree_core.evict_below(tuple(node_ids), gone)
            finally:
                self._apply_eviction_result(gone)
            return int(gone.tracker[ComponentType.FULL])

    def checkpoint_into_tree(self, req: Any, *, up_to: int, **kwargs: Any) -> None:
        """`UnifiedRadixCache.checkpoint_into_tree`; new nodes take their hashes from the request's chain, if it has
        one (`wavepp_chain`)."""
        core = self.tree_core
        indexed = isinstance(core, IndexedTreeCore)
        if indexed:
            core.publishing = getattr(req, "wavepp_chain", None)
        try:
            super().checkpoint_into_tree(req, up_to=up_to, **kwargs)
        finally:
            if indexed:
                core.publishing = None

    def _evict(
        self,
        params: EvictParams,
        available_size_targets: Mapping[ComponentType, tuple[ComponentType, int]] | None = None,
        *,
        allocation_reclaim_satisfied: Callable[[], bool] | None = None,
    ) -> Any:
        targets = available_size_targets or {}
        target, _ = targets.get(ComponentType.FULL, (ComponentType.FULL, 0))
        # A walk that must free another component's slots, or asks a predicate, looks after each leaf.
        known = allocation_reclaim_satisfied is None and target is ComponentType.FULL
        if isinstance(self.tree_core, IndexedTreeCore):
            self.tree_core.evict_at_once = params.num_tokens if known else 0
        return super()._evict(
            params, available_size_targets, allocation_reclaim_satisfied=allocation_reclaim_satisfied
        )


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
    settings = settings_of(ctx.server_args)
    indexed = settings is not None and settings.admission == "lease"
    if indexed:
        ctx.params.tree_core_backend = CORE_BACKEND
        ctx.params.component_registry_override = {
            **(ctx.params.component_registry_override or {}),
            **COMPONENT_CLASSES,
        }
    cache = create_unified_radix_cache(ctx, cache_class=GuardedRadixCache)
    if not isinstance(cache, GuardedRadixCache):
        raise ValueError(
            f"--wavepp needs SGLang's unified radix cache, this model gets {type(cache).__name__}"
        )
    if settings is not None and indexed:
        cache.tree_core.use_block(settings.hint_block_size)
    return cache
