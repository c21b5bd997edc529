"""From the votes of all ranks to the outcome of each attempt: a pure function, so that all ranks decide
alike.

Each attempt is decided by its own votes. Order comes from how the votes are made: a rank whose hold fails has
no room for any later attempt of the round either, so a request that waits for capacity is never passed within
a round. A request that goes on at a lower endpoint can be: its holds were good, and those of the requests
behind it were made beside them. The leader sees to it that few ever pass it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from sglang_wavepp.admission.messages import Attempt, AttemptVote, Vote


class Verdict(Enum):
    """What becomes of an attempt."""

    PENDING = "pending"
    """A rank could not judge yet: all release, and the same attempt follows in a later round."""
    WAIT = "wait"
    """A rank has no room: all release, and the request waits until capacity comes back there."""
    ADMITTED = "admitted"
    """All ranks hold the same endpoint."""
    LOWER = "lower"
    """Room everywhere, endpoints differ: all keep what they hold, and trim it to the lowest in the next attempt."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One attempt's verdict; `endpoint` is set for ADMITTED and LOWER."""

    rid: str
    epoch: int
    verdict: Verdict
    endpoint: int | None = None


class VoteError(ValueError):
    """Votes that no rank following the protocol sends."""


def decide(attempts: Sequence[Attempt], votes: Sequence[Vote]) -> tuple[Outcome, ...]:
    """Outcome of each attempt, in the order of the attempts.

    Args:
        attempts: of the round's broadcast.
        votes: one per rank, of the same round.

    Raises:
        VoteError: a rank did not answer an attempt, or answered with an endpoint that it may not hold.
    """
    return tuple(_decide_one(attempt, [_vote_of(vote, attempt) for vote in votes]) for attempt in attempts)


def _vote_of(vote: Vote, attempt: Attempt) -> AttemptVote:
    answer = vote.attempts.get(attempt.rid)
    if answer is None:
        raise VoteError(f"round {vote.round}: rank {vote.rank} did not answer the attempt of {attempt.rid}")
    if answer.kind == "held":
        if answer.endpoint > attempt.candidate:
            raise VoteError(
                f"round {vote.round}: rank {vote.rank} holds {answer.endpoint} tokens of {attempt.rid},"
                f" more than the candidate {attempt.candidate}"
            )
        if answer.committed != (answer.endpoint == attempt.candidate):
            raise VoteError(
                f"round {vote.round}: rank {vote.rank} holds {answer.endpoint} of {attempt.candidate} tokens"
                f" of {attempt.rid} and says committed={answer.committed}"
            )
    return answer


def _decide_one(attempt: Attempt, answers: Sequence[AttemptVote]) -> Outcome:
    kinds = {answer.kind for answer in answers}
    if "pending" in kinds:
        return Outcome(attempt.rid, attempt.epoch, Verdict.PENDING)
    if "nocap" in kinds:
        return Outcome(attempt.rid, attempt.epoch, Verdict.WAIT)
    endpoint = min(answer.endpoint for answer in answers)
    if all(answer.committed for answer in answers):
        return Outcome(attempt.rid, attempt.epoch, Verdict.ADMITTED, endpoint)
    return Outcome(attempt.rid, attempt.epoch, Verdict.LOWER, endpoint)
