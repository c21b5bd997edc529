"""What ranks tell each other about admission, one frozen struct per message. The rounds plane carries them.

Positions and lengths count tokens; `epoch` counts how often a request was taken back and announced again.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import msgspec

from sglang_wavepp.admission.hint import Hint

if TYPE_CHECKING:
    TokenIds: TypeAlias = array[int]
else:
    TokenIds = array  # msgspec evaluates annotations, and arrays can't be subscripted at run time

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class InstallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank needs to build a request that rank 0 received.

    Attributes:
        token_ids: the prompt, `array('q')`.
        max_new_tokens: output tokens that capacity is reserved for, as rank 0 clipped them.
        cache_limit: no endpoint may exceed it (prompt length - 1, or where prompt logprobs start).
        request: every other field that the request's own struct has, as builtins.
    """

    rid: str
    epoch: Count
    token_ids: TokenIds
    max_new_tokens: Count
    cache_limit: Count
    extra_key: str | None
    cache_salt: str | None
    request: dict[str, Any]


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """Ask each rank to hold a prefix of at most `candidate` tokens and the room for the rest."""

    rid: str
    epoch: Count
    candidate: Count


class Broadcast(msgspec.Struct, frozen=True, kw_only=True, tag="broadcast"):
    """Opens a round. A rank applies aborts, records, attempts (in this order) and hints, then votes once.

    A rank that has not applied command `after_command` votes pending for every attempt.
    """

    round: Count
    records: tuple[InstallRecord, ...]
    aborts: tuple[tuple[str, Count], ...]
    attempts: tuple[Attempt, ...]
    hints: tuple[tuple[str, Count], ...]
    after_command: Count


class AttemptVote(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt came to on one rank; `endpoint` and `committed` mean something only when held."""

    kind: Literal["held", "nocap", "pending"]
    endpoint: Count = 0
    committed: bool = False


class Vote(msgspec.Struct, frozen=True, kw_only=True, tag="vote"):
    """One rank's answer to a round.

    Attributes:
        rank: index of the voter.
        applied_command: number of the last command that its LOOP has applied.
        releases: how often capacity was released on it so far.
        hints: per rid what the rank guesses that it can reuse, None when the rank can't say yet.
        attempts: per rid of the broadcast's attempts.
    """

    round: Count
    rank: Count
    applied_command: Count
    releases: Count
    hints: dict[str, Hint | None]
    attempts: dict[str, AttemptVote]


class Gather(msgspec.Struct, frozen=True, kw_only=True, tag="gather"):
    """Closes a round: the votes of all ranks, in rank order."""

    round: Count
    votes: tuple[Vote, ...]
