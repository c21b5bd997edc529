"""SGLang's pools and cache for one rank of a world, and the little of its runtime context that they read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from model.real.world import World
from sglang.srt.configs.mamba_utils import KimiLinearCacheParams, KimiLinearStateShape
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool, ReqToTokenPool
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

from sglang_wavepp.cache.guarded_cache import GuardedRadixCache
from sglang_wavepp.cache.tree_core import BACKEND, COMPONENT_CLASSES, IndexedTreeCore, register_indexed_core


@lru_cache(maxsize=8)
def _server_args(page: int, grid: int) -> ServerArgs:
    args = ServerArgs(model_path="dummy", page_size=page, attention_backend="torch_native", device="cpu")
    args._mamba_cache_chunk_size = grid
    return args


def enter_world(world: World) -> None:
    """Make this process's runtime context that of a server of this world."""
    set_global_server_args_for_scheduler(_server_args(world.page, world.step))


@dataclass(frozen=True)
class Pools:
    """One rank's memory, all of it free."""

    cache: GuardedRadixCache
    core: IndexedTreeCore
    tokens: Any
    rows: Any

    @property
    def slots(self) -> Any:
        return self.rows.mamba_allocator

    def clear(self) -> None:
        """Drop all content, as a flush does."""
        self.cache.reset()
        self.rows.clear()
        self.tokens.clear()

    def deferred(self) -> int:
        """Tokens whose free SGLang has put off to the end of a batch's result."""
        if self.tokens.free_group is None:
            return 0
        late = sum(len(part) for part in self.tokens.free_group)
        pages = getattr(self.tokens, "free_page_ids_group", ())
        return late + sum(len(part) for part in pages) * self.cache.page_size


def pools_of(world: World, rank: int) -> Pools:
    """Empty pools of one rank."""
    register_indexed_core()
    size, context = world.pools[rank] * world.page, world.pools[rank] * world.page + world.page
    if world.page > 1:
        tokens = PagedTokenToKVPoolAllocator(size, world.page, torch.bfloat16, "cpu", None, False)
    else:
        tokens = TokenToKVPoolAllocator(size, torch.bfloat16, "cpu", None, False)
    params = CacheInitParams(
        disable=False,
        req_to_token_pool=_rows(world, rank, context),
        token_to_kv_pool_allocator=tokens,
        page_size=world.page,
        tree_components=(ComponentType.FULL,)
        if world.slots is None
        else (ComponentType.FULL, ComponentType.MAMBA),
        enable_mamba_extra_buffer=world.extra_buffer,
        eviction_policy=world.policy,
        tree_core_backend=BACKEND,
        component_registry_override=COMPONENT_CLASSES,
    )
    cache = GuardedRadixCache(params)
    core = cache.tree_core
    assert isinstance(core, IndexedTreeCore)
    core.use_block(world.block)
    return Pools(cache, core, tokens, params.req_to_token_pool)


def _rows(world: World, rank: int, context: int) -> ReqToTokenPool:
    if world.slots is None:
        return ReqToTokenPool(
            size=world.rows, max_context_len=context, device="cpu", enable_memory_saver=False
        )
    shape = KimiLinearStateShape.create(
        tp_world_size=1, num_heads=1, head_dim=4, num_k_heads=1, head_k_dim=4, conv_kernel_size=4
    )
    return HybridReqToTokenPool(
        size=world.rows,
        mamba_size=world.slots[rank],
        mamba_spec_state_size=world.rows,
        max_context_len=context,
        device="cpu",
        enable_memory_saver=False,
        cache_params=KimiLinearCacheParams(shape=shape, layers=[0]),
        mamba_layer_ids=[0],
        enable_mamba_extra_buffer=world.extra_buffer,
        enable_overlap_schedule=False,
    )
