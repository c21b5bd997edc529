"""Histories written by hand: content from before, whole rounds, deliveries up to a point."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from model.oracle.config import Config
from model.oracle.decide import Outcome
from model.oracle.messages import Command
from model.oracle.rules import Rules
from model.oracle.simulation import Simulation


class ByHand(Simulation):
    """Steps in larger portions. Nothing arrives, aborts or gets lost by itself, and followers apply no command unless
    told to."""

    def ask(self, prompt: Sequence[int], output: int = 1) -> int:
        """A request that is not refused."""
        rid = self.submit(list(prompt), output)
        assert rid is not None, f"{prompt} was refused"
        return rid

    def open_round(self) -> None:
        """Broadcast on all ranks, none of which has operated yet."""
        self.do("round", *(f"broadcast {rank.index}" for rank in self.ranks))

    def operate(self, rank: int) -> None:
        """All that is left of the open round on one rank, up to its vote."""
        while self.ranks[rank].operations:
            self.do(f"operate {rank}")
        self.do(f"vote {rank}")

    def close_round(self) -> tuple[Outcome, ...]:
        """Operations, votes and gathers of all ranks."""
        for rank in self.ranks:
            if not rank.voted:
                self.operate(rank.index)
        self.do(*(f"gather {rank.index}" for rank in self.ranks))
        return self.ranks[0].decided[self.leader.round]

    def round(self) -> tuple[Outcome, ...]:
        """A whole round; the outcomes of its attempts."""
        self.open_round()
        return self.close_round()

    def pending(self, rank: int) -> list[Command]:
        """Commands that a follower has not applied."""
        return list(self._commands[rank])

    def apply_all(self, rank: int) -> None:
        """A follower catches up as far as the other stages let it."""
        while f"command {rank}" in dict(self.enabled()):
            self.do(f"command {rank}")

    def catch_up(self) -> None:
        for rank in self.ranks[1:]:
            self.apply_all(rank.index)

    def finish(self) -> None:
        """On to the end by the random scheduler, with all checks."""
        self.run()

    def endpoint(self, rank: int, rid: int) -> int | None:
        """What a rank holds for a request; None when nothing."""
        request = self.ranks[rank].requests.get(rid)
        return (
            request.holding.endpoint
            if request is not None and request.holding.locked + request.holding.need
            else None
        )


class Script(ByHand):
    """A history of the model.

    Args:
        cached: per entry a rank, tokens that it has cached, and positions of recurrent snapshots among them.
    """

    def __init__(
        self,
        config: Config,
        rules: Rules | None = None,
        *,
        cached: Iterable[tuple[int, Sequence[int], Sequence[int]]] = (),
    ) -> None:
        super().__init__(rules, quiet(config))
        for rank, tokens, snapshots in cached:
            self.ranks[rank].warm(tokens, snapshots)


def quiet(config: Config) -> Config:
    """The same sizes, and no traffic but what is asked for."""
    return replace(config, requests=0, aborts=0.0, chaos=0.0)
