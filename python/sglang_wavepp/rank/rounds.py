"""Drives the admission state machines over the rounds link, for a thread of its own or for the LOOP itself.

Nothing here waits. `LeadingRounds` opens a round when one is due and closes it with the last vote;
`FollowingRounds` answers what arrives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from sglang_wavepp.admission.decision import Outcome, Verdict
from sglang_wavepp.admission.leader import UNLIMITED, RoundsLeader
from sglang_wavepp.admission.member import RoundsMember
from sglang_wavepp.admission.messages import Broadcast, Gather, InstallRecord, Vote
from sglang_wavepp.rank.handover import AbortAsk, BuiltAsk, CapacityAsk, ComputedAsk, FenceAsk, Handover
from sglang_wavepp.telemetry.trace import ADMISSION, ROUNDS, Timeline


class LeaderSender(Protocol):
    """What rank 0 sends to all other ranks."""

    def broadcast(self, message: Broadcast) -> None:
        """Queue a broadcast for every follower."""

    def gather(self, message: Gather) -> None:
        """Queue a gather for every follower."""


class MemberSender(Protocol):
    """What a follower sends to rank 0."""

    def vote(self, message: Vote) -> None:
        """Queue a vote."""


def nothing() -> None:
    """Nobody wants to hear of it."""


class LeadingRounds:
    """Rank 0's rounds.

    Attributes:
        closed: rounds closed so far.
        outcomes: attempts so far, by verdict.
        on_round: called after each round.

    Args:
        leader: state of all requests in admission.
        member: rank 0's own part.
        sender: to the followers.
        handover: to rank 0's LOOP.
        ranks: how many ranks vote, rank 0 among them.
        free_rows: request rows that are free on rank 0.
        ahead: tokens that may be admitted and unplanned before nobody new is attempted, None for any number.
        patience: says how many tokens more a request must be able to reuse later to be held back now.
        looks_ahead: tokens in admission beyond which the LOOP needs to know no more.
        timeline: trace.
    """

    def __init__(
        self,
        *,
        leader: RoundsLeader,
        member: RoundsMember,
        sender: LeaderSender,
        handover: Handover,
        ranks: int,
        free_rows: Callable[[], int],
        timeline: Timeline,
        ahead: int | None = None,
        patience: Callable[[], int] = lambda: UNLIMITED,
        looks_ahead: int = 0,
    ) -> None:
        self._ahead = ahead
        self._patience = patience
        self._looks_ahead = looks_ahead
        self._leader = leader
        self._member = member
        self._sender = sender
        self._handover = handover
        self._ranks = ranks
        self._free_rows = free_rows
        self._timeline = timeline
        self._votes: dict[int, Vote] = {}
        self._opened_ns = 0
        self._opened_at = 0.0
        self.closed = 0
        self.outcomes: Counter[Verdict] = Counter()
        self.on_round: Callable[[], None] = nothing

    @property
    def opened_at(self) -> float:
        """When the last round was opened, in the seconds given to `open`."""
        return self._opened_at

    @property
    def awaiting_votes(self) -> bool:
        """Whether a round is open."""
        return self._leader.awaiting_votes

    @property
    def in_admission(self) -> int:
        """Requests that are announced and neither admitted nor withdrawn."""
        return self._leader.in_admission()

    @property
    def waiting(self) -> int:
        """Requests that wait for capacity."""
        return self._leader.waiting()

    @property
    def holds_back(self) -> int:
        """Requests that wait for a prefix which another one is computing."""
        return self._leader.holds_back

    def missing(self) -> tuple[int, ...]:
        """Ranks whose vote the open round still needs."""
        if not self._leader.awaiting_votes:
            return ()
        return tuple(rank for rank in range(self._ranks) if rank not in self._votes)

    def idle(self) -> bool:
        """Whether nothing is in admission."""
        return self._leader.idle()

    def take_asks(self) -> None:
        """Take in what the LOOP asked."""
        for ask in self._handover.pop_asks():
            if isinstance(ask, InstallRecord):
                self._leader.announce(ask)
            elif isinstance(ask, AbortAsk):
                self._leader.abort(ask.rid)
            elif isinstance(ask, FenceAsk):
                self._leader.fence(ask.command)
            elif isinstance(ask, CapacityAsk):
                self._leader.capacity_changed()
            elif isinstance(ask, ComputedAsk):
                self._leader.computed(ask.rid, ask.upto, ask.command)
        self._handover.answer(withdrawn=self._leader.take_withdrawn())

    def next_due(self, now: float) -> float | None:
        """When to open the next round, None while votes are awaited or nothing is in admission."""
        due = self._leader.next_due(
            now, free_rows=self._free_rows(), wanted=self._wanted(), patience=self._patience()
        )
        self._handover.holds_back = self._leader.holds_back > 0
        return due

    def open(self, now: float) -> bool:
        """Open a round, if there is anything to say; without followers it is closed at once."""
        broadcast = self._leader.next_broadcast(
            now, free_rows=self._free_rows(), wanted=self._wanted(), patience=self._patience()
        )
        if broadcast is None:
            return False
        self._opened_ns = self._timeline.now_ns()
        self._opened_at = now
        self._votes.clear()
        self._sender.broadcast(broadcast)
        self.on_vote(
            self._member.on_broadcast(broadcast, applied_command=self._handover.last_applied_command)
        )
        return True

    def on_vote(self, vote: Vote) -> None:
        """Take a vote; the last one closes the round.

        Raises:
            RuntimeError: the vote is not for the open round, or its rank voted already.
        """
        if vote.rank in self._votes or not self._leader.awaiting_votes or vote.round != self._leader.round:
            raise RuntimeError(f"rank {vote.rank} votes in round {vote.round}, open is {self._leader.round}")
        self._votes[vote.rank] = vote
        if len(self._votes) == self._ranks:
            self._close()

    def _wanted(self) -> int:
        if self._ahead is None:
            return UNLIMITED
        return self._ahead - self._handover.unplanned(sated_at=self._ahead)

    def _close(self) -> None:
        votes = tuple(self._votes[rank] for rank in sorted(self._votes))
        gather = Gather(round=self._leader.round, votes=votes)
        self._sender.gather(gather)
        outcomes = self._member.on_gather(gather)
        self._member.drain()  # the LOOP of rank 0 has made its requests itself
        events = self._leader.on_votes(votes)
        # Before the answer: what is admitted arrives no more.
        self._handover.arriving = self._leader.arriving(at_most=self._looks_ahead, patience=self._patience())
        self._handover.answer(admitted=events.admitted, withdrawn=events.withdrawn)
        self.closed += 1
        self.outcomes.update(outcome.verdict for outcome in outcomes)
        self.on_round()
        if self._timeline.enabled:
            self._timeline.complete(
                f"round {gather.round}",
                self._opened_ns,
                self._timeline.now_ns(),
                ROUNDS,
                round=gather.round,
                in_admission=self._leader.in_admission(),
                outcomes={outcome.rid: outcome.verdict.value for outcome in outcomes},
            )
            self._timeline.counter("in admission", ROUNDS, requests=self._leader.in_admission())
            if events.waits:
                waits = {verdict.value: count for verdict, count in events.waits.items()}
                self._timeline.counter("attempts not admitted", ROUNDS, **waits)
            _trace_admissions(self._timeline, outcomes, self._member)


class FollowingRounds:
    """A follower's rounds.

    Attributes:
        on_round: called after each round.

    Args:
        member: this rank's part.
        sender: to rank 0.
        handover: to this rank's LOOP.
        timeline: trace.
    """

    def __init__(
        self, *, member: RoundsMember, sender: MemberSender, handover: Handover, timeline: Timeline
    ) -> None:
        self._member = member
        self._sender = sender
        self._handover = handover
        self._timeline = timeline
        self._opened_ns = 0
        self.on_round: Callable[[], None] = nothing

    def idle(self) -> bool:
        """Whether this rank knows of nothing in admission."""
        return self._member.known == 0

    def take_asks(self) -> None:
        """Take in what the LOOP has built. Capacity that came back is said by this rank's votes."""
        for ask in self._handover.pop_asks():
            if isinstance(ask, BuiltAsk):
                self._member.built(ask.rid)

    def on_message(self, message: Broadcast | Gather) -> None:
        """Answer a broadcast with a vote; apply a gather."""
        if isinstance(message, Broadcast):
            self._opened_ns = self._timeline.now_ns()
            vote = self._member.on_broadcast(message, applied_command=self._handover.last_applied_command)
            events = self._member.drain()
            # Before the vote leaves: rank 0's LOOP may name a request as soon as all votes are in.
            self._handover.answer(installed=events.installed, withdrawn=events.withdrawn)
            self._sender.vote(vote)
            return
        outcomes = self._member.on_gather(message)
        self.on_round()
        if self._timeline.enabled:
            self._timeline.complete(
                f"round {message.round}",
                self._opened_ns,
                self._timeline.now_ns(),
                ROUNDS,
                round=message.round,
                outcomes={outcome.rid: outcome.verdict.value for outcome in outcomes},
            )
            _trace_admissions(self._timeline, outcomes, self._member)


def _trace_admissions(timeline: Timeline, outcomes: tuple[Outcome, ...], member: RoundsMember) -> None:
    for outcome in outcomes:
        if outcome.verdict is Verdict.ADMITTED:
            timeline.instant("admitted", ADMISSION, rid=outcome.rid, endpoint=outcome.endpoint)
    for rid, shortage in member.shortages.items():
        timeline.instant("no room", ADMISSION, rid=rid, short_of=shortage.value)
