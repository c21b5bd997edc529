"""Whose content goes for whom: what backs each promise of room, as a view over the capacity ledger.

The ledger decides by counting; an escrow then says what stands behind a promise: places that are free, and victims,
cached content in eviction order. A victim stays in the tree, can be read, and can be claimed by another request; then
the escrow takes other content in its place before it lets go of the claimed one. Several escrows may share a victim,
each for its part, so that whatever the counter allows can be backed exactly.

Everything here happens under the cache's mutex.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


class EscrowError(RuntimeError):
    """An escrow can't give what was promised: somebody took what is not theirs."""


class VictimSource(Protocol):
    """The content of one rank's tree, and the pool under it. Counts are tokens, in whole pages."""

    def free(self) -> int:
        """Places that nothing uses."""

    def candidates(self) -> Iterable[tuple[Hashable, int]]:
        """Nodes that may go, in the order in which they would, each with the tokens of it that nobody holds."""

    def unwanted_candidates(self) -> Iterable[tuple[Hashable, int]]:
        """The `candidates` that no request in admission names."""

    def hold(self, node: Hashable, tokens: int) -> None:
        """Nobody else may choose these tokens of the node."""

    def unhold(self, node: Hashable, tokens: int) -> None:
        """Undo `hold`."""

    def evict(self, nodes: Sequence[Hashable]) -> None:
        """Take nodes out of the tree, each with what hangs below it; `removed` is called for each held one.

        Many at once cost a third of as many one by one. A node that went with an earlier one is passed over.
        """

    def is_locked(self, node: Hashable) -> bool:
        """Whether a request uses the node."""

    def wanted(self, nodes: Iterable[Hashable]) -> list[Hashable]:
        """Those that a request in admission names, in the order given; `candidates` gives them last."""

    def take_claims(self) -> Iterable[Hashable]:
        """Held nodes that were locked since the last call."""


@dataclass(slots=True)
class _Escrow:
    need: int
    """Tokens promised and not drawn; always `credit`, plus the victims' tokens, plus what is owed."""
    credit: int = 0
    """Free places that back it."""
    victims: dict[Hashable, int] = field(default_factory=dict)
    """Tokens of each victim, in eviction order."""
    backed: int = 0
    """Sum over `victims`."""

    @property
    def owed(self) -> int:
        return self.need - self.credit - self.backed


@dataclass(slots=True)
class EscrowFigures:
    """What happened so far, in tokens; for metrics.

    Attributes:
        substituted: of victims that were claimed by another request and replaced.
        exchanged: of victims that a waiting request came to name, and that were replaced by others.
        evicted: of victims that went when their escrow was drawn.
        spared: of victims that stayed, because room had become free meanwhile.
    """

    substituted: int = 0
    exchanged: int = 0
    evicted: int = 0
    spared: int = 0


