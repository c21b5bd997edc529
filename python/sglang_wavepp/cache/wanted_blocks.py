"""What requests in admission are going to ask of the cache: content that goes last.

A policy such as LRU guesses what will be used again. Of the requests that wait it is known: their prompts are hashed
for the hint. So whoever looks for victims passes over what a waiting request names, as long as there is anything else.
Nothing is pinned by it, and nothing is promised: with nothing else left, wanted content goes in the policy's order.
"""

from __future__ import annotations

from collections.abc import Sequence

from sglang_wavepp.admission.block_counts import BlockCounts


class WantedBlocks:
    """Block hashes of the prompts in admission. The admission thread writes, whoever looks for victims reads."""

    def __init__(self) -> None:
        self._counts = BlockCounts("prompts in admission")
        self._chains: dict[str, Sequence[int]] = {}

    def enter(self, rid: str, chain: Sequence[int]) -> None:
        """A request waits; nothing when it is known already.

        Args:
            chain: hashes of its prompt's full blocks; kept, not copied.
        """
        if rid not in self._chains:
            self._chains[rid] = chain
            self._counts.add(chain)

    def leave(self, rid: str) -> None:
        """The request waits no more; nothing when it didn't."""
        chain = self._chains.pop(rid, None)
        if chain is not None:
            self._counts.remove(chain)

    def __contains__(self, block: int) -> bool:
        return block in self._counts

    def __bool__(self) -> bool:
        return bool(self._counts)

    def __len__(self) -> int:
        """Requests."""
        return len(self._chains)
