"""SGLang's prefix tree, which also feeds the hint index, keeps the order of victims and honours soft holds.

Everything rests on SGLang's own Python tree core: what is matched, inserted, locked and evicted, and in which order,
stays SGLang's. Content that moves between device and host changes nothing for the index.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.evict_policy import (
    FIFOStrategy,
    FILOStrategy,
    LFUStrategy,
    LRUStrategy,
    PriorityStrategy,
    SLRUStrategy,
)
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_cache.components.base import TreeComponent
from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeCore
from sglang.srt.mem_cache.unified_cache.unified_tree_core_interface import BaseEvictionResult
from sglang.srt.mem_cache.utils import get_eviction_strategy

from sglang_wavepp.admission.block_hash import ChainEnd, namespace_seed
from sglang_wavepp.admission.components import Component
from sglang_wavepp.admission.hint_index import HintIndex
from sglang_wavepp.cache.prefix_keys import PromptKey
from sglang_wavepp.cache.soft_holds import HoldListener, SoftHolds
from sglang_wavepp.cache.tree_components import IndexedFullComponent, IndexedMambaComponent
from sglang_wavepp.cache.tree_node import IndexedNode
from sglang_wavepp.cache.victim_order import VictimOrder, order_key
from sglang_wavepp.cache.wanted_blocks import WantedBlocks, needed_in

BACKEND: Final = "wavepp"
"""Name under which the core is registered as a tree core backend."""

DEFAULT_BLOCK: Final = 64
"""Tokens of a hint block until `use_block` says otherwise."""

COMPONENT_CLASSES: Final[dict[ComponentType, type[TreeComponent]]] = {
    ComponentType.FULL: IndexedFullComponent,
    ComponentType.MAMBA: IndexedMambaComponent,
}
"""For `CacheInitParams.component_registry_override`. The sliding window is SGLang's."""

_INDEXED: Final = {
    ComponentType.FULL: Component.FULL,
    ComponentType.SWA: Component.SWA,
    ComponentType.MAMBA: Component.MAMBA,
}
_RISING: Final = (LRUStrategy, LFUStrategy, FIFOStrategy, FILOStrategy, PriorityStrategy, SLRUStrategy)
"""Strategies under which using a node never makes it go earlier."""


class TreeIndexError(RuntimeError):
    """The tree and what is kept beside it disagree."""


