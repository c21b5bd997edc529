"""One rank's token pool and recurrent slots, and the prefix tree that caches content in them."""

from __future__ import annotations

from collections.abc import Callable

from model.oracle.request import Path


class Node:
    """One token of cached content.

    Attributes:
        locks: references; an unlocked node without children can be evicted.
        children: nodes right below.
        used: clock of the last use.
        snapshot: whether a recurrent state is kept here.
        snapshot_locks: references to it.
        snapshot_leases: those of them that are leases.
        victim_of: request whose escrow counts on evicting this node.
    """

    __slots__ = ("children", "locks", "snapshot", "snapshot_leases", "snapshot_locks", "used", "victim_of")

    def __init__(self) -> None:
        self.locks = self.children = self.used = self.snapshot_locks = self.snapshot_leases = 0
        self.snapshot = False
        self.victim_of: int | None = None


class Pool:
    """Counts are kept beside the tree; `check` compares them.

    Attributes:
        owned: tokens that requests own outside the tree.
        unlocked: nodes without references.
        snapshots: recurrent slots that hold snapshots.
        active_slots: recurrent slots with running states.
        releases: grows whenever something was given back.
    """

    def __init__(self, tokens: int, slots: int) -> None:
        self.tokens, self.slots = tokens, slots
        self.nodes: dict[Path, Node] = {}
        self.owned = self.unlocked = self.snapshots = self.active_slots = self.releases = 0
        self._clock = 0

    def free(self) -> int:
        """Tokens that nobody owns and that hold no content."""
        return self.tokens - len(self.nodes) - self.owned

    def free_slots(self) -> int:
        return self.slots - self.snapshots - self.active_slots

    def lock(self, path: Path) -> Node:
        node = self.nodes[path]
        if not node.locks:
            self.unlocked -= 1
        node.locks += 1
        self._clock += 1
        node.used = self._clock
        return node

    def unlock(self, path: Path) -> None:
        node = self.nodes[path]
        node.locks -= 1
        if not node.locks:
            self.unlocked += 1
            self.releases += 1

    def attach(self, path: Path) -> None:
        """A token of content that was computed joins the tree, unlocked."""
        self.nodes[path] = Node()
        self.unlocked += 1
        if len(path) > 1:
            self.nodes[path[:-1]].children += 1

    def detach(self, path: Path) -> Node:
        """Evict an unlocked node; its place is free."""
        node = self.nodes.pop(path)
        self.unlocked -= 1
        if node.snapshot:
            self.snapshots -= 1
        if len(path) > 1:
            self.nodes[path[:-1]].children -= 1
        return node

    def oldest_leaf(self, wanted: Callable[[Node], bool] = lambda node: True) -> Path | None:
        """Next node to evict, least recently used first."""
        leaves = [
            (node.used, path)
            for path, node in self.nodes.items()
            if not node.locks and not node.children and wanted(node)
        ]
        return min(leaves)[1] if leaves else None

    def keep_snapshot(self, path: Path) -> None:
        self.nodes[path].snapshot = True
        self.snapshots += 1

    def drop_oldest_snapshot(self) -> bool:
        """Evict a recurrent snapshot that nobody references; False when there is none."""
        loose = [
            (node.used, path)
            for path, node in self.nodes.items()
            if node.snapshot and not node.snapshot_locks
        ]
        if loose:
            self.nodes[min(loose)[1]].snapshot = False
            self.snapshots -= 1
        return bool(loose)
