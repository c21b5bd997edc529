"""What each span of the requests on their way publishes: the rule, and where their prompts leave each other's.

Rank 0 keeps it and puts the answers into its commands, so that every rank publishes the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from sglang_wavepp.planning.snapshots import PublishRule, common_end
from sglang_wavepp.planning.spans import PlannedSpan

COMPARED: Final = 64
"""Earlier prompts with the same first block that a new one is compared with: those that are computed next."""


@dataclass(slots=True)
class _Prompt:
    chain: Sequence[int] = ()
    length: int = 0
    next: int = 0
    branches: set[int] = field(default_factory=set)


class Publisher:
    """Positions for the spans of requests that are being computed, and for those that will be.

    Used by the LOOP, except for `announce`.

    Args:
        rule: which positions are worth their price.
        block: tokens of an entry of a hash chain.
    """

    def __init__(self, rule: PublishRule, *, block: int) -> None:
        self.rule = rule
        self._block = block
        self._prompts: dict[str, _Prompt] = {}
        self._kin: dict[int, dict[str, _Prompt]] = {}
        """Prompts by the hash of their first block: only these have anything in common."""
        self._announced: deque[tuple[str, Sequence[int]]] = deque()

    def __len__(self) -> int:
        """Requests with spans to come."""
        return len(self._prompts)

    def announce(self, rid: str, chain: Sequence[int]) -> None:
        """A request has been hashed; it may be admitted later. Called from any thread.

        Args:
            chain: hashes of the full blocks of its prompt.
        """
        self._announced.append((rid, chain))

    def admit(self, rid: str, *, prompt: int, endpoint: int, reach: int = 0) -> None:
        """Spans of a request follow.

        Args:
            prompt: tokens of its prompt.
            endpoint: position of its first span.
            reach: tokens of it that the cache holds, whether or not anybody can resume from their end.
        """
        self._take_announced()
        known = self._prompts.setdefault(rid, _Prompt())
        known.length, known.next = prompt, endpoint
        if reach > endpoint:
            known.branches.add(reach)

    def position(self, span: PlannedSpan) -> int:
        """What this span publishes; it is launched now, and is the next one of its request.

        Raises:
            KeyError: its request wasn't admitted.
        """
        self._take_announced()
        prompt = self._prompts[span.rid]
        found = self.rule.position(span, prompt=prompt.length, branches=prompt.branches)
        prompt.next = span.end
        prompt.branches = {each for each in prompt.branches if each > span.end}
        if span.end >= prompt.length:
            self.forget(span.rid)
        return found

    def forget(self, rid: str) -> None:
        """No span of the request follows; nothing when it isn't known. What it leaves open is for the next one."""
        self._take_announced()
        known = self._prompts.pop(rid, None)
        if known is None or not known.chain:
            return
        kin = self._kin[known.chain[0]]
        del kin[rid]
        left = {each for each in known.branches if each > known.next}
        for other in islice(kin.values(), COMPARED if left else 0):
            shared = common_end(known.chain, other.chain) * self._block
            heir = {each for each in left if each <= shared}
            other.branches |= heir
            left -= heir
        if not kin:
            del self._kin[known.chain[0]]

    def _take_announced(self) -> None:
        while self._announced:
            rid, chain = self._announced.popleft()
            if chain and rid not in self._prompts:
                self._meet(rid, _Prompt(chain))

    def _meet(self, rid: str, new: _Prompt) -> None:
        """A position that prompts have in common is for the one that computes it first: the earliest of them, or, if
        that one has passed it, the new one."""
        kin = self._kin.setdefault(new.chain[0], {})
        covered = 0
        for other in islice(kin.values(), COMPARED):
            shared = common_end(new.chain, other.chain) * self._block
            if shared > covered:
                covered = shared
                (other if shared > other.next else new).branches.add(shared)
        kin[rid] = self._prompts[rid] = new
