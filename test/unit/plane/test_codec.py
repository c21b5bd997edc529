from __future__ import annotations

import math
from array import array
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_wavepp.admission.hint import Hint
from sglang_wavepp.admission.messages import Attempt, AttemptVote, Broadcast, Gather, InstallRecord, Vote
from sglang_wavepp.plane.codec import CodecError, decode, encode
from sglang_wavepp.plane.messages import (
    AbortCommand,
    ActivationHeader,
    DecodeWave,
    FlushCommand,
    Message,
    PrefillWave,
    RankId,
    ResultCommand,
    Span,
    StopCommand,
    TensorSpec,
    WaveResult,
)

TEXT = st.text(max_size=12)
COUNT = st.integers(0, 2**63 - 1)
TOKEN = st.integers(-(2**63), 2**63 - 1)
NUMBER = st.floats(allow_nan=False) | TOKEN
BUILTIN = st.recursive(
    st.none() | st.booleans() | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
PAYLOAD = st.none() | st.dictionaries(TEXT, st.binary(max_size=40), max_size=4)
IDS = st.lists(TOKEN, max_size=20).map(tuple)
RECORD = st.builds(
    InstallRecord,
    rid=TEXT,
    epoch=COUNT,
    token_ids=IDS.map(lambda ids: array("q", ids)),
    max_new_tokens=COUNT,
    cache_limit=COUNT,
    extra_key=st.none() | TEXT,
    cache_salt=st.none() | TEXT,
    request=st.dictionaries(TEXT, BUILTIN, max_size=4),
)


def many(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(strategy, max_size=4).map(tuple)


ATTEMPT_VOTE = st.builds(
    AttemptVote, kind=st.sampled_from(["held", "nocap", "pending"]), endpoint=COUNT, committed=st.booleans()
)
DENSE = st.builds(Hint, COUNT)
SPARSE = st.builds(
    lambda positions, complete: Hint(positions[0], tuple(positions), sparse=True, complete=complete),
    st.lists(COUNT, min_size=1, max_size=4, unique=True).map(lambda found: sorted(found, reverse=True)),
    st.booleans(),
)
HINT = DENSE | SPARSE
VOTE = st.builds(
    Vote,
    round=COUNT,
    rank=COUNT,
    applied_command=COUNT,
    releases=COUNT,
    hints=st.dictionaries(TEXT, st.none() | HINT, max_size=3),
    attempts=st.dictionaries(TEXT, ATTEMPT_VOTE, max_size=3),
)
SPAN = st.builds(Span, rid=TEXT, start=COUNT, length=st.integers(1, 2**40))
LANE = st.integers(-1, 100)
MESSAGE = st.one_of(
    st.builds(
        Broadcast,
        round=COUNT,
        records=many(RECORD),
        aborts=many(st.tuples(TEXT, COUNT)),
        attempts=many(st.builds(Attempt, rid=TEXT, epoch=COUNT, candidate=COUNT)),
        hints=many(st.tuples(TEXT, COUNT)),
        after_command=COUNT,
    ),
    VOTE,
    st.builds(Gather, round=COUNT, votes=many(VOTE)),
    st.builds(PrefillWave, seq=COUNT, wave=COUNT, slot=COUNT, spans=many(SPAN)),
    st.builds(DecodeWave, seq=COUNT, wave=COUNT, slot=COUNT, lane=COUNT, rids=many(TEXT)),
    st.builds(ResultCommand, seq=COUNT, wave=COUNT, token_ids=IDS, lanes=many(LANE), logprobs=PAYLOAD),
    st.builds(
        AbortCommand,
        seq=COUNT,
        rid=TEXT,
        message=st.none() | TEXT,
        status=st.none() | st.integers(100, 599),
        release=st.booleans(),
    ),
    st.builds(FlushCommand, seq=COUNT),
    st.builds(StopCommand, seq=COUNT, reason=TEXT),
    st.builds(WaveResult, wave=COUNT, token_ids=IDS, logprobs=PAYLOAD),
    st.builds(
        ActivationHeader,
        wave=COUNT,
        tokens=COUNT,
        tensors=many(st.builds(TensorSpec, name=TEXT, dtype=TEXT, shape=many(COUNT))),
        ready_time=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    ),
)


def on_the_wire(message: Message) -> list[bytes]:
    return [bytes(frame) for frame in encode(message)]


def broadcast(*records: InstallRecord) -> Broadcast:
    return Broadcast(round=3, records=records, aborts=(), attempts=(), hints=(), after_command=0)


def record(**changed: Any) -> InstallRecord:
    plain = InstallRecord(
        rid="r",
        epoch=0,
        token_ids=array("q", [5, 6]),
        max_new_tokens=4,
        cache_limit=1,
        extra_key=None,
        cache_salt=None,
        request={},
    )
    return msgspec.structs.replace(plain, **changed)


@given(MESSAGE)
def test_every_message_arrives_as_it_was_sent(message: Message) -> None:
    arrived = decode(on_the_wire(message))
    assert arrived == message
    assert type(arrived) is type(message)


def test_numbers_that_json_has_no_word_for_survive_in_a_record() -> None:
    sent = record(request={"bias": {"7": -math.inf}, "custom": [math.nan, math.inf, None]})
    arrived = decode(on_the_wire(broadcast(sent)))
    assert isinstance(arrived, Broadcast)
    request = arrived.records[0].request
    assert request["bias"] == {"7": -math.inf}
    assert math.isnan(request["custom"][0])
    assert request["custom"][1:] == [math.inf, None]


def test_a_long_prompt_costs_eight_bytes_a_token_and_no_copy() -> None:
    prompt = array("q", range(200_000))
    header, ids, _ = encode(broadcast(record(token_ids=prompt)))
    assert len(header) < 400
    assert isinstance(ids, memoryview)
    assert len(ids) == 1_600_000
    prompt[0] = 77
    assert ids.cast("q")[0] == 77


@settings(max_examples=50)
@given(MESSAGE, st.data())
def test_a_damaged_message_is_refused(message: Message, data: Any) -> None:
    frames = on_the_wire(message)
    which = data.draw(st.integers(0, len(frames) - 1))
    kind = data.draw(st.sampled_from(["drop", "cut", "extend", "twice"]))
    if kind == "drop":
        del frames[which]
    elif kind == "cut":
        if not frames[which]:
            return
        frames[which] = frames[which][:-1]
    elif kind == "extend":
        frames[which] += b"\0"
    else:
        frames.append(b"")
    with pytest.raises(CodecError):
        decode(frames)


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_garbage_is_refused(frames: list[bytes]) -> None:
    with pytest.raises(CodecError):
        decode(frames)


@pytest.mark.parametrize(
    ("field", "value"),
    [("round", "three"), ("round", -1), ("after_command", None), ("hints", [["r"]]), ("aborts", {"r": 0})],
)
def test_the_error_names_the_field(field: str, value: object) -> None:
    header, *rest = on_the_wire(broadcast(record()))
    tree = msgspec.json.decode(header)
    tree["message"][field] = value
    with pytest.raises(CodecError, match=field):
        decode([msgspec.json.encode(tree), *rest])


def test_an_error_in_a_raw_frame_names_the_field_and_the_request() -> None:
    header, ids, request = on_the_wire(broadcast(record(rid="chat-1")))
    tree = msgspec.json.decode(header)
    tree["sizes"] = [len(ids) - 1, len(request)]
    with pytest.raises(CodecError, match="token_ids of 'chat-1'"):
        decode([msgspec.json.encode(tree), ids[:-1], request])
    tree["sizes"] = [len(ids), 3]
    with pytest.raises(CodecError, match="request of 'chat-1'"):
        decode([msgspec.json.encode(tree), ids, b"\xc1\xc1\xc1"])
    tree["sizes"] = []
    with pytest.raises(CodecError, match="records"):
        decode([msgspec.json.encode(tree)])


@pytest.mark.parametrize(
    "message",
    [
        broadcast(record(rid="\ud800")),
        broadcast(record(request={"stop": "\ud800"})),
        broadcast(record(request={"n": 2**70})),
        broadcast(record(token_ids=array("i", [1]))),
        WaveResult(wave=1, token_ids=(2**63,), logprobs=None),
    ],
)
def test_what_has_no_wire_form_is_refused_by_the_sender(message: Message) -> None:
    with pytest.raises(CodecError, match="cannot encode"):
        encode(message)


def test_rank_zero_leads_and_ranks_have_names() -> None:
    assert RankId.of(pp_rank=0, tp_rank=0, tp_size=2).index == 0
    rank = RankId.of(pp_rank=1, tp_rank=1, tp_size=2)
    assert (rank.index, rank.name) == (3, "pp1 tp1")