class EscrowBook:
    """The escrows of one rank.

    Args:
        source: the rank's tree and pool.
    """

    def __init__(self, source: VictimSource) -> None:
        self._source = source
        self._escrows: dict[str, _Escrow] = {}
        self._holders: dict[Hashable, dict[str, int]] = {}
        self._owing: set[str] = set()
        self._credit = 0
        self.figures = EscrowFigures()

    # --- promises -------------------------------------------------------------------------------------------

    def open(self, rid: str, tokens: int) -> None:
        """Back a promise that the ledger has made.

        Raises:
            EscrowError: the request has an escrow already.
        """
        if rid in self._escrows:
            raise EscrowError(f"request {rid} has an escrow already")
        self.settle()
        self._escrows[rid] = escrow = _Escrow(tokens)
        self._fill(rid, escrow)

    def draw(self, rid: str, tokens: int) -> None:
        """`draw_all` for one request."""
        self.draw_all({rid: tokens})

    def draw_all(self, demands: Mapping[str, int]) -> None:
        """See to it that so many places are free for each of these requests, and count them as theirs from now on.

        One allocation for all of them follows in the same critical section: until then the places look free and are
        nobody's to back a promise with. Free places that back nobody go before victims do.

        Args:
            demands: tokens by request.

        Raises:
            EscrowError: beyond what was promised, or somebody took what backs it.
        """
        self.settle()
        drawn = 0
        for rid, tokens in demands.items():
            self._draw(rid, tokens, drawn)
            drawn += tokens
        free = self._source.free()
        if free < drawn:
            raise EscrowError(f"{list(demands)} run short: {drawn} tokens drawn, {free} places are free")

    def close(self, rid: str) -> None:
        """The promise ended: its victims are anybody's again.

        Raises:
            EscrowError: the request has no escrow.
        """
        escrow = self._of(rid)
        self._let_go(rid, escrow, escrow.backed)
        self._credit -= escrow.credit
        self._owing.discard(rid)
        del self._escrows[rid]
        self.settle()

    def settle(self) -> None:
        """Replace victims that were claimed, and back what is still owed.

        Something stays owed only while SGLang defers frees: the counter has room that the pool shows later.
        """
        for node in self._source.take_claims():
            holders = self._holders.get(node)
            if holders is None or not self._source.is_locked(node):
                continue
            for rid, tokens in tuple(holders.items()):
                escrow = self._escrows[rid]
                self._back(rid, escrow, tokens)  # the replacement first
                self._drop(rid, escrow, node, tokens)
                self._source.unhold(node, tokens)
                self.figures.substituted += tokens
                self._note_debt(rid, escrow)
        for rid in tuple(self._owing):
            self._fill(rid, self._escrows[rid])

    # --- what the tree tells --------------------------------------------------------------------------------

    def split(self, upper: Hashable, upper_tokens: int, lower: Hashable, lower_tokens: int) -> None:
        """A held node, known as `lower`, was cut; its first part is now `upper`. The lower part goes first.

        Args:
            upper: the new node.
            upper_tokens: held tokens that are there now.
            lower: the node that keeps its name.
            lower_tokens: held tokens that it keeps.

        Raises:
            EscrowError: other tokens were held.
        """
        if sum(self._holders.get(lower, {}).values()) != upper_tokens + lower_tokens:
            raise EscrowError(
                f"{upper_tokens + lower_tokens} tokens of node {lower} are not what is held of it"
            )
        for rid, tokens in tuple(self._holders.get(lower, {}).items()):
            kept = min(tokens, lower_tokens)
            lower_tokens -= kept
            if kept == tokens:
                continue
            escrow = self._escrows[rid]
            self._drop(rid, escrow, lower, tokens - kept)
            self._add(rid, escrow, upper, tokens - kept)

    def removed(self, node: Hashable, tokens: int) -> None:
        """A held node left the tree: its places are free, or will be in a moment, and back the same promises.

        Raises:
            EscrowError: other tokens were held.
        """
        if sum(self._holders.get(node, {}).values()) != tokens:
            raise EscrowError(f"{tokens} tokens of node {node} are not what is held of it")
        for rid, share in tuple(self._holders.get(node, {}).items()):
            escrow = self._escrows[rid]
            self._drop(rid, escrow, node, share)
            self._add_credit(escrow, share)

    def cleared(self) -> None:
        """The tree was emptied, and every place with it.

        Raises:
            EscrowError: somebody was promised something; a flush is for idle ranks.
        """
        if self._escrows:
            raise EscrowError(f"the cache was emptied while {sorted(self._escrows)} were promised room in it")
        self._holders.clear()

    # --- looking --------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._escrows)

    @property
    def owed(self) -> int:
        """Tokens that nothing backs at the moment."""
        return sum(self._escrows[rid].owed for rid in self._owing)

    @property
    def victims(self) -> int:
        """Nodes that are held."""
        return len(self._holders)

    @property
    def victim_tokens(self) -> int:
        """Tokens of victims."""
        return sum(escrow.backed for escrow in self._escrows.values())

    def needs(self) -> dict[str, int]:
        """Tokens promised and not drawn, by request."""
        return {rid: escrow.need for rid, escrow in self._escrows.items()}

    def holders(self) -> dict[Hashable, dict[str, int]]:
        """Who holds how many tokens of which node."""
        return {node: dict(holders) for node, holders in self._holders.items()}

    def check(self) -> None:
        """Verify the sums.

        Raises:
            EscrowError: names the request or node whose books do not balance.
        """
        for rid, escrow in self._escrows.items():
            backed = sum(escrow.victims.values())
            if backed != escrow.backed or min(escrow.need, escrow.credit, escrow.owed) < 0:
                raise EscrowError(f"escrow of {rid} doesn't add up: {escrow}")
            if any(self._holders.get(node, {}).get(rid) != n or n < 1 for node, n in escrow.victims.items()):
                raise EscrowError(f"victims of {rid} aren't held for it: {escrow.victims}")
            if escrow.owed and rid not in self._owing:
                raise EscrowError(f"{escrow.owed} tokens of {rid} are owed and nobody knows")
        for node, holders in self._holders.items():
            if not holders or any(node not in self._escrows[rid].victims for rid in holders):
                raise EscrowError(f"node {node} is held for {holders}, who don't know")
        if self._credit != sum(escrow.credit for escrow in self._escrows.values()):
            raise EscrowError(
                f"{self._credit} free places are counted as taken, the escrows have another sum"
            )

    # --- moves ----------------------------------------------------------------------------------------------

    def _draw(self, rid: str, tokens: int, taken: int) -> None:
        """Draw for one request, when so many of the free places are `taken` already."""
        escrow = self._of(rid)
        if tokens > escrow.need:
            raise EscrowError(f"request {rid} draws {tokens} tokens, {escrow.need} are left of its promise")
        if tokens > escrow.credit:
            spare = min(tokens - escrow.credit, max(self._source.free() - self._credit - taken, 0))
            self._add_credit(escrow, spare)
            self.figures.spared += self._let_go(rid, escrow, -escrow.owed)
        if tokens > escrow.credit and escrow.victims:
            self._evict(rid, escrow, tokens - escrow.credit)
        if escrow.credit < tokens:
            raise EscrowError(
                f"request {rid} runs short: {tokens} tokens drawn, {escrow.credit} are free for it"
            )
        escrow.credit -= tokens
        escrow.need -= tokens
        self._credit -= tokens

    def _of(self, rid: str) -> _Escrow:
        escrow = self._escrows.get(rid)
        if escrow is None:
            raise EscrowError(f"request {rid} has no escrow")
        return escrow

    def _fill(self, rid: str, escrow: _Escrow) -> None:
        self._back(rid, escrow, escrow.owed)
        self._note_debt(rid, escrow)

    def _note_debt(self, rid: str, escrow: _Escrow) -> None:
        if escrow.owed:
            self._owing.add(rid)
        else:
            self._owing.discard(rid)

    def _back(self, rid: str, escrow: _Escrow, tokens: int) -> None:
        """Free places first, then victims; less when there is no more."""
        if tokens <= 0:
            return
        spare = min(tokens, max(self._source.free() - self._credit, 0))
        self._add_credit(escrow, spare)
        tokens -= spare
        if not tokens:
            return
        for node, unheld in self._source.candidates():
            part = min(unheld, tokens)
            self._source.hold(node, part)  # before the next step: what is held whole lets its parent follow
            self._add(rid, escrow, node, part)
            tokens -= part
            if not tokens:
                break

    def _evict(self, rid: str, escrow: _Escrow, tokens: int) -> None:
        """Victims go, until so many tokens of this escrow's have. Those that have become wanted since they were chosen
        go last, and not before others were looked for in their place."""
        wanted = dict.fromkeys(self._source.wanted(escrow.victims))
        if wanted:
            others = escrow.backed - sum(map(escrow.victims.__getitem__, wanted))
            self._exchange(rid, escrow, list(wanted), tokens - others)
        nodes: list[Hashable] = []
        # Without wanted ones no more of the victims is looked at than goes.
        for node in sorted(escrow.victims, key=wanted.__contains__) if wanted else escrow.victims:
            nodes.append(node)
            tokens -= escrow.victims[node]
            if tokens <= 0:
                break
        before = escrow.credit
        self._source.evict(nodes)
        left = [node for node in nodes if node in escrow.victims]
        if left:
            raise EscrowError(f"victims {left} were evicted, and nobody was told")
        self.figures.evicted += escrow.credit - before

    def _exchange(self, rid: str, escrow: _Escrow, wanted: list[Hashable], tokens: int) -> None:
        """Choose others for so many tokens of these victims, as far as there are any that nobody wants.

        Begins at the end: a node before what hangs below it.
        """
        if tokens <= 0:
            return
        for other, unheld in self._source.unwanted_candidates():
            while wanted and tokens and unheld:
                node = wanted[-1]
                part = min(unheld, escrow.victims[node], tokens)
                self._source.hold(other, part)
                self._add(rid, escrow, other, part)
                self._drop(rid, escrow, node, part)
                self._source.unhold(node, part)
                self.figures.exchanged += part
                unheld -= part
                tokens -= part
                if node not in escrow.victims:
                    wanted.pop()
            if not wanted or not tokens:
                break

    def _let_go(self, rid: str, escrow: _Escrow, tokens: int) -> int:
        """Give victims back, the last to go first; how many tokens were."""
        left = tokens
        while left > 0 and escrow.victims:
            node, held = next(reversed(escrow.victims.items()))
            part = min(held, left)
            self._drop(rid, escrow, node, part)
            self._source.unhold(node, part)
            left -= part
        return max(tokens, 0) - max(left, 0)

    def _add_credit(self, escrow: _Escrow, tokens: int) -> None:
        escrow.credit += tokens
        self._credit += tokens

    def _add(self, rid: str, escrow: _Escrow, node: Hashable, tokens: int) -> None:
        escrow.victims[node] = escrow.victims.get(node, 0) + tokens
        escrow.backed += tokens
        holders = self._holders.setdefault(node, {})
        holders[rid] = holders.get(rid, 0) + tokens

    def _drop(self, rid: str, escrow: _Escrow, node: Hashable, tokens: int) -> None:
        holders = self._holders[node]
        escrow.backed -= tokens
        if holders[rid] == tokens:
            del holders[rid], escrow.victims[node]
            if not holders:
                del self._holders[node]
        else:
            holders[rid] -= tokens
            escrow.victims[node] -= tokens
