"""SGLang's prefix cache alone, on the CPU: a tree and an allocator, without a model, a scheduler or KV memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

import torch
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from sglang_wavepp.cache.guarded_cache import GuardedRadixCache
from sglang_wavepp.cache.tree_core import BACKEND, COMPONENT_CLASSES, register_indexed_core

PAGE = 64
OURS = BACKEND
RUST, PYTHON = "rust", "python"
"""SGLang's own tree cores."""


class CpuTree:
    """A rank's attention cache.

    Args:
        core: name of the tree core.
        tokens: size of the pool.
    """

    def __init__(self, core: str, tokens: int) -> None:
        register_indexed_core()
        self.tokens = tokens
        self.allocator = PagedTokenToKVPoolAllocator(tokens, PAGE, torch.bfloat16, "cpu", None, False)
        self.cache = GuardedRadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=None,
                token_to_kv_pool_allocator=self.allocator,
                page_size=PAGE,
                tree_components=(ComponentType.FULL,),
                tree_core_backend=core,
                component_registry_override=dict(COMPONENT_CLASSES) if core == OURS else None,
            )
        )

    @property
    def core(self) -> Any:
        """The tree core."""
        return self.cache.tree_core

    def free(self) -> int:
        """Tokens that nothing uses."""
        return int(self.allocator.available_size())

    def insert(self, tokens: array[int], ends: Iterable[int]) -> None:
        """Cache a prompt as a request does that is computed in spans to these ends, multiples of the page.

        Raises:
            RuntimeError: the pool is full.
        """
        for end in ends:
            key = RadixKey(tokens, limit=end)
            found = self.cache.match_prefix(MatchPrefixParams(key=key))
            have = int(found.device_prefix_len)
            if have == end:
                continue
            fresh = self.allocator.alloc(end - have)
            if fresh is None:
                raise RuntimeError(f"no room for {end - have} tokens, {self.free()} are free")
            before = self.cache.path_device_indices(found.last_device_node)[:have]
            value = torch.cat((before, fresh))
            self.cache.insert(InsertParams(key=key, value=value, prev_prefix_len=have))

    def evict(self, tokens: int) -> None:
        """Make so many more tokens free, as an allocation does that finds too few."""
        self.cache.evict_for_alloc(EvictParams(num_tokens=tokens))
