"""One rank on SGLang's own tree, allocator and recurrent slots on the CPU, and a LOOP that allocates as SGLang does."""

from __future__ import annotations

import dataclasses
import math
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest import mock

import torch
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams, TreeLock
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components.base import ComponentType
from sglang.test.kits.unified_radix_cache import fixtures
from sglang.test.kits.unified_radix_cache.config import CacheConfig

from sglang_wavepp.admission.hint import HintProbe
from sglang_wavepp.admission.hold import Hold
from sglang_wavepp.admission.messages import InstallRecord
from sglang_wavepp.admission.pools import PoolLimits
from sglang_wavepp.cache.guarded_cache import GuardedRadixCache
from sglang_wavepp.cache.lease import LeaseAdmission
from sglang_wavepp.cache.radix_tree import IndexedRadixTree, RadixTree
from sglang_wavepp.cache.tree_core import BACKEND, COMPONENT_CLASSES, IndexedTreeCore, register_indexed_core
from sglang_wavepp.cache.two_walk import TwoWalkAdmission

SLOTS_PER_REQUEST = 4


def record(
    rid: str, tokens: array[int], *, output: int = 1, limit: int | None = None, salt: str | None = None
) -> InstallRecord:
    return InstallRecord(
        rid=rid,
        epoch=0,
        token_ids=tokens,
        max_new_tokens=output,
        cache_limit=len(tokens) - 1 if limit is None else limit,
        extra_key=None,
        cache_salt=salt,
        request={},
    )


@dataclass
class Running:
    """What a request owns of the tree and the pools."""

    record: InstallRecord
    lock: TreeLock | None
    at: int
    pages: torch.Tensor
    slots: list[torch.Tensor] = field(default_factory=list)


