"""Everything that one rank tells another, one frozen struct per message.

The rounds plane carries `Broadcast`, `Vote` and `Gather`; the command stream carries the union `Command`; the
last stage answers with `WaveResult`; `ActivationHeader` announces the tensors of a wave. Positions and
lengths count tokens; `epoch` counts how often a request was taken back and announced again.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    TokenIds: TypeAlias = array[int]
else:
    TokenIds = array  # msgspec evaluates annotations, and arrays can't be subscripted at run time

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Lane: TypeAlias = Annotated[int, msgspec.Meta(ge=-1)]

NO_LANE = -1
"""Lane of a request that does not decode after this wave."""


class RankId(msgspec.Struct, frozen=True, kw_only=True):
    """A scheduler process: `index` is `pp_rank * tp_size + tp_rank`; rank 0 leads."""

    pp_rank: Count
    tp_rank: Count
    index: Count

    @classmethod
    def of(cls, *, pp_rank: int, tp_rank: int, tp_size: int) -> RankId:
        """The identity of the process at this place of the grid."""
        return cls(pp_rank=pp_rank, tp_rank=tp_rank, index=pp_rank * tp_size + tp_rank)

    @property
    def name(self) -> str:
        """How messages to people call the rank, such as "pp1 tp0"."""
        return f"pp{self.pp_rank} tp{self.tp_rank}"


# --- rounds plane -------------------------------------------------------------------------------------------


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
        hints: per rid the guessed endpoint, None when the rank can't say yet.
        attempts: per rid of the broadcast's attempts.
    """

    round: Count
    rank: Count
    applied_command: Count
    releases: Count
    hints: dict[str, Count | None]
    attempts: dict[str, AttemptVote]


class Gather(msgspec.Struct, frozen=True, kw_only=True, tag="gather"):
    """Closes a round: the votes of all ranks, in rank order."""

    round: Count
    votes: tuple[Vote, ...]


# --- commands -----------------------------------------------------------------------------------------------


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens `[start, start + length)` of a request, computed in one wave."""

    rid: str
    start: Count
    length: Annotated[int, msgspec.Meta(ge=1)]


class PrefillWave(msgspec.Struct, frozen=True, kw_only=True, tag="prefill"):
    """Run these spans, in this order, as wave `wave` of slot `slot`."""

    seq: Count
    wave: Count
    slot: Count
    spans: tuple[Span, ...]


class DecodeWave(msgspec.Struct, frozen=True, kw_only=True, tag="decode"):
    """Run one output token of each of these requests of `lane`, in this order."""

    seq: Count
    wave: Count
    slot: Count
    lane: Count
    rids: tuple[str, ...]


class ResultCommand(msgspec.Struct, frozen=True, kw_only=True, tag="result"):
    """What the last stage sampled for a wave.

    Attributes:
        token_ids: one id per request of the wave.
        lanes: per request the lane that it decodes in from now on, `NO_LANE` if none.
        logprobs: wire form of `plane.logprobs.pack`, None when nobody asked.
    """

    seq: Count
    wave: Count
    token_ids: tuple[int, ...]
    lanes: tuple[Lane, ...]
    logprobs: dict[str, bytes] | None


class AbortCommand(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    """End a request that the LOOP owns; `message` and HTTP `status` are what its client is told."""

    seq: Count
    rid: str
    message: str | None
    status: int | None
    release: bool


class FlushCommand(msgspec.Struct, frozen=True, kw_only=True, tag="flush"):
    """Drop all cached content; rank 0 sends it only when nothing is in flight."""

    seq: Count


class StopCommand(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """The server ends; the last command."""

    seq: Count
    reason: str


Command: TypeAlias = PrefillWave | DecodeWave | ResultCommand | AbortCommand | FlushCommand | StopCommand


# --- results and activations --------------------------------------------------------------------------------


class WaveResult(msgspec.Struct, frozen=True, kw_only=True, tag="wave_result"):
    """The last stage's answer to a wave: ids in the wave's request order, `logprobs` as in `ResultCommand`."""

    wave: Count
    token_ids: tuple[int, ...]
    logprobs: dict[str, bytes] | None


class TensorSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Name, torch dtype (such as "bfloat16") and shape of one tensor of a wave."""

    name: str
    dtype: str
    shape: tuple[Count, ...]


class ActivationHeader(msgspec.Struct, frozen=True, kw_only=True, tag="activation"):
    """Announces the tensors of a wave, sent in the order of `tensors`.

    Attributes:
        tokens: rows of the wave.
        ready_time: clock reading in seconds before which the receiver must not use the wave, None for at
            once.
    """

    wave: Count
    tokens: Count
    tensors: tuple[TensorSpec, ...]
    ready_time: float | None = None


Message: TypeAlias = (
    Broadcast
    | Vote
    | Gather
    | PrefillWave
    | DecodeWave
    | ResultCommand
    | AbortCommand
    | FlushCommand
    | StopCommand
    | WaveResult
    | ActivationHeader
)
