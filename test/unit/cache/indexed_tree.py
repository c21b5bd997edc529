"""SGLang's cache on real pools on the CPU, with any tree core, and the operations that tests do on it."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.test.kits.unified_radix_cache import fixtures
from sglang.test.kits.unified_radix_cache.config import CacheConfig

from sglang_wavepp.cache.guarded_cache import GuardedRadixCache
from sglang_wavepp.cache.tree_core import BACKEND, COMPONENT_CLASSES, IndexedTreeCore, register_indexed_core

FULL, SWA, MAMBA = ComponentType.FULL, ComponentType.SWA, ComponentType.MAMBA
POLICIES = ("lru", "lfu", "fifo", "mru", "filo", "priority", "slru", "tlru")


@dataclass
class Book:
    """A naive holder: believes what it is told, and can be compared with the tree."""

    held: dict[int, int] = field(default_factory=dict)
    freed: int = 0
    emptied: int = 0

    def split(self, upper_id: int, upper_tokens: int, lower_id: int, lower_tokens: int) -> None:
        assert upper_tokens + lower_tokens == self.held[lower_id]
        self.held[lower_id] = lower_tokens
        if upper_tokens:
            self.held[upper_id] = upper_tokens

    def removed(self, node_id: int, tokens: int) -> None:
        assert self.held.pop(node_id) == tokens
        self.freed += tokens

    def cleared(self) -> None:
        self.held.clear()
        self.emptied += 1


class IndexedTree:
    """A cache with `tokens` places in pages of `page`, `slots` recurrent ones, a sliding window of `window`."""

    def __init__(
        self,
        *,
        page: int = 1,
        tokens: int = 512,
        slots: int | None = None,
        window: int | None = None,
        policy: str = "lru",
        core: str = BACKEND,
        block: int = 4,
    ) -> None:
        register_indexed_core()
        components = (FULL,) + ((SWA,) if window else ()) + ((MAMBA,) if slots else ())
        config = CacheConfig(
            page_size=page,
            components=components,
            num_layers=2,
            full_attention_layer_ids=(0, 1) if len(components) == 1 else (1,),
            kv_size=tokens,
            max_context_len=tokens,
            head_num=1,
            head_dim=8,
            sliding_window_size=window,
            enable_mamba_extra_buffer=slots is not None and page > 1,
            mamba_cache_size=slots or 0,
            eviction_policy=policy,
        )
        with mock.patch.object(fixtures, "get_device", return_value="cpu"):
            stock, allocator, self.rows = fixtures.build_fixture(config)
        if page > 1 and not window:
            allocator = PagedTokenToKVPoolAllocator(
                tokens, page, torch.bfloat16, "cpu", allocator.get_kvcache(), False
            )
        params = dataclasses.replace(
            stock.cache_init_params,
            token_to_kv_pool_allocator=allocator,
            tree_core_backend=core,
            component_registry_override=COMPONENT_CLASSES if core == BACKEND else None,
        )
        self.page, self.tokens, self.slots, self.window = page, tokens, slots, window
        self.cache = GuardedRadixCache(params)
        self.allocator = allocator
        self.core: Any = self.cache.tree_core
        self.gone: list[tuple[int, ...]] = []
        """Tokens from the root to the end of each node that left the tree, in that order."""
        self._note_removals()
        self.book = Book()
        if core == BACKEND:
            assert isinstance(self.core, IndexedTreeCore)
            self.core.use_block(block)
            self.core.holder = self.book

    def _note_removals(self) -> None:
        remove = self.core._remove_leaf_from_parent

        def noted(node: Any) -> None:
            self.gone.append(self.path(node))
            remove(node)

        self.core._remove_leaf_from_parent = noted

    # --- operations -----------------------------------------------------------------------------------------

    def key(self, tokens: Sequence[int], limit: int | None = None) -> RadixKey:
        return RadixKey(array("q", tokens), limit=limit)

    def free(self) -> int:
        if self.window:
            return int(self.allocator.full_available_size())
        return int(self.allocator.available_size())

    def room(self, count: int) -> bool:
        """Evict as SGLang does before it allocates; whether there is room then."""
        short = count - self.free()
        swa = count - self.allocator.swa_available_size() if self.window else 0
        if short > 0 or swa > 0:
            self.cache.evict_for_alloc(EvictParams(num_tokens=max(short, 0), swa_num_tokens=max(swa, 0)))
        return self.free() >= count and (not self.window or self.allocator.swa_available_size() >= count)

    def insert(self, tokens: Sequence[int], *, priority: int = 0) -> int | None:
        """Cache a whole-page prompt; returns the node it ends in, None without room."""
        tokens = tokens[: len(tokens) // self.page * self.page]
        if not tokens or not self.room(len(tokens)):
            return None
        extra: dict[str, Any] = {}
        if self.slots:
            slot = self.rows.mamba_allocator.alloc(1)
            if slot is None:
                self.cache.evict_for_alloc(EvictParams(num_tokens=0, mamba_num=1))
                slot = self.rows.mamba_allocator.alloc(1)
            if slot is None or not self.room(len(tokens)):
                if slot is not None:
                    self.rows.mamba_allocator.free(slot)
                return None
            extra["mamba_value"] = slot
        value = self.allocator.alloc(len(tokens))
        assert value is not None
        done = self.cache.insert(
            InsertParams(key=self.key(tokens), value=value, prev_prefix_len=0, priority=priority, **extra)
        )
        if self.slots and done.mamba_exist:
            self.rows.mamba_allocator.free(extra["mamba_value"])
        return int(done.last_device_node)

    def match(self, tokens: Sequence[int], limit: int | None = None) -> Any:
        return self.cache.match_prefix(MatchPrefixParams(key=self.key(tokens, limit)))

    def lock(self, tokens: Sequence[int], limit: int | None = None) -> Any:
        return self.cache.lock(self.match(tokens, limit).best_match_node)

    def evict(self, count: int, slots: int = 0, window: int = 0) -> int:
        params = EvictParams(num_tokens=count, mamba_num=slots, swa_num_tokens=window)
        return int(self.cache.evict(params).num_tokens_evicted)

    # --- looking --------------------------------------------------------------------------------------------

    def path(self, node: Any) -> tuple[int, ...]:
        parts: list[tuple[int, ...]] = []
        while node.parent is not None:
            parts.append(tuple(node.key.raw_token_ids()))
            node = node.parent
        return tuple(token for part in reversed(parts) for token in part)

    def paths(self) -> set[tuple[int, ...]]:
        return {self.path(node) for node in self.core._collect_all_nodes() if node.parent is not None}

    def candidates(self) -> list[tuple[int, int]]:
        return list(self.core.candidates())

    def check(self) -> None:
        """Everything that must hold between two operations."""
        self.core.check_index()
        self.cache.sanity_check()
        held = {node_id: self.core.held_tokens(node_id) for node_id in self.core.holds.ids()}
        assert self.book.held == held
        cached = sum(len(n.component_data[FULL].value) for n in self.core._below_root())
        assert self.free() + cached == self.tokens
        assert cached == self.cache.full_evictable_size() + self.cache.full_protected_size()
        if self.slots:
            free = self.rows.mamba_allocator.available_size()
            kept = self.cache.mamba_evictable_size() + self.cache.mamba_protected_size()
            assert free + kept == self.slots
