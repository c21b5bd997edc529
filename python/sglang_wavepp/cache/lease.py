"""Admission on one rank by hint, lease and escrow.

A hint asks the index and touches no tree. A lease then walks the tree once, at most to the candidate that all ranks
agreed on, pins what it finds, and promises the rest in the same critical section; an escrow says what stands behind
the promise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sglang_wavepp.admission.block_hash import block_hashes, namespace_seed
from sglang_wavepp.admission.hint import Hint, HintProbe
from sglang_wavepp.admission.hold import Hold, Shortage
from sglang_wavepp.admission.messages import InstallRecord
from sglang_wavepp.admission.pools import PoolLimits, positions
from sglang_wavepp.cache.escrow import EscrowBook, VictimSource
from sglang_wavepp.cache.holdings import Holdings, Match, PrefixTree, cap
from sglang_wavepp.cache.ledger import LedgerError
from sglang_wavepp.cache.wanted_blocks import WantedBlocks

EARLIER_SNAPSHOTS = 4
"""Earlier recurrent snapshots that a lease looks at when there is no slot for the one it found."""


class LeasedTree(PrefixTree, VictimSource, Protocol):
    """A tree that also says what may go."""


@dataclass(slots=True)
class HintFigures:
    """What one rank's hints came to so far; for metrics.

    Attributes:
        hints: hints given.
        stale_tokens: tokens that hints promised and leases did not find.
    """

    hints: int = 0
    stale_tokens: int = 0


class LeaseAdmission(Holdings):
    """Holdings with an index for hints and an escrow behind each promise.

    Args:
        tree: the rank's tree; its mutex guards everything but the hints.
        limits: sizes of the rank's pools.
        probe: hints from the rank's index.
        block: tokens of a hashed block.
        headroom: tokens that a request beside others leaves unpinned and unpromised, as far as its own need allows.
        wanted: learns which blocks the requests in admission name; the tree's, where it has one.
        hashed: hears of every request and the hashes of its full blocks, once, before its first hint.
    """

    def __init__(
        self,
        *,
        tree: LeasedTree,
        limits: PoolLimits,
        probe: HintProbe,
        block: int,
        headroom: int = 0,
        wanted: WantedBlocks | None = None,
        hashed: Callable[[str, Sequence[int]], None] | None = None,
    ) -> None:
        super().__init__(tree=tree, limits=limits)
        self._probe = probe
        self._block = block
        self._headroom = headroom
        self._wanted = WantedBlocks() if wanted is None else wanted
        self._on_hashed = hashed
        self._chains: dict[str, Sequence[int]] = {}
        self._hinted: dict[str, int] = {}
        self.escrows = EscrowBook(tree)
        """Hears from the tree what becomes of victims; whoever builds the rank connects the two."""
        self.hint_figures = HintFigures()

    # --- admission thread -----------------------------------------------------------------------------------

    def hint(self, record: InstallRecord) -> Hint:
        """What the index knows of the request's blocks; takes no tree mutex. The prompt is hashed once."""
        chain = self._chains.get(record.rid)
        if chain is None:
            seed = namespace_seed(extra_key=record.extra_key, cache_salt=record.cache_salt)
            chain = block_hashes(record.token_ids, block=self._block, seed=seed)
            self._chains[record.rid] = chain
            self._wanted.enter(record.rid, chain)
            if self._on_hashed is not None:
                self._on_hashed(record.rid, chain)
        hint = self._probe.hint(chain, cap(record, record.cache_limit))
        if hint.sparse:
            last = hint.endpoint // self._block - 1
            self._wanted.resumes(record.rid, chain[last] if last >= 0 else None)
        self._hinted[record.rid] = hint.endpoint
        self._reach[record.rid] = hint.reach
        self.hint_figures.hints += 1
        return hint

    def hold(self, record: InstallRecord, limit: int) -> Hold | Shortage:
        """See `Holdings.hold`."""
        held = super().hold(record, limit)
        if isinstance(held, Hold):
            expected = min(limit, self._hinted.get(record.rid, 0))
            self.hint_figures.stale_tokens += max(expected - held.endpoint, 0)
        return held

    def admitted(self, rid: str) -> None:
        """See `Holdings.admitted`: what it names is pinned now, or it computes it."""
        super().admitted(rid)
        self._wanted.leave(rid)

    def forget(self, rid: str) -> None:
        """See `Holdings.forget`."""
        super().forget(rid)
        self._wanted.leave(rid)
        self._chains.pop(rid, None)
        self._hinted.pop(rid, None)

    @property
    def hashed(self) -> int:
        """Requests whose hashes are kept: those in admission and those admitted."""
        return len(self._chains)

    @property
    def probes(self) -> int:
        """Look-ups in the index so far."""
        return self._probe.probes

    # --- LOOP -----------------------------------------------------------------------------------------------

    def chain(self, rid: str) -> Sequence[int] | None:
        """Hashes of the full blocks of the request's prompt, None when it was never hinted here."""
        return self._chains.get(rid)

    def hand_over(self, rid: str) -> None:
        """See `Holdings.hand_over`."""
        with self.mutex:
            super().hand_over(rid)
            self.escrows.settle()

    def draw_all(self, uptos: Mapping[str, int]) -> None:
        """See `Holdings.draw_all`. Afterwards as many places are free; victims go for it if need be."""
        with self.mutex:
            drawn = {rid: self._ledger.draw(rid, upto) for rid, upto in uptos.items()}
            self.escrows.draw_all({rid: tokens for rid, tokens in drawn.items() if tokens})

    # --- checks ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Verify that every promise can be kept, and that each is backed.

        Raises:
            LedgerError: names what is short.
            EscrowError: the escrows do not add up.
        """
        with self.mutex:
            super().check()
            self.escrows.settle()
            self.escrows.check()
            undrawn = self._ledger.undrawn()
            if self.escrows.needs() != undrawn:
                raise LedgerError(f"escrows are for {self.escrows.needs()}, promised are {undrawn}")
            if self.escrows.owed:
                raise LedgerError(f"{self.escrows.owed} promised tokens are backed by nothing")

    def check_idle(self) -> None:
        """Verify that nothing leaked.

        Raises:
            LedgerError: with the numbers.
        """
        with self.mutex:
            super().check_idle()
            if len(self.escrows) or self.escrows.victims:
                raise LedgerError(
                    f"idle, but {len(self.escrows)} escrows and {self.escrows.victims} victims are held"
                )

    # --- steps ----------------------------------------------------------------------------------------------

    def _try_hold(self, record: InstallRecord, limit: int) -> Shortage | None:
        found = self._tree.match(record, cap(record, limit))
        shortage = self._promise(record, found, self._tree.lock(found.node))
        # An earlier snapshot costs no slot when another lease pins it already; a shorter prefix of its own would
        # free no token that it doesn't need again, so a shortage of tokens can only be waited out.
        for _ in range(EARLIER_SNAPSHOTS):
            if shortage is not Shortage.SLOTS or not found.endpoint:
                break
            found = self._tree.match(record, cap(record, found.endpoint - 1))
            if found.snapshot is not None and self._ledger.pins(found.snapshot):
                shortage = self._promise(record, found, self._tree.lock(found.node))
        return shortage

    def _promise(self, record: InstallRecord, found: Match, receipt: Any) -> Shortage | None:
        if not self._leaves_headroom(record, found):
            self._tree.unlock(receipt)
            return Shortage.HEADROOM
        shortage = super()._promise(record, found, receipt)
        if shortage is None:
            self.escrows.open(record.rid, self._ledger.undrawn_of(record.rid))
        return shortage

    def _leaves_headroom(self, record: InstallRecord, found: Match) -> bool:
        if not len(self._ledger):
            return True
        limits = self._ledger.limits
        total = limits.paged(positions(prompt=len(record.token_ids), max_new_tokens=record.max_new_tokens))
        headroom = min(self._headroom, limits.usable_tokens - total)
        left = self._tree.available() - self._ledger.reserved_tokens - max(total - found.endpoint, 0)
        return left >= headroom or left < 0  # then it is room that is short, and the ledger says so

    def _end_promise(self, rid: str) -> None:
        super()._end_promise(rid)
        self.escrows.close(rid)
