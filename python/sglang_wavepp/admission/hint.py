"""Where a request could resume: one rank's guess, and what the guesses of all ranks agree on.

A rank without recurrent layers can resume at every step of the grid up to its endpoint (a sliding window may be
broken further down; the walk of the tree tells). A rank with them can resume only where it kept a snapshot, so its
hint lists the deepest few: the deepest position that all ranks share is then found at once, not by trying one rank's
next position after the other's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from sglang_wavepp.admission.components import Component
from sglang_wavepp.admission.hint_index import HintIndex

SNAPSHOTS_LISTED = 8


@dataclass(frozen=True, slots=True)
class Hint:
    """Positions at which one rank believes that a request can resume; it pins none of them.

    Attributes:
        endpoint: tokens, the deepest of the positions, 0 when there is none.
        snapshots: of a sparse hint the positions, deepest first, in tokens; empty otherwise.
        sparse: only the listed positions count; otherwise every step of the grid up to the endpoint does.
        complete: a sparse hint's rank has no position below the last one that is listed.
        reach: tokens up to which the attention cache holds the prompt, whether or not a request can resume there;
            for this rank's own use, so two hints that differ in it only are equal.
    """

    endpoint: int
    snapshots: tuple[int, ...] = ()
    sparse: bool = False
    complete: bool = True
    reach: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        deepest = self.snapshots[0] if self.snapshots else 0
        if self.sparse and self.endpoint != deepest:
            raise ValueError(f"a sparse hint ends at its deepest snapshot, which {self} does not")
        if not self.sparse and (self.snapshots or not self.complete):
            raise ValueError(f"only a sparse hint lists snapshots, and {self} is not sparse")

    def allows(self, position: int) -> bool:
        """Whether the rank may be able to resume at this step of the grid: unknown counts as yes."""
        if position == 0:
            return True
        if not self.sparse:
            return position <= self.endpoint
        return position in self.snapshots or (not self.complete and position < self.snapshots[-1])


class HintProbe:
    """Asks one rank's index for the hint of a prompt.

    Args:
        index: the rank's index.
        block: tokens per hashed block.
        step: tokens between positions from which every component and the page can resume; a multiple of `block`.
        window: tokens of the sliding window, None for models without one.
        listed: how many snapshots a hint lists at most.

    Raises:
        ValueError: the step is no multiple of the block, or the window and the index's components disagree.
    """

    def __init__(
        self,
        index: HintIndex,
        *,
        block: int,
        step: int,
        window: int | None = None,
        listed: int = SNAPSHOTS_LISTED,
    ) -> None:
        if block < 1 or step < block or step % block:
            raise ValueError(f"the step of {step} tokens is no multiple of the block of {block}")
        if (window is not None) != (Component.SWA in index.components):
            raise ValueError(f"window {window} does not suit the components {index.components}")
        self.block = block
        self.step = step
        self._index = index
        self._grid = step // block
        self._window = None if window is None else math.ceil(window / block)
        self._listed = listed
        self._sparse = Component.MAMBA in index.components

    @property
    def probes(self) -> int:
        """Look-ups in the index so far."""
        return self._index.probes

    def hint(self, hashes: Sequence[int], limit: int) -> Hint:
        """Where a prompt can resume on this rank.

        Args:
            hashes: chain of the prompt.
            limit: tokens; no position lies above.
        """
        end = self._index.dense_end(Component.FULL, hashes, limit // self.block) // self._grid * self._grid
        if self._sparse:
            return self._sparse_hint(hashes, end)
        if self._window is not None:
            end = self._index.window_end(Component.SWA, hashes, end, self._window, grid=self._grid)
        return Hint(end * self.block, reach=end * self.block)

    def _sparse_hint(self, hashes: Sequence[int], end: int) -> Hint:
        found = self._index.snapshots(Component.MAMBA, hashes, end, self._listed + 1, grid=self._grid)
        positions = tuple(each * self.block for each in found if self._window_is_whole(hashes, each))
        listed = positions[: self._listed]
        complete = len(found) <= self._listed
        reach = end * self.block
        if not listed:
            return Hint(0, sparse=True, reach=reach)
        return Hint(listed[0], listed, sparse=True, complete=complete, reach=reach)

    def _window_is_whole(self, hashes: Sequence[int], end: int) -> bool:
        if self._window is None:
            return True
        last = hashes[max(0, end - self._window) : end]
        return self._index.window_end(Component.SWA, last, len(last), len(last)) == len(last)


def candidate_of(hints: Sequence[Hint]) -> int:
    """The deepest position at which all ranks may be able to resume, in tokens.

    What a hint cut off counts as possible, so a rank may turn out to hold less, but no deeper position exists that
    all hold.

    Args:
        hints: one per rank.

    Raises:
        ValueError: there is none.
    """
    if not hints:
        raise ValueError("a candidate needs the hint of at least one rank")
    ends = [hint.endpoint for hint in hints if not hint.sparse]
    known = {position for hint in hints for position in hint.snapshots}
    known.update([0] if not ends else [0, min(ends)])
    return max(position for position in known if all(hint.allows(position) for hint in hints))