class IndexedTreeCore(UnifiedTreeCore):
    """`UnifiedTreeCore` with a hint index, an order of victims and soft holds. All under the cache's mutex.

    Attributes:
        index: what is cached, by block hash; read without the mutex.
        block: tokens of a hint block.
        wanted: blocks that requests in admission name; what they are of is chosen last.
        publishing: chain of hashes of the request whose tokens are being inserted, None when unknown. Nodes take
            their hashes from it.
        evict_at_once: tokens that the next step of a FULL eviction may free without asking in between.

    Raises:
        ValueError: an option of the cache that neither index nor order follows.
    """

    def __init__(self, params: CacheInitParams, components: dict[ComponentType, TreeComponent]) -> None:
        if params.enable_session_radix_cache:
            raise ValueError("the indexed tree does not order victims by session")
        if params.is_eagle and ComponentType.MAMBA not in components:
            raise ValueError("the indexed tree does not hash pairs of tokens (EAGLE)")
        self.block = DEFAULT_BLOCK
        self.index = HintIndex(_INDEXED[each] for each in components if each in _INDEXED)
        self.wanted = WantedBlocks()
        self.publishing: Sequence[int] | None = None
        self.evict_at_once = 0
        self.holds = SoftHolds(self._offer_if_open)
        strategy = get_eviction_strategy(params.eviction_policy.lower(), params.eviction_policy_config)
        self.order = VictimOrder(
            order_key(strategy), lambda node_id: self._node_arena.get(node_id), self._is_open
        )
        self._sinks = not isinstance(strategy, _RISING)
        self._indexed = tuple(each for each in components if each in _INDEXED)
        self._splits = False
        super().__init__(params, components)

    # --- index ----------------------------------------------------------------------------------------------

    def use_block(self, block: int) -> None:
        """Hash blocks of this many tokens from now on, and what the tree holds anew.

        Raises:
            ValueError: `block` isn't positive.
        """
        if block < 1:
            raise ValueError(f"a block has at least 1 token, not {block}")
        self.block = block
        self.index.clear()
        for node in self._below_root():
            node.chain = None
            node.counted = ()
            for component in self._indexed:
                self._count(node, component)

    def check_index(self) -> None:
        """Compare index, order and holds with the tree, computed anew.

        Raises:
            TreeIndexError: says what differs.
        """
        counts: dict[Component, dict[int, int]] = {_INDEXED[each]: {} for each in self._indexed}
        for node in self._below_root():
            hashes, chain = self._chain_before(node).extend(node.key.raw_token_ids())
            if (hashes, chain) != (node.blocks, node.chain):
                raise TreeIndexError(
                    f"node {node.id} has {len(node.blocks)} hashes that are not those of its tokens"
                )
            for component in self._indexed:
                if self._present(node, component):
                    count = counts[_INDEXED[component]]
                    for each in self._keys(node, component):
                        count[each] = count.get(each, 0) + 1
            self._check_counters(node)
        found = self.index.contents()
        for component, count in counts.items():
            if found[component] != count:
                missing = len(count.keys() - found[component].keys())
                extra = len(found[component].keys() - count.keys())
                raise TreeIndexError(
                    f"index of {component.value}: {missing} blocks missing, {extra} too many, "
                    f"{len(count)} in the tree"
                )

    def _check_counters(self, node: IndexedNode) -> None:
        children = [child for child in node.children.values() if child.on_device]
        held = self.holds.of(node)
        covered = 0 < held == node.device_tokens and all(child.covered for child in children)
        value = node.component_data[ComponentType.FULL].value
        facts = {
            "on_device": value is not None,
            "device_tokens": 0 if value is None else len(value),
            "device_children": len(children),
            "covered_children": sum(child.covered for child in children),
            "covered": covered,
        }
        if self._is_device_leaf(node) != super()._is_device_leaf(node):
            raise TreeIndexError(f"node {node.id}: the counters don't say whether it is a leaf on the device")
        for name, fact in facts.items():
            if getattr(node, name) != fact:
                raise TreeIndexError(f"node {node.id}: {name} is {getattr(node, name)}, the tree says {fact}")
        if held > node.device_tokens:
            raise TreeIndexError(f"node {node.id}: {held} of its {node.device_tokens} tokens are held")

    def _heard(self, node_id: int, component: ComponentType) -> None:
        """A value of a node came or went."""
        node = self._node_arena.get(node_id)
        if self._splits or node is None or node.parent is None:
            return
        if component is ComponentType.FULL:
            self._set_on_device(node, node.component_data[component].value is not None)
        if component in self._indexed:
            self._count(node, component)

    def _count(self, node: IndexedNode, component: ComponentType) -> None:
        present = self._present(node, component)
        if present == (component in node.counted):
            return
        if node.chain is None:
            node.blocks, node.chain = self._chain_before(node).extend(
                node.key.raw_token_ids(), self.publishing or ()
            )
        change = self.index.add if present else self.index.remove
        change(_INDEXED[component], self._keys(node, component))
        rest = tuple(each for each in node.counted if each is not component)
        node.counted = (*rest, component) if present else rest

    def _chain_before(self, node: IndexedNode) -> ChainEnd:
        chain: ChainEnd | None = node.parent.chain
        if chain is None:
            seed = namespace_seed(extra_key=node.key.extra_key, cache_salt=node.key.cache_salt)
            chain = ChainEnd.start(block=self.block, seed=seed)
        return chain

    @staticmethod
    def _present(node: IndexedNode, component: ComponentType) -> bool:
        data = node.component_data[component]
        return data.value is not None or data.host_value is not None

    @staticmethod
    def _keys(node: IndexedNode, component: ComponentType) -> Sequence[int]:
        if component is not ComponentType.MAMBA:
            return node.blocks
        # A snapshot stands for everything before it, so it has a name only where a block ends.
        chain = node.chain
        return (chain.last,) if chain is not None and chain.on_grid else ()

    # --- comparing ------------------------------------------------------------------------------------------

    def compare(self, prompt: PromptKey) -> None:
        """Compare a prompt with what is cached of it, so that the walks that follow needn't.

        The one method here that needs no mutex: it changes nothing, and where the tree changes at the same time the
        walk finds other keys and compares those itself.
        """
        aligned = prompt.page_aligned(self.page_size)
        node, offset, length = self.root_node, 0, len(aligned)
        while offset < length:
            node = node.children.get(aligned.child_key_at(offset, self.page_size))
            key = None if node is None else node.key
            if key is None or not prompt.compare(key, offset):
                break
            offset += len(key)

    # --- order and holds ------------------------------------------------------------------------------------

    def hold(self, node_id: int, tokens: int) -> None:
        """Hold so many more tokens of a node. Raises ``HoldError``."""
        self.holds.hold(self._node_arena[node_id], tokens)

    def unhold(self, node_id: int, tokens: int) -> None:
        """Let go of so many tokens of a node. Raises ``HoldError``."""
        self.holds.unhold(self._node_arena[node_id], tokens)

    @property
    def holder(self) -> HoldListener | None:
        """Who hears what becomes of held nodes."""
        return self.holds.listener

    @holder.setter
    def holder(self, listener: HoldListener | None) -> None:
        self.holds.listener = listener

    @property
    def claims(self) -> list[int]:
        """Held nodes that a request has locked, oldest first; the holder reads and clears it."""
        return self.holds.claims

    def candidates(self) -> Iterator[tuple[int, int]]:
        """Nodes that would be evicted next and their tokens that nobody holds, in that order.

        What a request in admission names comes at the end, and of that first what is needed last.

        Held nodes count as gone: where the caller holds what it is given, the parent may follow. What the caller
        does not hold stays a candidate. Stop at any time.
        """
        given: set[int] = set()
        wanted: list[IndexedNode] = []
        yield from map(self._unheld, self._unwanted(given, wanted) if self.wanted else self.order.walk())
        if wanted:
            yield from map(self._unheld, self._needed_last_first(wanted, given))

    def unwanted_candidates(self) -> Iterator[tuple[int, int]]:
        """The `candidates` that no request in admission names."""
        return map(self._unheld, self._unwanted(set(), []))

    def _unheld(self, node: IndexedNode) -> tuple[int, int]:
        return node.id, node.device_tokens - self.holds.tokens.get(node.id, 0)

    def _unwanted(self, given: set[int], wanted: list[IndexedNode]) -> Iterator[IndexedNode]:
        """Candidates that nobody wants.

        Args:
            given: gets their ids.
            wanted: gets those that were passed over.
        """
        for node in self.order.walk():
            if self._is_wanted(node):
                wanted.append(node)
            else:
                given.add(node.id)
                yield node

    def _needed_last_first(self, nodes: Iterable[IndexedNode], given: set[int]) -> Iterator[IndexedNode]:
        """These candidates, and what opens up behind them, except what was given already."""
        next_up = self.wanted.first()

        def entry(node: IndexedNode) -> tuple[int, Any, int]:
            return -self._needed_in(next_up, node), self.order.place(node), node.id

        queue = [entry(node) for node in nodes]
        heapq.heapify(queue)
        while queue:
            node = self._node_arena.get(heapq.heappop(queue)[2])
            if node is None or not self._is_open(node):
                continue
            given.add(node.id)
            yield node
            parent = node.parent
            while parent is not None and parent.covered:  # what is held already counts as gone, too
                parent = parent.parent
            if parent is not None and parent.id not in given and self._is_open(parent):
                heapq.heappush(queue, entry(parent))

    @staticmethod
    def _needed_in(next_up: Sequence[Sequence[int]], node: IndexedNode) -> int:
        """Never later than what is below the node."""
        index, block = _name_of(node)
        return 0 if block is None else needed_in(next_up, index, block)

    def _is_wanted(self, node: IndexedNode) -> bool:
        """Whether a request in admission names the node or its beginning; what is above such a node is, too."""
        if not node.blocks and not node.device_children:
            return False  # no block ends here, so no hint tells of it
        _, block = _name_of(node)
        return bool(self.wanted) if block is None else block in self.wanted

    def wanted_of(self, node_ids: Iterable[int]) -> list[int]:
        """Those of the nodes that a request in admission names, or the beginning of which it names."""
        if not self.wanted:
            return []
        return [each for each in node_ids if self._is_wanted(self._node_arena[each])]

    def exists(self, node_id: int) -> bool:
        """Whether the node is in the tree."""
        return node_id in self._node_arena

    def is_locked(self, node_id: int) -> bool:
        """Whether anybody keeps the node."""
        return bool(self._node_arena[node_id].is_locked)

    def device_tokens(self, node_id: int) -> int:
        """Tokens of the node on the device."""
        tokens: int = self._node_arena[node_id].device_tokens
        return tokens

    def held_tokens(self, node_id: int) -> int:
        """Tokens of the node that are held, by whomever."""
        return self.holds.of(self._node_arena[node_id])

    def evict_below(self, node_ids: Sequence[int], gone: BaseEvictionResult) -> None:
        """Take nodes out of the tree, each after everything below it on the device.

        Args:
            node_ids: a node that has gone with an earlier one is passed over.
            gone: what the cache must free, also after an error.

        Raises:
            KeyError: a node is not in the tree.
            ValueError: a node is locked.
            RuntimeError: a node would have to be copied to the host first.
        """
        chosen = [self._node_arena[node_id] for node_id in node_ids]
        for top in chosen:
            if top.is_locked:
                raise ValueError(f"node {top.id} is locked and can't be evicted")
            for node in self._leaf_first(top):
                self._evict_chosen(node, gone)

    def _evict_chosen(self, leaf: IndexedNode, gone: BaseEvictionResult) -> None:
        if leaf.backuped:
            evict = self._demote
        elif self.is_write_back:
            raise RuntimeError(f"node {leaf.id} waits for a copy to the host, which WavePP does not make")
        else:
            evict = self._delete_unbacked_device_leaf
        evict(leaf, gone.tracker, gone.device_frees, gone.host_frees, cache_actions=gone.cache_actions)

    @staticmethod
    def _leaf_first(top: IndexedNode) -> list[IndexedNode]:
        """The node and everything below it on the device, each after what is below it; nothing when it isn't."""
        found = [top] if top.on_device else []
        for node in found:
            found.extend(child for child in node.children.values() if child.on_device)
        found.reverse()
        return found

    def takes(self, node: IndexedNode) -> bool:
        """Whether SGLang's own eviction may take this node: a leaf of which nobody holds anything."""
        return node in self.evictable_device_leaves and node not in self.holds

    def _is_open(self, node: IndexedNode) -> bool:
        if node not in self.evictable_device_leaves:
            covered = node.covered_children
            if not covered or covered != node.device_children or node.parent is None:
                return False
            if not node.on_device or node.is_locked:
                return False
        held = self.holds.tokens.get(node.id)
        return held is None or held < node.device_tokens

    def _offer_if_open(self, node: IndexedNode) -> None:
        if self._is_open(node):
            self.order.offer(node)

    def _set_on_device(self, node: IndexedNode, there: bool) -> None:
        if node.on_device == there:
            return
        parent = node.parent
        any_held = bool(self.holds)
        node.on_device = there
        node.device_tokens = len(node.key) if there else 0
        parent.device_children += 1 if there else -1
        if not any_held:
            return
        if not there:
            self.holds.leave(node)
            self.holds.settle(node)
        self.holds.settle(parent)

    def _below_root(self) -> Iterator[IndexedNode]:
        """Every node but the root, parents first."""
        pending = [self.root_node]
        while pending:
            node = pending.pop()
            if node is not self.root_node:
                yield node
            pending.extend(node.children.values())

    # --- SGLang's tree core -----------------------------------------------------------------------------------

    def reset(self) -> None:
        super().reset()
        self.index.clear()
        self.order.clear()
        self.holds.clear()

    def _new_node(self, priority: int = 0) -> IndexedNode:
        node = IndexedNode(self.component_types, priority, self._heard)
        self._register_node(node)
        return node

    def _update_evictable_leaf_sets(self, node: IndexedNode) -> None:
        super()._update_evictable_leaf_sets(node)
        self._offer_if_open(node)

    def _is_device_leaf(self, node: IndexedNode) -> bool:
        if self._splits:  # the counters follow when the split is done
            return bool(super()._is_device_leaf(node))
        return node.on_device and not node.device_children and not node.is_locked

    def _split_node(self, key: Any, child: IndexedNode, split_len: int) -> Any:
        self._splits = True
        try:
            upper, action = super()._split_node(key, child, split_len)
        finally:
            self._splits = False
        if child.chain is not None:
            upper.blocks, child.blocks, upper.chain = self._chain_before(upper).split(
                child.blocks, upper.key.raw_token_ids()
            )
        upper.counted = tuple(each for each in child.counted if self._present(upper, each))
        upper.on_device = child.on_device
        upper.device_tokens = split_len if child.on_device else 0
        child.device_tokens -= upper.device_tokens
        upper.device_children = int(child.on_device)
        upper.covered, upper.covered_children = child.covered, int(child.covered)
        if self.holds:
            self.holds.split(upper, child)
        return upper, action

    def _remove_leaf_from_parent(self, node: IndexedNode) -> None:
        for component in node.counted:
            self.index.remove(_INDEXED[component], self._keys(node, component))
        node.counted = ()
        self._set_on_device(node, False)
        self.order.forget(node.id)
        super()._remove_leaf_from_parent(node)

    def inc_lock_ref(self, node_id: int, skip_lock_components: Sequence[ComponentType] = ()) -> Any:
        result = super().inc_lock_ref(node_id, skip_lock_components)
        self._claim(node_id)
        return result

    def inc_full_pin(self, node_id: int) -> None:
        super().inc_full_pin(node_id)
        self._claim(node_id)

    def _claim(self, node_id: int) -> None:
        if self.holds:
            self.holds.locked(self._node_arena[node_id])

    def _match_post_processor(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._match_post_processor(*args, **kwargs)
        node = self._node_arena[result.best_match_node]
        self.order.moved(node)
        while self._sinks and node.parent is not None:
            node = node.parent
            self.order.moved(node)
        return result

    def _touch_node(self, node: IndexedNode) -> None:
        super()._touch_node(node)
        if self._sinks:
            self.order.moved(node)


def _name_of(node: IndexedNode) -> tuple[int, int | None]:
    """Place in the chain and hash of the first block that ends in the node, else of the last before it, else None."""
    assert node.chain is not None, "the root is no candidate"
    if node.blocks:
        return node.chain.blocks - len(node.blocks), node.blocks[0]
    return node.chain.blocks - 1, node.chain.last if node.chain.blocks else None


def register_indexed_core() -> None:
    """Register the core with SGLang in this process, once."""
    from sglang.srt.mem_cache.unified_cache.tree_core_registry import (
        get_tree_core_factory,
        register_tree_core_backend,
    )

    if get_tree_core_factory(BACKEND) is None:
        register_tree_core_backend(BACKEND, IndexedTreeCore)
