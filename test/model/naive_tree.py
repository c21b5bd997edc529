"""One rank's cache in the plainest form: a page is a token, a node is a token, and every count is taken by looking.

`NaiveTree` is the prefix tree that admission walks and takes victims from, and the pool beneath it, from which a LOOP
allocates. It tells a hint index what comes and goes. Whoever finds no room raises `RunsShort`: an admitted request must
never see it.
"""

from __future__ import annotations

import itertools
import threading
from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from sglang_wavepp.admission.block_hash import block_hashes, namespace_seed
from sglang_wavepp.admission.components import Component
from sglang_wavepp.admission.hint_index import HintIndex
from sglang_wavepp.admission.messages import InstallRecord
from sglang_wavepp.cache.escrow import EscrowBook
from sglang_wavepp.cache.holdings import Match

Path = tuple[int, ...]


def key_of(path: Path) -> list[int]:
    """The hash of a path in blocks of one token."""
    return block_hashes(array("q", path), block=1, seed=namespace_seed(extra_key=None, cache_salt=None))[-1:]


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
    index: HintIndex = field(init=False)
    held: set[Path] = field(default_factory=set)
    claims: list[Path] = field(default_factory=list)
    book: EscrowBook | None = None

    def __post_init__(self) -> None:
        sparse = () if self.slots is None else (Component.MAMBA,)
        self.index = HintIndex((Component.FULL, *sparse))

    # --- what comes and goes --------------------------------------------------------------------------------

    def attach(self, path: Path) -> None:
        if path not in self.nodes:
            self.nodes[path] = Node(used=next(self.clock))
            self.index.add(Component.FULL, key_of(path))

    def detach(self, path: Path) -> None:
        assert not any(other[:-1] == path for other in self.nodes), "a node goes before its children"
        self.keep_snapshot(path, False)
        assert not self.nodes.pop(path).locks
        self.index.remove(Component.FULL, key_of(path))
        if path in self.held:
            self.held.discard(path)
            assert self.book is not None
            self.book.removed(path, 1)

    def keep_snapshot(self, path: Path, keep: bool) -> None:
        if self.nodes[path].snapshot != keep:
            self.nodes[path].snapshot = keep
            (self.index.add if keep else self.index.remove)(Component.MAMBA, key_of(path))

    def pin(self, path: Path) -> None:
        for end in range(1, len(path) + 1):
            self.nodes[path[:end]].locks += 1
            if path[:end] in self.held:
                self.claims.append(path[:end])

    # --- what an escrow asks --------------------------------------------------------------------------------

    def candidates(self) -> list[tuple[Path, int]]:
        gone, order = set(self.held), []
        while True:
            parents = {path[:-1] for path in self.nodes if path not in gone}
            loose = [(n.used, p) for p, n in self.nodes.items() if not n.locks and {p} - gone - parents]
            if not loose:
                return [(path, 1) for path in order]
            order.append(min(loose)[1])
            gone.add(order[-1])

    def hold(self, node: Hashable, tokens: int) -> None:
        assert isinstance(node, tuple) and node not in self.held and tokens == 1
        self.held.add(node)

    def unhold(self, node: Hashable, tokens: int) -> None:
        assert tokens == 1
        self.held.remove(node)  # type: ignore[arg-type]

    def evict(self, nodes: Sequence[Hashable]) -> None:
        for node in nodes:
            assert isinstance(node, tuple)
            below = [path for path in self.nodes if path[: len(node)] == node]
            for path in sorted(below, key=len, reverse=True):
                self.detach(path)

    def is_locked(self, node: Hashable) -> bool:
        return self.nodes[node].locks > 0  # type: ignore[index]

    def unwanted_candidates(self) -> Iterable[tuple[Path, int]]:
        return self.candidates()

    def wanted(self, nodes: Iterable[Path]) -> list[Path]:
        return []  # nobody tells it what waits

    def take_claims(self) -> list[Path]:
        claims, self.claims = self.claims, []
        return claims

    # --- what admission walks -------------------------------------------------------------------------------

    def look_ahead(self, record: InstallRecord, limit: int) -> None:
        pass

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
        self.pin(node)
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
            self.keep_snapshot(min(loose)[1], False)
        self.private_slots += 1

    def evict_one(self) -> bool:
        parents = {path[:-1] for path in self.nodes}
        leaves = [(n.used, p) for p, n in self.nodes.items() if not n.locks and {p} - parents - self.held]
        if leaves:
            self.detach(min(leaves)[1])
        return bool(leaves)

    def warm(self, path: Path, snapshot_at: list[int]) -> None:
        """Content from before the test, as far as there is room for it."""
        for end in range(1, len(path) + 1):
            if self.free() > 0:
                self.attach(path[:end])
            if path[:end] not in self.nodes:
                return
            if end in snapshot_at and self.slots is not None and self.snapshots() < self.slots:
                self.keep_snapshot(path[:end], True)

    def lose_something(self, choose: Callable[[list[Path]], Path]) -> None:
        """Content goes that nobody holds: a leaf, or the snapshot of a node that stays."""
        loose = sorted(path for path, node in self.nodes.items() if node.snapshot and not node.snapshot_locks)
        if loose:
            self.keep_snapshot(choose(loose), False)
        else:
            self.evict_one()

    def publish(self, path: Path, private: int) -> None:
        """The last `private` tokens of the path become nodes; those that exist free the duplicates."""
        for end in range(len(path) - private + 1, len(path) + 1):
            self.private_tokens -= 1
            self.attach(path[:end])

    def publish_snapshot(self, path: Path) -> None:
        """One of the caller's private slots becomes the snapshot at this path, or goes back when there is one."""
        self.private_slots -= 1
        self.keep_snapshot(path, True)
