"""One rank's cache in the plainest form: a page is a token, a node is a token, and every count is taken by looking.

`NaiveTree` is the prefix tree that `TwoWalkAdmission` walks, and the pool beneath it, from which `NaiveLoop` allocates.
Whoever finds no room raises `RunsShort`: an admitted request must never see it.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from sglang_wavepp.cache.two_walk import Match
from sglang_wavepp.plane.messages import InstallRecord

Path = tuple[int, ...]


class RunsShort(AssertionError):
    """Nothing is free and nothing can be evicted."""


@dataclass
class Node:
    locks: int = 0
    snapshot: bool = False
    snapshot_locks: int = 0
    used: int = 0


@dataclass
class NaiveTree:
    """A pool of `tokens` places and, unless `slots` is None, `slots` places for recurrent states."""

    tokens: int
    slots: int | None
    nodes: dict[Path, Node] = field(default_factory=dict)
    private_tokens: int = 0
    private_slots: int = 0
    mutex: threading.RLock = field(default_factory=threading.RLock)
    clock: itertools.count = field(default_factory=itertools.count)

    # --- what admission walks -------------------------------------------------------------------------------

    def match(self, record: InstallRecord, limit: int) -> Match:
        endpoint, path = 0, ()
        for end in range(1, limit + 1):
            prefix = tuple(record.token_ids[:end])
            node = self.nodes.get(prefix)
            if node is None:
                break
            node.used = next(self.clock)
            if self.slots is None or node.snapshot:
                endpoint, path = end, prefix
        return Match(endpoint, path, path if self.slots is not None and endpoint else None)

    def lock(self, node: Hashable) -> Path:
        assert isinstance(node, tuple)
        for end in range(1, len(node) + 1):
            self.nodes[node[:end]].locks += 1
        if node and self.slots is not None:
            self.nodes[node].snapshot_locks += 1
        return node

    def unlock(self, receipt: Path) -> None:
        for end in range(1, len(receipt) + 1):
            self.nodes[receipt[:end]].locks -= 1
            assert self.nodes[receipt[:end]].locks >= 0
        if receipt and self.slots is not None:
            self.nodes[receipt].snapshot_locks -= 1

    def available(self) -> int:
        return self.free() + sum(not node.locks for node in self.nodes.values())

    def locked(self) -> int:
        return sum(node.locks > 0 for node in self.nodes.values())

    # --- what the LOOP allocates ----------------------------------------------------------------------------

    def free(self) -> int:
        return self.tokens - len(self.nodes) - self.private_tokens

    def snapshots(self) -> int:
        return sum(node.snapshot for node in self.nodes.values())

    def allocate(self, tokens: int) -> None:
        while self.free() < tokens:
            if not self.evict_one():
                raise RunsShort(f"{tokens} tokens asked, {self.free()} free and nothing to evict")
        self.private_tokens += tokens

    def take_slot(self) -> None:
        assert self.slots is not None
        if self.slots - self.snapshots() - self.private_slots < 1:
            loose = [(n.used, p) for p, n in self.nodes.items() if n.snapshot and not n.snapshot_locks]
            if not loose:
                raise RunsShort("no recurrent slot is free and no snapshot can be evicted")
            self.nodes[min(loose)[1]].snapshot = False
        self.private_slots += 1

    def evict_one(self) -> bool:
        parents = {path[:-1] for path in self.nodes}
        leaves = [(n.used, p) for p, n in self.nodes.items() if not n.locks and p not in parents]
        if leaves:
            del self.nodes[min(leaves)[1]]
        return bool(leaves)

    def warm(self, path: Path, snapshot_at: list[int]) -> None:
        """Content from before the test, as far as there is room for it."""
        for end in range(1, len(path) + 1):
            if path[:end] not in self.nodes and self.free() > 0:
                self.nodes[path[:end]] = Node(used=next(self.clock))
            if path[:end] not in self.nodes:
                return
            if end in snapshot_at and self.slots is not None and self.snapshots() < self.slots:
                self.nodes[path[:end]].snapshot = True

    def lose_something(self, choose: Callable[[list[Path]], Path]) -> None:
        """Content goes that nobody holds: a leaf, or the snapshot of a node that stays."""
        loose = sorted(path for path, node in self.nodes.items() if node.snapshot and not node.snapshot_locks)
        if loose:
            self.nodes[choose(loose)].snapshot = False
        else:
            self.evict_one()

    def publish(self, path: Path, private: int) -> None:
        """The last `private` tokens of the path become nodes; those that exist free the duplicates."""
        for end in range(len(path) - private + 1, len(path) + 1):
            self.private_tokens -= 1
            self.nodes.setdefault(path[:end], Node(used=next(self.clock)))

    def publish_snapshot(self, path: Path) -> None:
        """One of the caller's private slots becomes the snapshot at this path, or goes back when there is one."""
        self.private_slots -= 1
        self.nodes[path].snapshot = True
