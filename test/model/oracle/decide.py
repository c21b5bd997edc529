"""The decision: a pure function of the attempts and the votes, the same on every rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from model.oracle.messages import Answer, Attempt, Held, NoCapacity, Pending
from model.oracle.rules import Rules


class Verdict(Enum):
    PENDING = "pending"
    """Some rank can't judge yet: all release, and it is tried again."""
    WAIT = "wait"
    """Some rank has no capacity: all release, and the request waits."""
    ADMITTED = "admitted"
    TRIM = "trim"
    """Endpoints differ: every rank trims its hold to the lowest."""
    PREPARE = "prepare"
    """Endpoints differ: all release, and prepare again with the lowest as candidate."""


@dataclass(frozen=True)
class Outcome:
    """`endpoint` is set for ADMITTED, TRIM and PREPARE."""

    rid: int
    epoch: int
    verdict: Verdict
    endpoint: int | None = None


def decide(
    attempts: Sequence[Attempt], answers: Sequence[Mapping[int, Answer]], rules: Rules
) -> tuple[Outcome, ...]:
    """Outcome of each attempt; `answers` holds one mapping per rank, from request to answer."""
    return tuple(_decide_one(attempt, [rank[attempt.rid] for rank in answers], rules) for attempt in attempts)


def _decide_one(attempt: Attempt, answers: Sequence[Answer], rules: Rules) -> Outcome:
    rid, epoch = attempt.rid, attempt.epoch
    if any(isinstance(answer, Pending) for answer in answers):
        return Outcome(rid, epoch, Verdict.PENDING)
    if any(isinstance(answer, NoCapacity) for answer in answers):
        return Outcome(rid, epoch, Verdict.WAIT)
    held = [answer for answer in answers if isinstance(answer, Held)]
    lowest = min(answer.endpoint for answer in held)
    committed = [answer.committed for answer in held]
    if all(committed) and len({answer.endpoint for answer in held}) == 1:
        return Outcome(rid, epoch, Verdict.ADMITTED, lowest)
    releases_all = rules.reconcile == "prepare_if_committed" and any(committed)
    return Outcome(rid, epoch, Verdict.PREPARE if releases_all else Verdict.TRIM, lowest)
