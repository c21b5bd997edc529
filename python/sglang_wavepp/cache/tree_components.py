"""Components of SGLang's prefix tree that choose what goes: attention in an order that is kept instead of sorted anew,
recurrent snapshots with those that a waiting request names at the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from sglang.srt.mem_cache.unified_cache.cache_action import FreeComponentDeviceSlot
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_cache.components.full import FullComponent
from sglang.srt.mem_cache.unified_cache.components.mamba import MambaComponent

from sglang_wavepp.cache.tree_node import IndexedNode


class IndexedFullComponent(FullComponent):
    """`FullComponent` that takes its victims from the core's order, many in a step, and skips held ones.

    A step of SGLang's walk is one leaf, so that the caller can look after each whether there is room enough. When
    the caller knows beforehand how much it needs, the first step takes as many leaves as that needs, and their
    pages are freed together: most of the time of an eviction goes into freeing page by page.
    """

    _walk: Iterator[IndexedNode] | None = None
    _kept_back: IndexedNode | None = None

    def reclaimable_value_len(self, node: IndexedNode) -> int:
        # The length of a tensor takes longer to ask for than all else that a lock does to a node.
        return node.device_tokens

    def _evict_device_start(self, request_cnt: int) -> None:
        self._evict_device_request_cnt = request_cnt
        self._walk = self.tree_core.order.walk()
        self._kept_back = None

    def _evict_device_next_node(
        self,
        tracker: dict[ComponentType, int],
        device_frees: dict[ComponentType, list[torch.Tensor]],
        host_frees: dict[ComponentType, list[torch.Tensor]],
        cache_actions: list[Any],
    ) -> int | None:
        core, full = self.tree_core, ComponentType.FULL
        before = tracker[full]
        upto = min(self._evict_device_request_cnt, before + core.evict_at_once)
        core.evict_at_once = 0
        if before >= self._evict_device_request_cnt:
            return None
        while tracker[full] < upto:
            node = self._victim()
            if node is None:
                return None
            if node.backuped or core.is_write_back:  # the cache must act on it
                self._kept_back = node
                break
            core._delete_unbacked_device_leaf(node, tracker, device_frees, host_frees, cache_actions)
        if tracker[full] > before:
            return None
        node = self._victim()
        return None if node is None else int(node.id)

    def _victim(self) -> IndexedNode | None:
        node, self._kept_back = self._kept_back, None
        if node is not None:
            return node
        for node in self._walk or ():
            if self.tree_core.takes(node):
                return node
        return None

    def _evict_device_end(self) -> None:
        self._walk = self._kept_back = None

    def apply_component_action(self, action: Any) -> None:
        if isinstance(action, FreeComponentDeviceSlot) and len(action.indices) > 1:
            action = FreeComponentDeviceSlot(
                [torch.cat(action.indices)], component_type=action.component_type
            )
        super().apply_component_action(action)


class IndexedMambaComponent(MambaComponent):
    """`MambaComponent` to which the snapshot that a waiting request would resume from is one that was used just now."""

    def _evict_device_start(self, request_cnt: int) -> None:
        self._use_wanted(request_cnt)
        super()._evict_device_start(request_cnt)

    def _use_wanted(self, slots: int) -> None:
        """Before so many snapshots go: they are none that is wanted, as long as there are others, and then those that
        are needed last."""
        core = self.tree_core
        needed_in = core.wanted.snapshots()
        if not needed_in:
            return
        order = core.lru_lists[self.component_type]
        wanted: list[tuple[int, IndexedNode]] = []
        node = order.get_lru_no_lock()
        while slots > 0 and node is not None:
            place = needed_in.get(node.chain.last) if node.chain.on_grid else None
            if place is None:
                slots -= 1
            else:
                wanted.append((place, node))
            node = order.get_prev_no_lock(node)
        wanted.sort(key=lambda each: -each[0])
        for _, node in wanted:
            order.reset_node_mru(node)
