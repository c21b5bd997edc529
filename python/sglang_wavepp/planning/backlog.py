"""What a device still has to do, and has done without a pause: the quantities from which waves are sized.

Work is counted in tokens and in pairs (tokens times their context), so it can be priced by whatever cost is known at
the moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sglang_wavepp.planning.cost import WaveCost
from sglang_wavepp.planning.spans import PlannedSpan, Remainder
from sglang_wavepp.planning.supply import Supply


@dataclass(frozen=True, slots=True)
class Backlog:
    """Work in seconds of one stage, without what waves cost by themselves.

    Attributes:
        head: of the whole request that is first in the queue, what has been computed of it included.
        others: of all other requests that are not finished, each of them whole.
        run: launched since the pipeline was last empty, and still to be launched.
    """

    head: float
    others: float
    run: float


@dataclass(slots=True)
class Ledger:
    """Keeps what a supply alone doesn't tell: where unfinished requests began, and what this busy time has computed."""

    _begun: dict[str, tuple[int, int]] = field(default_factory=dict)
    _tokens: int = 0
    _pairs: int = 0

    def read(self, supply: Supply, looked: Sequence[Remainder], cost: WaveCost) -> Backlog:
        """The backlog of a supply.

        Args:
            looked: the first requests of `supply.queue`, at least one. Tokens behind them, and tokens of requests in
                admission, are taken to be as expensive as theirs.
        """
        if not supply.flying:
            self._tokens = self._pairs = 0
        known = self._begun
        begun: dict[str, tuple[int, int]] = {}
        for spans in supply.flying:
            for span in spans:
                if span.rid not in begun and span.rid in known:
                    begun[span.rid] = known[span.rid]
        tokens = pairs = 0
        for item in looked:
            start, prompt, rid = item.start, item.prompt, item.rid
            tokens += prompt - start
            pairs += prompt * prompt - start * start
            if rid not in begun:
                begun[rid] = known.get(rid) or (start, prompt)
        self._begun = begun
        whole = pairs_of_whole = 0
        for start, prompt in begun.values():
            whole += prompt - start
            pairs_of_whole += prompt * prompt - start * start
        left = _seconds(cost, tokens, pairs)
        unseen = (max(0, supply.unplanned - tokens) + supply.arriving_tokens) * left / tokens
        first = begun[looked[0].rid]
        head = cost.work(start=first[0], end=first[1])
        return Backlog(
            head=head,
            others=max(0.0, _seconds(cost, whole, pairs_of_whole) - head + unseen),
            run=_seconds(cost, self._tokens, self._pairs) + left + unseen,
        )

    def launched(self, spans: Sequence[PlannedSpan]) -> None:
        """A wave goes on its way."""
        for span in spans:
            self._tokens += span.length
            self._pairs += span.end * span.end - span.start * span.start


def _seconds(cost: WaveCost, tokens: int, pairs: int) -> float:
    """Work of so many tokens; `pairs` counts both directions, so it stays a whole number."""
    return cost.per_token * tokens + cost.per_pair * pairs / 2
