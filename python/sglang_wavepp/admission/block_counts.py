"""How often each block hash counts: a set of those that do, for threads to share.

A count is kept as a set of the hashes that are there and a dictionary of the few that are there more than once (in the
tree a block is there again when it ends inside a page that two prompts don't share), because sets work in C.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence


class BlockCountError(LookupError):
    """Something is removed that was not added."""


class BlockCounts:
    """Counts of block hashes.

    Args:
        name: of what is counted, for errors.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._mutex = threading.Lock()
        self._present: set[int] = set()
        self._repeats: dict[int, int] = {}
        """Count less one of the hashes that count more than once."""

    def __contains__(self, block: int) -> bool:
        # One look-up in a set needs no mutex of its own.
        return block in self._present

    def __bool__(self) -> bool:
        return bool(self._present)

    def add(self, hashes: Sequence[int]) -> None:
        """Each hash counts once more."""
        with self._mutex:
            present, repeats = self._present, self._repeats
            before = len(present)
            known = present.intersection(hashes)
            present.update(hashes)
            if len(present) - before == len(hashes):
                return
            for each, times in Counter(hashes).items():
                more = times if each in known else times - 1
                if more:
                    repeats[each] = repeats.get(each, 0) + more

    def remove(self, hashes: Sequence[int]) -> None:
        """Each hash counts once less. All of them, or none with an error.

        Raises:
            BlockCountError: names a hash that is not there as often.
        """
        with self._mutex:
            present, repeats = self._present, self._repeats
            if repeats.keys().isdisjoint(hashes) and present.issuperset(hashes):
                before = len(present)
                present.difference_update(hashes)
                if before - len(present) == len(hashes):
                    return
                present.update(hashes)  # the same hash twice, which is there once: the error is found below
            going = Counter(hashes)
            for each, times in going.items():
                there = repeats.get(each, 0) + (each in present)
                if times > there:
                    raise BlockCountError(
                        f"block {each:#018x} of {self._name} is removed {times} times"
                        f" but is there {there} times"
                    )
            for each, times in going.items():
                left = repeats.pop(each, 0) + 1 - times
                if not left:
                    present.remove(each)
                elif left > 1:
                    repeats[each] = left - 1

    def clear(self) -> None:
        """Nothing counts."""
        with self._mutex:
            self._present.clear()
            self._repeats.clear()

    def contents(self) -> dict[int, int]:
        """A copy of all counts."""
        with self._mutex:
            return {each: 1 + self._repeats.get(each, 0) for each in self._present}
