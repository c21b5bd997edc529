"""What requests in admission are going to ask of the cache: content that goes last.

A policy such as LRU guesses what will be used again. Of the requests that wait it is known: their prompts are hashed
for the hint. So whoever looks for victims passes over what a waiting request names, as long as there is anything else,
and then begins with what is needed last. Nothing is pinned by it, and nothing is promised.

SGLang's own scheduler has the same end in mind when it matches the waiting requests again and again, the first of them
last, so that LRU takes their prefixes for used. Here no tree is walked for it, and it holds for every policy.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from sglang_wavepp.admission.block_counts import BlockCounts

LOOKED_AT: Final = 16
"""Requests from the head of the queue that are told apart; what only later ones name is all needed last."""


@dataclass(slots=True)
class _Named:
    """What a request names.

    Attributes:
        chain: hashes of its prompt's full blocks.
        resumes: hash of the block at whose end the recurrent snapshot is that it would resume from.
    """

    chain: Sequence[int]
    resumes: int | None = None


class WantedBlocks:
    """Block hashes of the prompts in admission, in the order of their first hints. Threads may share it."""

    def __init__(self) -> None:
        self._counts = BlockCounts("prompts in admission")
        self._mutex = threading.Lock()
        self._waiting: dict[str, _Named] = {}

    def enter(self, rid: str, chain: Sequence[int]) -> None:
        """A request waits; nothing when it is known already.

        Args:
            chain: hashes of its prompt's full blocks; kept, not copied.
        """
        with self._mutex:
            if rid in self._waiting:
                return
            self._waiting[rid] = _Named(chain)
        self._counts.add(chain)

    def resumes(self, rid: str, block: int | None) -> None:
        """A waiting request would resume from the recurrent snapshot at the end of this block; None: from none.

        Of all snapshots on its path it needs one. The others are in nobody's way to be evicted.
        """
        with self._mutex:
            named = self._waiting.get(rid)
            if named is not None:
                named.resumes = block

    def leave(self, rid: str) -> None:
        """The request waits no more; nothing when it didn't."""
        with self._mutex:
            named = self._waiting.pop(rid, None)
        if named is not None:
            self._counts.remove(named.chain)

    def first(self) -> tuple[Sequence[int], ...]:
        """Chains of the requests that come next, for `needed_in`."""
        with self._mutex:
            return tuple(named.chain for named in islice(self._waiting.values(), LOOKED_AT))

    def snapshots(self) -> dict[int, int]:
        """Blocks at whose ends there are snapshots to resume from, each with how many requests need others before."""
        places: dict[int, int] = {}
        with self._mutex:
            for place, named in enumerate(self._waiting.values()):
                if named.resumes is not None:
                    places.setdefault(named.resumes, place)
        return places

    def __contains__(self, block: int) -> bool:
        return block in self._counts

    def __bool__(self) -> bool:
        return bool(self._counts)

    def __len__(self) -> int:
        """Requests."""
        return len(self._waiting)


def needed_in(chains: Sequence[Sequence[int]], index: int, block: int) -> int:
    """How many requests come before the first that has this block at this place; all of them when none has."""
    for place, chain in enumerate(chains):
        if index < len(chain) and chain[index] == block:
            return place
    return len(chains)