class RealRank:
    """A rank with `tokens` places in pages of `page`; with `slots` recurrent ones if it is a hybrid.

    Its admission is the two-walk's, or by leases when `leases` is set.
    """

    def __init__(
        self,
        *,
        page: int,
        tokens: int,
        slots: int | None = None,
        grid: int | None = None,
        rows: int = 8,
        core: str | None = None,
        leases: bool = False,
        headroom: int = 0,
    ) -> None:
        if leases:
            register_indexed_core()
            core = BACKEND
        full, mamba = ComponentType.FULL, ComponentType.MAMBA
        config = CacheConfig(
            page_size=page,
            components=(full,) if slots is None else (full, mamba),
            num_layers=2,
            full_attention_layer_ids=(0, 1) if slots is None else (1,),
            kv_size=tokens,
            max_context_len=tokens,
            head_num=1,
            head_dim=8,
            enable_mamba_extra_buffer=slots is not None and page > 1,
            mamba_cache_size=slots or 0,
        )
        with mock.patch.object(fixtures, "get_device", return_value="cpu"):
            stock, allocator, self.rows = fixtures.build_fixture(config)
        if page > 1:
            allocator = PagedTokenToKVPoolAllocator(
                tokens, page, torch.bfloat16, "cpu", allocator.get_kvcache(), False
            )
        params = dataclasses.replace(
            stock.cache_init_params,
            token_to_kv_pool_allocator=allocator,
            tree_core_backend=core,
            component_registry_override=COMPONENT_CLASSES if leases else None,
        )
        self.page, self.tokens, self.slots = page, tokens, slots
        self.cache = GuardedRadixCache(params)
        self.allocator = allocator
        self.limits = PoolLimits(
            tokens=tokens,
            page_size=page,
            rows=rows,
            context=tokens,
            recurrent_slots=slots,
            slots_per_request=0 if slots is None else SLOTS_PER_REQUEST,
        )
        self.grid = grid or page
        self.tree = (IndexedRadixTree if leases else RadixTree)(self.cache, grid=self.grid)
        self.admission = self._leases(headroom) if leases else self._two_walk()

    def _two_walk(self) -> TwoWalkAdmission | LeaseAdmission:
        return TwoWalkAdmission(tree=self.tree, limits=self.limits)

    def _leases(self, headroom: int) -> TwoWalkAdmission | LeaseAdmission:
        """As a server puts them together; a hint's block is a page."""
        assert isinstance(self.tree, IndexedRadixTree)
        core = self.tree.core
        core.use_block(self.page)
        probe = HintProbe(core.index, block=self.page, step=math.lcm(self.page, self.grid))
        lease = LeaseAdmission(
            tree=self.tree,
            limits=self.limits,
            probe=probe,
            block=self.page,
            headroom=headroom,
            wanted=core.wanted,
        )
        core.holder = lease.escrows
        return lease

    @property
    def lease(self) -> LeaseAdmission:
        """Its admission, when that is by leases."""
        assert isinstance(self.admission, LeaseAdmission)
        return self.admission

    # --- a LOOP ---------------------------------------------------------------------------------------------

    def take_tokens(self, count: int) -> torch.Tensor:
        short = count - self.allocator.available_size()
        if short > 0:
            self.cache.evict_for_alloc(EvictParams(num_tokens=short))
        pages = self.allocator.alloc(count)
        assert pages is not None, f"ran short: {count} tokens asked, {self.allocator.available_size()} free"
        return pages

    def take_slot(self) -> torch.Tensor:
        pool = self.rows.mamba_allocator
        slot = pool.alloc(1)
        if slot is None:
            self.cache.evict_for_alloc(EvictParams(num_tokens=0, mamba_num=1))
            slot = pool.alloc(1)
        assert slot is not None, "ran short: no recurrent slot"
        return slot

    def start(self, request: InstallRecord, endpoint: int) -> Running:
        """Materialise: the request's own lock first, then the lease ends."""
        with self.cache.mutex:
            key = RadixKey(request.token_ids, limit=endpoint, cache_salt=request.cache_salt)
            found = self.cache.match_prefix(MatchPrefixParams(key=key))
            assert found.device_prefix_len == endpoint == self.admission.take(request.rid).endpoint
            lock = self.cache.lock(found.last_device_node)
            self.admission.hand_over(request.rid)
            pages = self.cache.path_device_indices(found.last_device_node).clone()
            slots = [] if self.slots is None else [self.take_slot(), self.take_slot()]
            return Running(request, lock, endpoint, pages, slots)

    def span(self, run: Running, end: int) -> None:
        """Compute up to `end`; a whole-page end becomes cache content."""
        with self.cache.mutex:
            fresh = -(-end // self.page) * self.page - len(run.pages)
            self.admission.draw(run.record.rid, end)
            if fresh > 0:
                run.pages = torch.cat((run.pages, self.take_tokens(fresh)))
            run.at = end
            if end % self.page == 0 and end <= len(run.record.token_ids):
                self._checkpoint(run)

    def _checkpoint(self, run: Running) -> None:
        old_end = 0 if run.lock is None else len(self.cache.path_device_indices(run.lock.node))
        slot = None if self.slots is None else self.take_slot()
        key = RadixKey(run.record.token_ids[: run.at], cache_salt=run.record.cache_salt)
        with self._publishing(run.record.rid):
            done = self.cache.insert(
                InsertParams(
                    key=key, value=run.pages[: run.at].clone(), prev_prefix_len=old_end, mamba_value=slot
                )
            )
        if slot is not None and done.mamba_exist:
            self.rows.mamba_allocator.free(slot)
        run.pages = torch.cat((self.cache.path_device_indices(done.last_device_node), run.pages[run.at :]))
        self.cache.unlock(run.lock)
        run.lock = self.cache.lock(done.last_device_node)

    @contextmanager
    def _publishing(self, rid: str) -> Iterator[None]:
        core = self.cache.tree_core
        indexed = isinstance(core, IndexedTreeCore)
        if indexed:
            core.publishing = self.admission.chain(rid)
        yield
        if indexed:
            core.publishing = None

    def finish(self, run: Running) -> None:
        with self.cache.mutex:
            cached = 0 if run.lock is None else len(self.cache.path_device_indices(run.lock.node))
            self.cache.unlock(run.lock)
            if len(run.pages) > cached:
                self.allocator.free(run.pages[cached:])
            for slot in run.slots:
                self.rows.mamba_allocator.free(slot)
            self.admission.end(run.record.rid)

    def compute(self, tokens: array[int], ends: tuple[int, ...], rid: str = "warm") -> None:
        """Run a request with spans to these ends, alone."""
        request = record(rid, tokens)
        held = self.admission.hold(request, self.admission.hint(request).endpoint)
        assert isinstance(held, Hold), held
        run = self.start(request, held.endpoint)
        for end in ends:
            if end > run.at:
                self.span(run, end)
        self.finish(run)

    # --- looking --------------------------------------------------------------------------------------------

    def evict_all(self) -> None:
        everything = EvictParams(num_tokens=self.tokens, mamba_num=self.slots or 0)
        self.cache.evict(everything)

    def check(self) -> None:
        with self.cache.mutex:
            self.admission.check()
            places = self.allocator.available_size() + sum(self.cache.total_size()[:1])
            assert places <= self.tokens

    def check_drained(self) -> None:
        """Nothing is held, and every place and slot is free or cached."""
        self.admission.check_idle()
        self.cache.sanity_check()
        if isinstance(self.cache.tree_core, IndexedTreeCore):
            self.cache.tree_core.check_index()
            assert self.lease.hashed == 0
        assert self.allocator.available_size() + self.cache.evictable_size() == self.tokens
        assert self.cache.protected_size() == 0
        if self.slots is not None:
            free = self.rows.mamba_allocator.available_size()
            assert free + self.cache.mamba_evictable_size() == self.slots
            assert self.cache.mamba_protected_size() == 0
