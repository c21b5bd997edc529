"""The order in which cached nodes would be evicted, kept up to date so that nobody sorts all of them.

SGLang sorts every leaf of its tree each time it evicts. Here a heap lives on between the calls. Its entries go
stale when a node is used, locked or removed, and are put right when they come up: a walk costs what it takes and
what changed, not what is there. The order is SGLang's for each of its policies, which is the order of
`(priority of the policy, time of the last use)`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

SLACK: Final = 1024
"""Entries beyond a quarter more than there are nodes at which stale ones are swept out."""


class Orderable(Protocol):
    """What a node of the tree must have."""

    @property
    def id(self) -> int:
        """Unique, never used again."""


class VictimOrder:
    """Nodes that may be evicted, first to go first.

    Args:
        key: of a node, comparable and the same until the node is used again; smallest goes first.
        find: node of an id, None when it has left the tree.
        is_open: whether the node is a candidate now.
    """

    def __init__(
        self, key: Callable[[Any], Any], find: Callable[[int], Any | None], is_open: Callable[[Any], bool]
    ) -> None:
        self._key = key
        self._find = find
        self._is_open = is_open
        self._heap: list[tuple[Any, int]] = []
        self._queued: dict[int, tuple[Any, int]] = {}
        """The one entry of a node that counts; others of it in the heap are stale."""
        self._aside: list[tuple[Any, int]] = []
        """Taken from the heap by walks since the last one began."""

    def __len__(self) -> int:
        """Entries, stale ones included."""
        return len(self._heap) + len(self._aside)

    def offer(self, node: Orderable) -> None:
        """The node may have become a candidate, or its place may have changed. Cheap when neither is so."""
        key = self._key(node)
        known = self._queued.get(node.id)
        if known is not None and known[0] == key:
            return
        entry = (key, node.id)
        self._queued[node.id] = entry
        heapq.heappush(self._heap, entry)
        if 4 * len(self._heap) > 5 * len(self._queued) + 4 * SLACK:
            self._sweep()

    def moved(self, node: Orderable) -> None:
        """The place of a node may have changed; unlike `offer`, a node that was never offered stays out."""
        if node.id in self._queued:
            self.offer(node)

    def place(self, node: Orderable) -> Any:
        """Its key: the smallest goes first."""
        return self._key(node)

    def forget(self, node_id: int) -> None:
        """The node has left the tree."""
        self._queued.pop(node_id, None)

    def clear(self) -> None:
        """The tree is empty."""
        self._heap.clear()
        self._queued.clear()
        self._aside.clear()

    def walk(self) -> Iterator[Any]:
        """Candidates from the first to go on, each once; what the caller does not take stays in the order.

        Between two steps the caller may evict, hold or offer nodes. Walks may be left unfinished and may begin
        while others are under way.
        """
        seen: set[int] = set()
        self._restore()
        try:
            while (node := self._next(seen)) is not None:
                yield node
        finally:
            self._restore()

    def _next(self, seen: set[int]) -> Any | None:
        queued, heap = self._queued, self._heap
        while heap:
            entry = heapq.heappop(heap)
            key, node_id = entry
            if queued.get(node_id) is not entry:
                continue
            node = self._find(node_id)
            if node is None or not self._is_open(node):
                del queued[node_id]
                continue
            now = self._key(node)
            if now != key:
                entry = queued[node_id] = (now, node_id)
                heapq.heappush(heap, entry)
                continue
            self._aside.append(entry)
            if node_id not in seen:
                seen.add(node_id)
                return node
        return None

    def _restore(self) -> None:
        queued = self._queued
        for entry in self._aside:
            node_id = entry[1]
            if queued.get(node_id) is not entry:
                continue
            node = self._find(node_id)
            if node is not None and self._is_open(node):
                heapq.heappush(self._heap, entry)
            else:  # offered again when it opens
                del queued[node_id]
        self._aside.clear()

    def _sweep(self) -> None:
        queued = self._queued
        self._heap[:] = [entry for entry in self._heap if queued.get(entry[1]) is entry]
        heapq.heapify(self._heap)


def order_key(strategy: Any) -> Callable[[Any], Any]:
    """Key of a node under one of SGLang's eviction strategies.

    A strategy's own ties go to the node that was used earlier, as SGLang's nodes compare by that time.

    Args:
        strategy: `sglang.srt.mem_cache.evict_policy.EvictionStrategy`.
    """
    from sglang.srt.mem_cache.evict_policy import LRUStrategy

    if type(strategy) is LRUStrategy:
        # The time alone, as a plain float: a numpy scalar compares ten times slower.
        return lambda node: float(node.last_access_time)
    priority = strategy.get_priority

    def key(node: Any) -> tuple[Any, float]:
        given = priority(node)
        plain = tuple(map(float, given)) if isinstance(given, tuple) else float(given)
        return plain, float(node.last_access_time)

    return key
