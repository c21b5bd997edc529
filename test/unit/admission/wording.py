"""Short ways to say what the rounds say, for tests."""

from __future__ import annotations

from array import array

from sglang_wavepp.admission.hint import Hint
from sglang_wavepp.admission.messages import Attempt, AttemptVote, Broadcast, InstallRecord, Vote

NOCAP = AttemptVote(kind="nocap")
PENDING = AttemptVote(kind="pending")


def record(
    rid: str, *, prompt: int = 10, output: int = 4, epoch: int = 0, limit: int | None = None
) -> InstallRecord:
    return InstallRecord(
        rid=rid,
        epoch=epoch,
        token_ids=array("q", range(prompt)),
        max_new_tokens=output,
        cache_limit=prompt - 1 if limit is None else limit,
        extra_key=None,
        cache_salt=None,
        request={},
    )


def attempt(rid: str, candidate: int, *, epoch: int = 0) -> Attempt:
    return Attempt(rid=rid, epoch=epoch, candidate=candidate)


def held(endpoint: int, candidate: int) -> AttemptVote:
    return AttemptVote(kind="held", endpoint=endpoint, committed=endpoint == candidate)


def vote(
    rank: int,
    round: int = 1,
    *,
    releases: int = 0,
    applied_command: int = 0,
    hints: dict[str, int | None] | None = None,
    **attempts: AttemptVote,
) -> Vote:
    """A vote; `hints` are endpoints of ranks that can resume anywhere up to them."""
    said = {rid: None if end is None else Hint(end) for rid, end in (hints or {}).items()}
    return Vote(
        round=round,
        rank=rank,
        applied_command=applied_command,
        releases=releases,
        hints=said,
        attempts=attempts,
    )


def broadcast(
    round: int = 1,
    *,
    records: tuple[InstallRecord, ...] = (),
    aborts: tuple[str, ...] = (),
    attempts: tuple[Attempt, ...] = (),
    hints: tuple[str, ...] = (),
    after_command: int = 0,
) -> Broadcast:
    return Broadcast(
        round=round,
        records=records,
        aborts=tuple((rid, 0) for rid in aborts),
        attempts=attempts,
        hints=tuple((rid, 0) for rid in hints),
        after_command=after_command,
    )
