"""One rank's part in the rounds: applies a broadcast to the rank's cache, votes, and applies the outcome.

Used by one thread. What a gather admits belongs to the LOOP. What goes on at a lower endpoint stays held and is
trimmed by the next attempt, so that nobody takes it meanwhile. Everything else is released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sglang_wavepp.admission.decision import Outcome, Verdict, decide
from sglang_wavepp.admission.hint import Hint
from sglang_wavepp.admission.hold import AdmissionCache, Hold, Shortage
from sglang_wavepp.admission.messages import Attempt, AttemptVote, Broadcast, Gather, InstallRecord, Vote


@dataclass(frozen=True, slots=True)
class MemberEvents:
    """What a rank's LOOP has to learn from the rounds.

    Attributes:
        installed: requests that this rank now knows.
        withdrawn: ids of requests that were aborted before they were admitted.
    """

    installed: tuple[InstallRecord, ...] = ()
    withdrawn: tuple[str, ...] = ()


class RoundsMember:
    """Keeps the requests that are being admitted, as this rank knows them.

    Args:
        rank: index of this rank.
        cache: this rank's cache.
        takes_long: whether this rank's LOOP needs a while to build a request, which then can't be judged before
            `built` was called.
    """

    def __init__(
        self,
        *,
        rank: int,
        cache: AdmissionCache,
        takes_long: Callable[[InstallRecord], bool] = lambda record: False,
    ) -> None:
        self.rank = rank
        self._cache = cache
        self._takes_long = takes_long
        self._unbuilt: set[str] = set()
        self._records: dict[str, InstallRecord] = {}
        self._open: Broadcast | None = None
        self._installed: list[InstallRecord] = []
        self._withdrawn: list[str] = []
        self._shortages: dict[str, Shortage] = {}

    @property
    def known(self) -> int:
        """Requests in admission."""
        return len(self._records)

    @property
    def shortages(self) -> dict[str, Shortage]:
        """What this rank was short of in the last round, by request; for telemetry."""
        return dict(self._shortages)

    def drain(self) -> MemberEvents:
        """Events since the last call."""
        events = MemberEvents(tuple(self._installed), tuple(self._withdrawn))
        self._installed.clear()
        self._withdrawn.clear()
        return events

    def built(self, rid: str) -> None:
        """This rank's LOOP has built a request that takes long."""
        self._unbuilt.discard(rid)

    def on_broadcast(self, broadcast: Broadcast, *, applied_command: int) -> Vote:
        """Apply aborts, records, attempts and hints, in this order.

        Args:
            broadcast: of the next round; the gather of the round before must have been applied.
            applied_command: number of the last command that this rank's LOOP has applied.

        Raises:
            RuntimeError: the round before is still open.
        """
        if self._open is not None:
            raise RuntimeError(f"round {broadcast.round} came before the gather of round {self._open.round}")
        self._open = broadcast
        # Read before the first hold: what comes back while holds fail must still count as news to the leader.
        releases = self._cache.releases
        for rid, _ in broadcast.aborts:
            if self._records.pop(rid, None) is not None:
                self._cache.release(rid)
                self._cache.forget(rid)
                self._unbuilt.discard(rid)
                self._withdrawn.append(rid)
        for record in broadcast.records:
            if record.rid not in self._records:
                self._records[record.rid] = record
                self._installed.append(record)
                if self._takes_long(record):
                    self._unbuilt.add(record.rid)
        fenced = applied_command < broadcast.after_command
        attempts = self._attempt_all(broadcast.attempts, fenced=fenced)
        hints = {rid: self._hint(rid, epoch) for rid, epoch in broadcast.hints}
        return Vote(
            round=broadcast.round,
            rank=self.rank,
            applied_command=applied_command,
            releases=releases,
            hints=hints,
            attempts=attempts,
        )

    def on_gather(self, gather: Gather) -> tuple[Outcome, ...]:
        """Release what was not admitted, forget what was.

        Raises:
            RuntimeError: the gather is not that of the open round.
            VoteError: see `decide`.
        """
        if self._open is None or self._open.round != gather.round:
            raise RuntimeError(f"gather of round {gather.round}, open is {self._open and self._open.round}")
        outcomes = decide(self._open.attempts, gather.votes)
        self._open = None
        for outcome in outcomes:
            if outcome.verdict is Verdict.ADMITTED:
                self._records.pop(outcome.rid, None)
                self._cache.admitted(outcome.rid)
            elif outcome.verdict is not Verdict.LOWER:
                self._cache.release(outcome.rid)
        return outcomes

    def _known(self, rid: str, epoch: int) -> InstallRecord | None:
        record = self._records.get(rid)
        if record is None or record.epoch != epoch or rid in self._unbuilt:
            return None
        return record

    def _hint(self, rid: str, epoch: int) -> Hint | None:
        record = self._known(rid, epoch)
        return None if record is None else self._cache.hint(record)

    def _attempt(self, record: InstallRecord, limit: int) -> Hold | Shortage:
        act = self._cache.trim if self._cache.holds(record.rid) else self._cache.hold
        return act(record, limit)

    def _attempt_all(self, attempts: Iterable[Attempt], *, fenced: bool) -> dict[str, AttemptVote]:
        self._shortages.clear()
        votes: dict[str, AttemptVote] = {}
        blocked = False
        for attempt in attempts:
            record = self._known(attempt.rid, attempt.epoch)
            if fenced or record is None:
                votes[attempt.rid] = AttemptVote(kind="pending")
            elif blocked:
                votes[attempt.rid] = AttemptVote(kind="nocap")
            else:
                held = self._attempt(record, min(attempt.candidate, record.cache_limit))
                if isinstance(held, Hold):
                    votes[attempt.rid] = AttemptVote(
                        kind="held", endpoint=held.endpoint, committed=held.endpoint == attempt.candidate
                    )
                else:
                    # Whoever comes later in arrival order must not take what this request is waiting for.
                    blocked = True
                    self._shortages[attempt.rid] = held
                    votes[attempt.rid] = AttemptVote(kind="nocap")
        return votes
