"""Soft holds on cached tokens: they stay readable and claimable, but count as taken for everybody who looks for room.

A hold does not lock: a request that matches a held node locks it as any other, which is a claim. Several holders may
share a node; here only the sum is known. A node is covered when all its tokens and all below it on the device
are held. For the order of victims a covered node is gone, so its parent may be next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sglang_wavepp.cache.tree_node import IndexedNode


class HoldError(RuntimeError):
    """More is held or let go than there is, or on a node that can't be held."""


class HoldListener(Protocol):
    """Who keeps the book of holders. Called under the cache's mutex in the middle of a change: it must not call back
    into the tree."""

    def split(self, upper_id: int, upper_tokens: int, lower_id: int, lower_tokens: int) -> None:
        """A held node was split. The lower part keeps the id that was held.

        Args:
            upper_id: new node, the parent of the lower one.
            upper_tokens: held tokens that are counted there now, may be 0.
            lower_id: as before.
            lower_tokens: held tokens that stay there. Filled first, because eviction starts below.
        """

    def removed(self, node_id: int, tokens: int) -> None:
        """A held node has left the device.

        Args:
            node_id: no longer held.
            tokens: that were held there; they are free when the current call into the cache returns.
        """

    def cleared(self) -> None:
        """The tree was emptied; nothing is held."""


class SoftHolds:
    """Held tokens by node.

    Args:
        may_be_open: called with a node that may have become a candidate.

    Attributes:
        claims: ids of held nodes that were locked, oldest first; the holder reads and clears it.
        tokens: held tokens by id of the node, none is 0; for whoever asks so often that a call costs too much.
    """

    def __init__(self, may_be_open: Callable[[IndexedNode], None]) -> None:
        self.listener: HoldListener | None = None
        self.claims: list[int] = []
        self._may_be_open = may_be_open
        self.tokens: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self.tokens)

    def __contains__(self, node: IndexedNode) -> bool:
        return node.id in self.tokens

    def of(self, node: IndexedNode) -> int:
        """Held tokens of a node."""
        return self.tokens.get(node.id, 0)

    def ids(self) -> tuple[int, ...]:
        """Nodes with held tokens."""
        return tuple(self.tokens)

    # --- holders --------------------------------------------------------------------------------------------

    def hold(self, node: IndexedNode, tokens: int) -> None:
        """Hold so many more tokens of a node.

        Raises:
            HoldError: it has not so many, or is locked.
        """
        held = self.tokens.get(node.id, 0) + tokens
        if tokens < 1 or held > node.device_tokens:
            raise HoldError(f"can't hold {tokens} more of the {node.device_tokens} tokens of node {node.id}")
        if node.is_locked:
            raise HoldError(f"can't hold node {node.id}, which is locked")
        self.tokens[node.id] = held
        self.settle(node)

    def unhold(self, node: IndexedNode, tokens: int) -> None:
        """Let go of so many tokens of a node.

        Raises:
            HoldError: not so many are held.
        """
        held = self.tokens.get(node.id, 0) - tokens
        if tokens < 1 or held < 0:
            raise HoldError(f"can't let go of {tokens} of the {self.of(node)} tokens held of node {node.id}")
        if held:
            self.tokens[node.id] = held
        else:
            del self.tokens[node.id]
        self.settle(node)
        self._may_be_open(node)

    # --- the tree -------------------------------------------------------------------------------------------

    def settle(self, node: IndexedNode) -> None:
        """See whether a node and those above it are covered, after anything that this rests on has changed."""
        parent = node.parent
        while parent is not None:
            held = self.tokens.get(node.id, 0)
            covered = (
                held > 0
                and node.on_device
                and node.device_children == node.covered_children
                and held == node.device_tokens
            )
            if covered == node.covered:
                return
            node.covered = covered
            parent.covered_children += 1 if covered else -1
            if covered:
                self._may_be_open(parent)
            node, parent = parent, parent.parent

    def locked(self, node: IndexedNode) -> None:
        """A node's path to the root was locked once more: what is held and was free until now is claimed."""
        while node.parent is not None:
            if node.id in self.tokens and node.component_data[0].lock_ref == 1:
                self.claims.append(node.id)
            node = node.parent

    def split(self, upper: IndexedNode, lower: IndexedNode) -> None:
        """A node was split; `lower` has its id, and both have their tokens already."""
        held = self.tokens.get(lower.id, 0)
        if held:
            below = min(held, lower.device_tokens)
            above = held - below
            self.tokens[lower.id] = below
            if above:
                self.tokens[upper.id] = above
                if upper.is_locked:
                    self.claims.append(upper.id)
            if self.listener is not None:
                self.listener.split(upper.id, above, lower.id, below)
        # As long as the upper part is covered with the lower one, the split changes nothing above.
        self.settle(lower)

    def leave(self, node: IndexedNode) -> None:
        """A node's tokens have left the device."""
        tokens = self.tokens.pop(node.id, 0)
        if tokens and self.listener is not None:
            self.listener.removed(node.id, tokens)

    def clear(self) -> None:
        """The tree is empty."""
        self.tokens.clear()
        self.claims.clear()
        if self.listener is not None:
            self.listener.cleared()
