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

from sglang_wavepp.admission.block_hash import block_hashes, namespace_seed
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
        host: bool = False,
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
        self.page, self.tokens, self.slots, self.window, self.host = page, tokens, slots, window, host
        self.cache = GuardedRadixCache(params)
        self.allocator = allocator
        self.core: Any = self.cache.tree_core
        self.gone: list[tuple[Any, ...]] = []
        """Tokens from the root to the end of each node that left the tree, in that order."""
        self._note_removals()
        if host:
            self.core.set_hicache_enabled()
            self.cache._execute_and_commit_kv_backup = self._back_up
        self.book = Book()
        self.waiting: dict[str, tuple[Any, ...]] = {}
        """Namespace and tokens of requests in admission."""
        self.resumes: dict[str, tuple[Any, ...]] = {}
        """Of those that would resume from a snapshot: namespace and tokens before it."""
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

    def key(self, tokens: Sequence[int], limit: int | None = None, salt: str | None = None) -> RadixKey:
        return RadixKey(array("q", tokens), extra_key=salt, limit=limit, cache_salt=salt)

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

    def insert(self, tokens: Sequence[int], *, priority: int = 0, salt: str | None = None) -> int | None:
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
        value = self._alloc(len(tokens))
        done = self.cache.insert(
            InsertParams(
                key=self.key(tokens, salt=salt),
                value=value,
                prev_prefix_len=0,
                priority=priority,
                **extra,
            )
        )
        if self.slots and done.mamba_exist:
            self.rows.mamba_allocator.free(extra["mamba_value"])
        return int(done.last_device_node)

    def _alloc(self, count: int) -> torch.Tensor:
        if not self.window:
            value = self.allocator.alloc(count)
        else:
            value = self.allocator.full_attn_allocator.alloc(count)
            self.allocator.set_full_to_swa_mapping(value, self.allocator.swa_attn_allocator.alloc(count))
        assert value is not None
        return value

    def match(self, tokens: Sequence[int], limit: int | None = None, salt: str | None = None) -> Any:
        return self.cache.match_prefix(MatchPrefixParams(key=self.key(tokens, limit, salt)))

    def lock(self, tokens: Sequence[int], limit: int | None = None, salt: str | None = None) -> Any:
        return self.cache.lock(self.match(tokens, limit, salt).best_match_node)

    def hold(self, node_id: int, tokens: int) -> None:
        self.core.hold(node_id, tokens)
        self.book.held[node_id] = self.book.held.get(node_id, 0) + tokens

    def unhold(self, node_id: int, tokens: int) -> None:
        self.core.unhold(node_id, tokens)
        self.book.held[node_id] -= tokens
        if not self.book.held[node_id]:
            del self.book.held[node_id]

    def evict(self, count: int, slots: int = 0, window: int = 0) -> int:
        params = EvictParams(num_tokens=count, mamba_num=slots, swa_num_tokens=window)
        return int(self.cache.evict(params).num_tokens_evicted)

    def copy_to_host(self, node: Any) -> None:
        """The state after SGLang has copied a node and those above it to the host."""
        while node.parent is not None:
            for data in node.component_data:
                if data.value is not None and data.host_value is None:
                    data.host_value = data.value.clone()
            self.core._update_duplicate_tracking(node)
            node = node.parent

    def _back_up(self, action: Any, write_back: bool = False) -> int:
        """In the place of SGLang's copy, which needs a host pool."""
        for node_id in action.node_ids:
            self.copy_to_host(self.core.node_by_id(node_id))
        return 1

    def evict_host(self, count: int) -> None:
        gone = self.core.drive_host_eviction(FULL, count)
        gone.host_frees.clear()  # there is no host pool
        self.cache._apply_eviction_result(gone)

    # --- looking --------------------------------------------------------------------------------------------

    def nodes(self) -> list[Any]:
        return [node for node in self.core._collect_all_nodes() if node.parent is not None]

    def path(self, node: Any) -> tuple[Any, ...]:
        """Namespace and tokens from the root to the end of a node."""
        parts: list[tuple[int, ...]] = []
        salt = node.key.cache_salt
        while node.parent is not None:
            parts.append(tuple(node.key.raw_token_ids()))
            node = node.parent
        return (salt or "", *(token for part in reversed(parts) for token in part))

    def contents(self) -> dict[tuple[Any, ...], tuple[tuple[bool, bool], ...]]:
        """Each node's path, and which components have a value there."""
        return {
            self.path(n): tuple((d.value is not None, d.host_value is not None) for d in n.component_data)
            for n in self.nodes()
        }

    def candidates(self) -> list[tuple[int, int]]:
        return list(self.core.candidates())

    # --- what waiting requests name -------------------------------------------------------------------------

    def wait(self, rid: str, tokens: Sequence[int], salt: str | None = None) -> None:
        seed = namespace_seed(extra_key=salt, cache_salt=salt)
        self.core.wanted.enter(rid, block_hashes(array("q", tokens), block=self.core.block, seed=seed))
        self.waiting[rid] = (salt or "", *tokens)

    def wait_no_more(self, rid: str) -> None:
        self.core.wanted.leave(rid)
        del self.waiting[rid]
        self.resumes.pop(rid, None)

    def is_wanted(self, node: Any) -> bool:
        """Whether a waiting prompt has the first block that ends in the node, and everything before it.

        A node in which none ends goes by what is before it, when it leads to something.
        """
        named = self._named_by(node)
        if len(named) < 2 or not self._has_block(node):
            below = any(child.component_data[FULL].value is not None for child in node.children.values())
            waits = any(len(prompt) > self.core.block for prompt in self.waiting.values())
            return below and (waits if len(named) < 2 else self._is_named(named))
        return self._is_named(named)

    def _has_block(self, node: Any) -> bool:
        end, block = len(self.path(node)) - 1, self.core.block
        return end // block > (end - len(node.key)) // block

    def _named_by(self, node: Any) -> tuple[Any, ...]:
        """Namespace and tokens up to the end of the first block that ends in the node, else of the last before."""
        path, block = self.path(node), self.core.block
        blocks = (len(path) - 1 - len(node.key)) // block + self._has_block(node)
        return path[: blocks * block + 1]

    def wants_snapshot(self, node: Any) -> bool:
        """Whether a waiting prompt would resume from the end of the node."""
        return self.path(node) in self.resumes.values()

    def see_snapshots(self) -> None:
        """Hint all that wait: each would resume from the deepest snapshot on its path at which a block ends."""
        block = self.core.block
        ends = {self.path(n) for n in self.nodes() if n.component_data[MAMBA].value is not None}
        for rid, prompt in self.waiting.items():
            there = [end for end in range(block, len(prompt), block) if prompt[: end + 1] in ends]
            self.resumes.pop(rid, None)
            hashes = self.core.wanted._waiting[rid].chain
            self.core.wanted.resumes(rid, hashes[there[-1] // block - 1] if there else None)
            if there:
                self.resumes[rid] = prompt[: there[-1] + 1]

    def _is_named(self, path: tuple[Any, ...]) -> bool:
        return any(prompt[: len(path)] == path for prompt in self.waiting.values())

    def snapshots(self) -> tuple[set[int], set[int]]:
        """Nodes with a snapshot that nobody keeps: wanted ones and others."""
        free = [n for n in self.nodes() if n.component_data[MAMBA].value is not None and not n.is_locked]
        wanted = {n.id for n in free if self.wants_snapshot(n)}
        return wanted, {n.id for n in free} - wanted

    # --- the order, from the tree alone ---------------------------------------------------------------------

    def _covered(self, node: Any, held: dict[int, int]) -> bool:
        return held.get(node.id, 0) == len(node.component_data[FULL].value) and self._below_covered(
            node, held
        )

    def _below_covered(self, node: Any, held: dict[int, int]) -> bool:
        children = [c for c in node.children.values() if c.component_data[FULL].value is not None]
        return all(self._covered(child, held) for child in children)

    def _place(self, node: Any) -> tuple[Any, Any]:
        return self.core.eviction_strategy.get_priority(node), node.last_access_time

    def sorted_candidates(self, held: dict[int, int]) -> list[tuple[int, int]]:
        """What `candidates` must give, found by looking at every node: wanted ones at the end."""
        open_nodes = self._open(held)
        open_nodes.sort(key=self._place_in_all)
        return [self._unheld(node, held) for node in open_nodes]

    def _place_in_all(self, node: Any) -> tuple[bool, int, Any]:
        """What nobody wants comes first, then what is needed last."""
        wanted = self.is_wanted(node)
        return wanted, -self.needed_in(node) if wanted else 0, self._place(node)

    def needed_in(self, node: Any) -> int:
        """Waiting requests, of the first 16, before one that names the node; their number when none does.

        0 for a node before the first block, which is above all that is named.
        """
        named = self._named_by(node)
        if len(named) < 2:
            return 0
        next_up = list(self.waiting.values())[:16]
        return next((i for i, each in enumerate(next_up) if each[: len(named)] == named), len(next_up))

    def _unheld(self, node: Any, held: dict[int, int]) -> tuple[int, int]:
        return node.id, len(node.component_data[FULL].value) - held.get(node.id, 0)

    def _open(self, held: dict[int, int]) -> list[Any]:
        return [
            node
            for node in self.nodes()
            if node.component_data[FULL].value is not None
            and not any(data.lock_ref for data in node.component_data)
            and self._below_covered(node, held)
            and held.get(node.id, 0) < len(node.component_data[FULL].value)
        ]

    def check_order(self) -> None:
        """The candidates as they are, and as they follow when all are held one after the other."""
        assert self.candidates() == self.sorted_candidates(self.book.held)
        held = dict(self.book.held)
        taken: list[tuple[int, int]] = []
        for node_id, tokens in self.core.candidates():
            first = min(self._open(held), key=self._place_in_all)
            expected = self._unheld(first, held)
            assert (node_id, tokens) == expected, f"{node_id} came instead of {expected[0]}"
            self.core.hold(node_id, tokens)
            held[node_id] = held.get(node_id, 0) + tokens
            taken.append((node_id, tokens))
        assert not self.sorted_candidates(held)
        for node_id, tokens in reversed(taken):
            self.core.unhold(node_id, tokens)

    def check(self) -> None:
        """Everything that must hold between two operations."""
        self.core.check_index()
        self.cache.sanity_check()
        held = {node_id: self.core.held_tokens(node_id) for node_id in self.core.holds.ids()}
        assert self.book.held == held
        values = [n.component_data[FULL].value for n in self.nodes()]
        cached = sum(len(value) for value in values if value is not None)
        assert self.free() + cached == self.tokens
        assert cached == self.cache.full_evictable_size() + self.cache.full_protected_size()
        if self.slots:
            free = self.rows.mamba_allocator.available_size()
            kept = self.cache.mamba_evictable_size() + self.cache.mamba_protected_size()
            assert free + kept == self.slots
