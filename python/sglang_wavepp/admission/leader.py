"""Rank 0's part in the rounds: keeps arrival order, opens rounds, and turns the outcomes into events for its
LOOP.

A request is announced, hinted, attempted, and then admitted, attempted again lower, or left waiting. None is attempted
before its tokens are wanted: a prefix that others are about to compute is found by whoever asks late, and what is
pinned early is missing elsewhere.

First come, first served holds as follows. No request is attempted for the first time, or again after waiting, behind
one that waits or that has no fresh hint. A request that goes on at a lower endpoint, or that some rank could not judge,
may be passed by requests that are attempted in the same round. Once that has happened, nothing new is named behind it
until it is admitted, so that fewer than `max_batch` requests ever pass it. A request that some rank still builds is in
nobody's way: it takes its place in arrival order when all ranks have built it. Nor is one that is held back because an
earlier request is about to compute a prefix of it: it comes when that one has, at its place in arrival order. Requests
are held back by earlier ones only, and those go on without them, so nobody is held back for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from sglang_wavepp.admission.decision import Outcome, Verdict, decide
from sglang_wavepp.admission.hint import Hint, candidate_of
from sglang_wavepp.admission.messages import Attempt, Broadcast, InstallRecord, Vote
from sglang_wavepp.admission.promises import Promises

UNLIMITED: Final = 1 << 62
"""Tokens wanted where nobody counts them."""


@dataclass(frozen=True, slots=True)
class Arriving:
    """What admission is likely to bring.

    Attributes:
        tokens: tokens that requests in admission will have to compute, as far as hints tell and counted up to some
            bound; none of requests that can't be admitted now.
        blocked: requests in admission that can't be admitted before something else happens.
    """

    tokens: int = 0
    blocked: int = 0


def no_chain(rid: str) -> Sequence[int] | None:
    """Nobody hashes prompts."""
    return None


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that all ranks hold at `endpoint`.

    Attributes:
        suffix: tokens of the prompt that are left to compute.
        aborted: asks for an abort as its first command.
    """

    rid: str
    epoch: int
    endpoint: int
    suffix: int = 0
    aborted: bool = False


