"""What one rank tells another beside admission, one frozen struct per message.

The rounds plane carries `Broadcast`, `Vote` and `Gather` of `admission.messages`; the command stream carries the union
`Command`; the last stage answers with `WaveResult`; `ActivationHeader` announces the tensors of a wave. Positions and
lengths count tokens.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from sglang_wavepp.admission.messages import Broadcast, Count, Gather, Vote

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


# --- commands -----------------------------------------------------------------------------------------------


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens `[start, start + length)` of a request, computed in one wave.

    Attributes:
        publish: position in the span up to which every rank then publishes the request to its cache, with a recurrent
            snapshot there; 0 for nothing, and for the end of the prompt, which a request's first token publishes.
    """

    rid: str
    start: Count
    length: Annotated[int, msgspec.Meta(ge=1)]
    publish: Count = 0


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
