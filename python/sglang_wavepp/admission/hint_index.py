"""What a rank has cached, by block hash: counters that answer without touching the prefix tree.

A hash counts how often its block is attached to the tree; an entry goes when its count does. The tree adds and
removes under its own mutex, the admission thread looks up at any time. The index owns no cache memory and pins
nothing, so an answer may be stale by the time it is used: it is a hint, and the walk of the tree has the last word.

Each component is a shard with a mutex of its own, and a call takes it once for many look-ups: a probe for all of
its twenty, a backward scan for a stretch of blocks, an insertion for all blocks of a node. Finer shards, by hash,
were tried: a chain then falls into all of them, and taking a mutex for each look-up makes a probe take 20 us instead
of 4 and the longest scan 2.5 ms instead of 0.1, while the interpreter lock lets only one thread look up at a time
anyway. Under the mutex runs what sets do in C.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sglang_wavepp.admission.block_counts import BlockCounts
from sglang_wavepp.admission.components import Component

SCAN_STRETCH = 256
"""Blocks that a backward scan looks up before it lets go of the mutex: about ten microseconds."""


class HintIndex:
    """Counters of one rank, exact at every moment.

    Args:
        components: of the rank's model.
    """

    def __init__(self, components: Iterable[Component]) -> None:
        self._shards = {component: _Shard(component) for component in components}

    @property
    def components(self) -> tuple[Component, ...]:
        """In the order given."""
        return tuple(self._shards)

    @property
    def probes(self) -> int:
        """Look-ups of a block so far."""
        return sum(shard.probes for shard in self._shards.values())

    # --- the tree -------------------------------------------------------------------------------------------

    def add(self, component: Component, hashes: Sequence[int]) -> None:
        """The blocks are attached: each counts once more."""
        self._shards[component].add(hashes)

    def remove(self, component: Component, hashes: Sequence[int]) -> None:
        """The blocks are detached: each counts once less. All of them, or none with an error.

        Raises:
            BlockCountError: names a hash that is not there as often.
        """
        self._shards[component].remove(hashes)

    def clear(self) -> None:
        """The tree is empty."""
        for shard in self._shards.values():
            shard.clear()

    def contents(self) -> dict[Component, dict[int, int]]:
        """A copy of all counts, for comparison with the tree."""
        return {component: shard.contents() for component, shard in self._shards.items()}

    # --- admission ------------------------------------------------------------------------------------------

    def dense_end(self, component: Component, hashes: Sequence[int], limit: int) -> int:
        """How many leading blocks are there, at most `limit`, when presence has no gaps.

        Looks at depths 1, 2, 4, ... until the first miss, then bisects: about twice the logarithm of the answer.

        Args:
            hashes: chain of the prompt.
            limit: blocks.
        """
        return self._shards[component].dense_end(hashes, limit)

    def snapshots(
        self, component: Component, hashes: Sequence[int], limit: int, most: int, *, grid: int = 1
    ) -> tuple[int, ...]:
        """The deepest positions with a snapshot, deepest first, at most `most` of them.

        Args:
            hashes: chain of the prompt.
            limit: blocks; nothing above is looked at.
            grid: only positions at multiples of so many blocks count.

        Returns:
            Positions in blocks.
        """
        return self._shards[component].snapshots(hashes, limit, most, grid)

    def window_end(
        self, component: Component, hashes: Sequence[int], limit: int, window: int, *, grid: int = 1
    ) -> int:
        """The deepest position at which the last `window` blocks are there, or all when there are fewer.

        Args:
            hashes: chain of the prompt.
            limit: blocks; nothing above is looked at.
            window: blocks.
            grid: only positions at multiples of so many blocks count.

        Returns:
            Position in blocks, 0 when there is none.
        """
        return self._shards[component].window_end(hashes, limit, window, grid)


class _Shard(BlockCounts):
    """Counters of one component."""

    def __init__(self, component: Component) -> None:
        super().__init__(component.value)
        self.probes = 0

    def dense_end(self, hashes: Sequence[int], limit: int) -> int:
        end = min(limit, len(hashes))
        if end <= 0:
            return 0
        present, depth = self._present, 1
        with self._mutex:
            while depth < end and hashes[depth - 1] in present:
                depth += depth
            probes = depth.bit_length()
            hit, miss = depth >> 1, depth - 1  # so many are there; the block after so many is not
            if depth >= end:
                miss = end - 1
                if hashes[miss] in present:
                    hit = end
            while hit < miss:
                probes += 1
                middle = (hit + miss) >> 1
                if hashes[middle] in present:
                    hit = middle + 1
                else:
                    miss = middle
            self.probes += probes
        return hit

    def snapshots(self, hashes: Sequence[int], limit: int, most: int, grid: int) -> tuple[int, ...]:
        found: list[int] = []
        places = min(limit, len(hashes)) // grid
        while places > 0 and len(found) < most:
            first = max(0, places - SCAN_STRETCH)
            stretch = list(hashes[first * grid + grid - 1 : places * grid : grid])
            flags = self._flags(stretch)
            place = flags.rfind(1)
            while place >= 0 and len(found) < most:
                found.append((first + place + 1) * grid)
                place = flags.rfind(1, 0, place)
            places = first
        return tuple(found)

    def window_end(self, hashes: Sequence[int], limit: int, window: int, grid: int) -> int:
        end = min(limit, len(hashes)) // grid * grid  # the deepest position that is not ruled out
        there = end  # from here to `end` all blocks are there
        while end > 0:
            # The gap next to the start of the window rules out most: every window that it lies in.
            start = max(0, end - window)
            gap = self._first_gap(hashes, start, there)
            if gap is None:
                return end
            end = gap // grid * grid
            there = min(start, end)
        return 0

    def _first_gap(self, hashes: Sequence[int], start: int, end: int) -> int | None:
        with self._mutex:
            for place in range(start, end):
                if hashes[place] not in self._present:
                    self.probes += place + 1 - start
                    return place
            self.probes += end - start
        return None

    def _flags(self, hashes: Sequence[int]) -> bytes:
        """For each hash 1 when it is there, else 0."""
        with self._mutex:
            self.probes += len(hashes)
            if self._present.isdisjoint(hashes):
                return bytes(len(hashes))
            return bytes(map(self._present.__contains__, hashes))