@dataclass(frozen=True, slots=True)
class LeaderEvents:
    """What a round brought.

    Attributes:
        admitted: in arrival order.
        withdrawn: ids of requests whose abort ended inside admission; no rank holds anything for them any
            more.
        waits: how many attempts did not end in an admission, by verdict; for telemetry.
    """

    admitted: tuple[Admitted, ...] = ()
    withdrawn: tuple[str, ...] = ()
    waits: dict[Verdict, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Entry:
    record: InstallRecord
    aborting: bool = False
    candidate: int | None = None
    hinted_in: int = 0
    lowering: bool = False
    unjudged: bool = False
    passed: bool = False
    waiting: bool = False
    short: dict[int, int] = field(default_factory=dict)
    """While it waits: per rank that had no room, its release counter at that time."""

    @property
    def building(self) -> bool:
        """Whether some rank has not built the request yet, as it has no hint to give."""
        return self.unjudged and self.candidate is None


@dataclass(frozen=True, slots=True)
class _Plan:
    attempts: tuple[Attempt, ...]
    hints: tuple[tuple[str, int], ...]
    urgent: bool
    """Whether the round can bring somebody on; else it only asks whether capacity came back."""
    sated: bool
    """Whether the next request is only kept back because enough is admitted: nothing to ask until that changes."""


class RoundsLeader:
    """The admission state of all requests, a function of what was announced, aborted and voted.

    Args:
        ranks: how many ranks vote.
        max_batch: attempts in a round, at most.
        slow_interval: seconds between rounds while requests only wait for capacity.
        retry_interval: seconds before an attempt that a rank could not judge is made again, and after rank 0
            itself got capacity back.
        chain: hashes of the full blocks of a prompt that was hinted, None where nobody hashes; then nobody is held
            back.
        block: tokens of a hashed block.
        counted: tokens of one request that count as wanted, at most.
    """

    def __init__(
        self,
        *,
        ranks: int,
        max_batch: int,
        slow_interval: float = 0.02,
        retry_interval: float = 0.001,
        chain: Callable[[str], Sequence[int] | None] = no_chain,
        block: int = 1,
        counted: int = UNLIMITED,
    ) -> None:
        if ranks < 1 or max_batch < 1:
            raise ValueError(f"at least one rank and one attempt, got ranks={ranks}, max_batch={max_batch}")
        self._ranks = ranks
        self._max_batch = max_batch
        self._slow = slow_interval
        self._retry = retry_interval
        self._counted = counted
        self._chain = chain
        self._promises = Promises(block=block)
        self._publishing: list[tuple[int, str, int]] = []
        self._held_back = 0
        self._queue: dict[str, _Entry] = {}
        self._unsent: list[_Entry] = []
        self._aborting: set[str] = set()
        self._lowering = 0
        self._round = 0
        self._open: Broadcast | None = None
        self._opened_at = float("-inf")
        self._poked = False
        self._paused = False
        self._latest = [0] * ranks
        self._fence = 0
        self._withdrawn: list[str] = []

    # --- what the LOOP asks ---------------------------------------------------------------------------------

    def announce(self, record: InstallRecord) -> None:
        """A request arrived; the order of these calls is the order of admission.

        Raises:
            ValueError: a request of this id is in admission.
        """
        if record.rid in self._queue:
            raise ValueError(f"request {record.rid} is in admission already")
        entry = _Entry(record)
        self._queue[record.rid] = entry
        self._unsent.append(entry)

    def abort(self, rid: str) -> bool:
        """A request shall end. False when it isn't in admission, so that the abort is a command.

        The next broadcast carries the abort. An admission that the open round decides stands: its event says
        so.
        """
        entry = self._queue.get(rid)
        if entry is None:
            return False
        if entry in self._unsent:
            self._unsent.remove(entry)
            del self._queue[rid]
            self._withdrawn.append(rid)
        else:
            entry.aborting = True
            self._aborting.add(rid)
        return True

    def fence(self, command: int) -> None:
        """From now on a rank must have applied this command before it may hold anything."""
        self._fence = max(self._fence, command)

    def capacity_changed(self) -> None:
        """Rank 0 got capacity back: ask soon whether the others did, instead of at the slow interval."""
        self._poked = True

    def computed(self, rid: str, upto: int, command: int) -> None:
        """An admitted request's prompt is computed up to `upto` tokens, or it ended and the rest never will be.

        Args:
            rid: of the request.
            upto: tokens; the whole prompt when nothing more of it will come.
            command: a rank that has applied it holds what was computed.
        """
        if rid in self._promises:
            self._publishing.append((command, rid, upto))
            self._poked = True

    # --- rounds ---------------------------------------------------------------------------------------------

    @property
    def round(self) -> int:
        """Number of the last round opened."""
        return self._round

    @property
    def awaiting_votes(self) -> bool:
        """Whether a round is open."""
        return self._open is not None

    def waiting(self) -> int:
        """Requests that wait for capacity."""
        return sum(entry.waiting for entry in self._queue.values())

    @property
    def holds_back(self) -> int:
        """Requests that were held back when a round was last thought of, see `next_due`."""
        return self._held_back

    def arriving(self, *, at_most: int, patience: int = UNLIMITED) -> Arriving:
        """What admission is likely to bring, as far as the first requests tell.

        Args:
            at_most: tokens; enough is known when there are as many.
            patience: see `next_due`.
        """
        tokens, blocked = 0, 0
        for place, entry in enumerate(self._queue.values()):
            if tokens >= at_most or place == 2 * self._max_batch:
                break
            if entry.waiting:
                blocked += len(self._queue) - place
                break
            if entry.aborting or entry.building or self._is_held_back(entry, patience):
                blocked += 1
            elif entry.candidate is not None:
                tokens += len(entry.record.token_ids) - entry.candidate
        return Arriving(tokens, blocked)

    def in_admission(self) -> int:
        """Requests that are announced and neither admitted nor withdrawn."""
        return len(self._queue)

    def idle(self) -> bool:
        """Whether nothing is in admission: no request, no open round, no event to fetch."""
        return not self._queue and self._open is None and not self._withdrawn

    def next_due(
        self, now: float, *, free_rows: int, wanted: int = UNLIMITED, patience: int = UNLIMITED
    ) -> float | None:
        """When to open the next round, in the seconds of `now`; None while votes are awaited or nothing is asked.

        Args:
            now: clock in seconds.
            free_rows: request rows that are free on rank 0.
            wanted: tokens that rank 0 could compute beyond what is admitted; nobody new is named at 0 or less.
            patience: a request is held back when it can reuse so many tokens more after an earlier request, which is
                on its way, has computed them.
        """
        if self._open is not None or not self._queue:
            return None
        plan = self._plan(free_rows, wanted, patience)
        if self._unsent or self._aborting or plan.urgent:
            return now
        if plan.sated and not self._asks_again_soon():
            self._paused = True
            return None
        return max(now, self._opened_at + (self._retry if self._asks_again_soon() else self._slow))

    def next_broadcast(
        self, now: float, *, free_rows: int, wanted: int = UNLIMITED, patience: int = UNLIMITED
    ) -> Broadcast | None:
        """Open a round, None when there is nothing to say.

        Args:
            now: clock in seconds.
            free_rows: request rows that are free on rank 0.
            wanted: see `next_due`.
            patience: see `next_due`.

        Raises:
            RuntimeError: the round before is still open.
        """
        if self._open is not None:
            raise RuntimeError(f"round {self._round} is still open")
        if not self._queue:
            return None
        plan = self._plan(free_rows, wanted, patience)
        self._paused = False
        self._round += 1
        self._opened_at = now
        self._poked = False
        self._open = Broadcast(
            round=self._round,
            records=tuple(entry.record for entry in self._unsent),
            aborts=tuple((rid, e.record.epoch) for rid, e in self._queue.items() if rid in self._aborting)
            if self._aborting
            else (),
            attempts=plan.attempts,
            hints=plan.hints,
            after_command=self._fence,
        )
        self._unsent.clear()
        return self._open

    def on_votes(self, votes: Sequence[Vote]) -> LeaderEvents:
        """Close the open round.

        Args:
            votes: one per rank, in rank order.

        Raises:
            RuntimeError: no round is open, or the votes are not those of all ranks for it.
            VoteError: see `decide`.
        """
        opened = self._open
        got = [(vote.round, vote.rank) for vote in votes]
        if opened is None or got != [(opened.round, rank) for rank in range(self._ranks)]:
            raise RuntimeError(f"votes (round, rank) {got} do not close round {opened and opened.round}")
        outcomes = decide(opened.attempts, votes)
        self._open = None
        self._latest = [vote.releases for vote in votes]
        self._publish(votes)
        for rid, _ in opened.hints:
            self._take_hint(rid, [vote.hints.get(rid) for vote in votes])
        admitted, waits = self._take_outcomes(outcomes, votes)
        for rid, _ in opened.aborts:
            entry = self._queue.pop(rid)
            self._promises.leave(rid)
            self._lowering -= entry.lowering
            self._aborting.discard(rid)
            self._withdrawn.append(rid)
        return LeaderEvents(admitted=admitted, withdrawn=self.take_withdrawn(), waits=waits)

    def take_withdrawn(self) -> tuple[str, ...]:
        """Ids of withdrawn requests since the last call; an abort before any broadcast needs no round."""
        withdrawn = tuple(self._withdrawn)
        self._withdrawn.clear()
        return withdrawn

    # --- planning a round -----------------------------------------------------------------------------------

    def _live(self) -> Iterator[_Entry]:
        return (entry for entry in self._queue.values() if not entry.aborting)

    def _plan(self, free_rows: int, wanted: int, patience: int) -> _Plan:
        attempts: list[Attempt] = []
        rest: list[_Entry] = []
        building: list[_Entry] = []
        back: list[_Entry] = []
        room = min(self._max_batch, free_rows)
        may_name, starved, judged, sated = True, False, False, False
        lowering = self._lowering
        for entry in self._live():
            if entry.building:
                if len(building) < self._max_batch:
                    building.append(entry)
                continue
            if self._is_held_back(entry, patience):
                back.append(entry)
                if len(back) == self._max_batch and not lowering:
                    break  # a round's work must not grow with the queue
                continue
            named = entry.lowering or (
                may_name
                and wanted > 0
                and len(attempts) < room
                and self._is_fresh(entry)
                and self._may_retry(entry)
            )
            if named and entry.candidate is not None:
                attempts.append(
                    Attempt(rid=entry.record.rid, epoch=entry.record.epoch, candidate=entry.candidate)
                )
                lowering -= entry.lowering
                wanted -= min(len(entry.record.token_ids) - entry.candidate, self._counted)
                judged = judged or not entry.unjudged
                may_name = may_name and not entry.passed
                continue
            if may_name:
                # The first request that can't be named says whether a hint can bring anybody on.
                starved = not self._may_retry(entry) or len(attempts) >= free_rows or wanted <= 0
                sated = wanted <= 0 and not attempts
                may_name = False
            if len(rest) < self._max_batch:
                rest.append(entry)
            elif not lowering:
                break
        self._held_back = len(back)
        next_up = 1 if starved else self._max_batch
        hinted = [e for place, e in enumerate(rest) if e.candidate is None or place < next_up]
        brings_on = any(not e.unjudged and (e.candidate is None or not (starved or attempts)) for e in hinted)
        return _Plan(
            attempts=tuple(attempts),
            hints=tuple((entry.record.rid, entry.record.epoch) for entry in (*hinted, *building, *back)),
            urgent=judged or brings_on,
            sated=sated,
        )

    def _is_held_back(self, entry: _Entry, patience: int) -> bool:
        # An attempt that a rank could not judge goes on as it was; a fresh hint might raise its candidate.
        if entry.lowering or entry.unjudged or entry.candidate is None or patience >= UNLIMITED:
            return False
        promised = min(self._promises.promised(entry.record.rid), entry.record.cache_limit)
        return promised - entry.candidate >= patience

    def _publish(self, votes: Sequence[Vote]) -> None:
        applied = min(vote.applied_command for vote in votes)
        waits = []
        for command, rid, upto in self._publishing:
            if command <= applied:
                self._promises.publish(rid, upto)
            else:
                waits.append((command, rid, upto))
        self._publishing = waits

    def _is_fresh(self, entry: _Entry) -> bool:
        # Content moves while requests wait, so an attempt starts from the hint of a round just before.
        return entry.candidate is not None and entry.hinted_in == self._round and not self._paused

    def _may_retry(self, entry: _Entry) -> bool:
        return all(self._latest[rank] > counter for rank, counter in entry.short.items())

    def _asks_again_soon(self) -> bool:
        return self._poked or any(entry.unjudged and not entry.building for entry in self._live())

    # --- taking a round in ----------------------------------------------------------------------------------

    def _take_hint(self, rid: str, hints: Sequence[Hint | None]) -> None:
        entry = self._queue[rid]
        known = [hint for hint in hints if hint is not None]
        entry.unjudged = len(known) < len(hints)
        if not entry.unjudged:
            entry.candidate = candidate_of(known)
            entry.hinted_in = self._round
            if rid not in self._promises and (chain := self._chain(rid)) is not None:
                self._promises.enter(rid, chain)

    def _take_outcomes(
        self, outcomes: Sequence[Outcome], votes: Sequence[Vote]
    ) -> tuple[tuple[Admitted, ...], dict[Verdict, int]]:
        admitted: list[Admitted] = []
        waits: dict[Verdict, int] = {}
        behind = False
        not_admitted: list[_Entry] = []
        for outcome in outcomes:
            entry = self._queue[outcome.rid]
            self._lowering -= entry.lowering
            if outcome.verdict is Verdict.ADMITTED:
                assert outcome.endpoint is not None
                del self._queue[outcome.rid]
                self._aborting.discard(outcome.rid)
                suffix = len(entry.record.token_ids) - outcome.endpoint
                admitted.append(
                    Admitted(outcome.rid, outcome.epoch, outcome.endpoint, suffix, entry.aborting)
                )
                for earlier in not_admitted:
                    earlier.passed = True
                continue
            waits[outcome.verdict] = waits.get(outcome.verdict, 0) + 1
            not_admitted.append(entry)
            entry.unjudged = outcome.verdict is Verdict.PENDING
            entry.waiting = outcome.verdict is Verdict.WAIT
            entry.lowering = outcome.verdict is Verdict.LOWER or (entry.lowering and entry.unjudged)
            entry.short = {}
            self._lowering += entry.lowering
            if outcome.verdict is Verdict.PENDING:
                entry.hinted_in = self._round  # the attempt goes on with the candidate it has
            elif outcome.verdict is Verdict.LOWER:
                entry.candidate = outcome.endpoint
            elif not behind:
                entry.short = {v.rank: v.releases for v in votes if v.attempts[outcome.rid].kind == "nocap"}
                # Ranks answer for later requests without trying them, so their counters say nothing about
                # those: each is simply next when the ones before it are gone.
                behind = True
        return tuple(admitted), waits
