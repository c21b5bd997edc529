"""Which prefixes are about to be computed: by requests that are on their way, for those that came later.

A request that starts while an earlier one still computes their common prefix computes it a second time, and the
second copy is thrown away. Rank 0 therefore knows, for each block of the prompts on their way, which request came
first with it; from the others' point of view that one promises the block, until it has published it or has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class _Entered:
    number: int
    """Place in the order of entering."""
    chain: Sequence[int]
    own: int
    """First block that nobody before it had; what this request promises starts here at the earliest."""
    shared: int
    """Blocks before this one may still be promised by others."""
    published: int = 0


class Promises:
    """Blocks of prompts that are on their way, each with the request that came first with it.

    Every block costs one entry of a dictionary until it is published.

    Args:
        block: tokens of a hashed block.
    """

    def __init__(self, *, block: int) -> None:
        if block < 1:
            raise ValueError(f"a block has at least 1 token, not {block}")
        self._block = block
        self._owner: dict[int, int] = {}
        self._number = 0
        self._entered: dict[str, _Entered] = {}

    def __contains__(self, rid: str) -> bool:
        return rid in self._entered

    def __len__(self) -> int:
        """Blocks that are promised."""
        return len(self._owner)

    def enter(self, rid: str, chain: Sequence[int]) -> None:
        """A request is on its way. From now on it promises what nobody before it does.

        Args:
            rid: of the request.
            chain: hashes of the full blocks of its prompt.

        Raises:
            ValueError: it has entered already.
        """
        if rid in self._entered:
            raise ValueError(f"request {rid} promises already")
        owner = self._owner
        # From the end: below the deepest promised block there may be others that are published already.
        own = len(chain)
        while own and owner.get(chain[own - 1]) is None:
            own -= 1
        self._number += 1
        for value in chain[own:]:
            owner[value] = self._number
        self._entered[rid] = _Entered(self._number, chain, own, own)

    def promised(self, rid: str) -> int:
        """Tokens of the longest prefix of a request that ends in a block which an earlier one promises.

        0 when there is none, and for a request that hasn't entered.
        """
        entered = self._entered.get(rid)
        if entered is None:
            return 0
        chain, end = entered.chain, entered.shared
        # A block that a later request promises counts as nobody's: else two could wait for each other.
        while end and self._owner.get(chain[end - 1], entered.number) >= entered.number:
            end -= 1
        entered.shared = end
        return end * self._block

    def publish(self, rid: str, upto: int) -> None:
        """The first `upto` tokens of the prompt are computed, or never will be: the request promises only the rest.

        A request that promises nothing more is forgotten.
        """
        entered = self._entered.get(rid)
        if entered is None:
            return
        end = min(upto // self._block, len(entered.chain))
        for value in entered.chain[max(entered.own, entered.published) : end]:
            self._owner.pop(value, None)  # two blocks of equal hash are one entry
        entered.published = max(entered.published, end)
        if end == len(entered.chain):
            del self._entered[rid]

    def leave(self, rid: str) -> None:
        """The request has ended, and nothing more of its prompt will be computed."""
        entered = self._entered.get(rid)
        if entered is not None:
            self.publish(rid, len(entered.chain) * self._block)
