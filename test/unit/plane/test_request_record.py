from __future__ import annotations

import math
from array import array
from typing import Any

import pytest
from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.sampling.watermarking.core import WatermarkRequestConfig

from sglang_wavepp.admission.messages import Broadcast, InstallRecord
from sglang_wavepp.plane.codec import decode, encode
from sglang_wavepp.plane.request_record import (
    CARRIED,
    NOT_NEEDED,
    OWN_FIELDS,
    REFUSED,
    UnsupportedRequest,
    has_grammar,
    record_from,
    request_from,
)

FULL_SAMPLING: dict[str, Any] = {
    "max_new_tokens": 33,
    "stop": ["\n\n", "END"],
    "stop_token_ids": {5, 2},
    "stop_regex": "a+b{2}",
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.05,
    "frequency_penalty": 0.1,
    "presence_penalty": -0.2,
    "repetition_penalty": 1.1,
    "min_new_tokens": 3,
    "n": 2,
    "beam_width": None,
    "json_schema": '{"type": "object"}',
    "regex": None,
    "ebnf": None,
    "structural_tag": None,
    "ignore_eos": True,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "no_stop_trim": True,
    "stream_interval": 4,
    "logit_bias": {"7": -math.inf, "9": 0.1},
    "sampling_seed": -(2**63),
    "custom_params": {"thinking_budget": 10, "weights": [0.1, math.inf, None]},
    "watermark": WatermarkRequestConfig(enabled=True, key="0xabc", context_window=4),
    "ebnf_full_assistant": True,
}
FULL_REQUEST: dict[str, Any] = {
    "token_type_ids": [0, 0, 1, 1],
    "return_logprob": True,
    "logprob_start_len": 2,
    "top_logprobs_num": 3,
    "token_ids_logprob": [4, 5],
    "stream": True,
    "return_flat_raw_top_logprobs": True,
    "routed_experts_start_len": 1,
    "session_id": "conversation",
    "custom_logit_processor": '{"callable": "00"}',
    "routed_dp_rank": 0,
    "routing_key": "key",
    "require_reasoning": True,
    "priority": -4,
    "no_logs": True,
    "return_bytes": True,
    "return_entropy": True,
    "sampling_logprobs_mode": "support",
}


def received(sampling: dict[str, Any] | None = None, **fields: Any) -> TokenizedGenerateReqInput:
    params = SamplingParams(**(sampling if sampling is not None else {"max_new_tokens": 8}))
    params.stop_str_max_len = 5
    values: dict[str, Any] = {
        "rid": "r1",
        "input_text": "four words of text",
        "input_ids": array("q", [10, 11, 12, 13]),
        "input_embeds": None,
        "mm_inputs": None,
        "token_type_ids": None,
        "return_logprob": False,
        "logprob_start_len": -1,
        "top_logprobs_num": 0,
        "token_ids_logprob": None,
        "stream": False,
        "sampling_params": params,
    }
    return TokenizedGenerateReqInput(**{**values, **fields})


def built(recv_req: TokenizedGenerateReqInput) -> Req:
    req = Req(
        recv_req.rid,
        recv_req.input_text,
        recv_req.input_ids,
        recv_req.sampling_params,
        return_logprob=recv_req.return_logprob,
        custom_logit_processor=recv_req.custom_logit_processor,
    )
    req.logprob_start_len = recv_req.logprob_start_len
    return req


def over_the_wire(record: InstallRecord) -> InstallRecord:
    sent = Broadcast(round=1, records=(record,), aborts=(), attempts=(), hints=(), after_command=0)
    arrived = decode([bytes(frame) for frame in encode(sent)])
    assert isinstance(arrived, Broadcast)
    return arrived.records[0]


def sampling_dict(params: SamplingParams) -> dict[str, Any]:
    return {field: getattr(params, field) for field in SamplingParams.__struct_fields__}


def test_every_field_of_the_request_has_exactly_one_place() -> None:
    placed = [*OWN_FIELDS, *CARRIED, *NOT_NEEDED, *REFUSED]
    assert sorted(placed) == sorted(TokenizedGenerateReqInput.__struct_fields__)


def test_the_example_fills_every_field_that_travels() -> None:
    assert set(FULL_REQUEST) == set(CARRIED)
    internal = {"stop_strs", "stop_regex_strs", "stop_str_max_len", "stop_regex_max_len", "is_normalized"}
    assert set(FULL_SAMPLING) | internal == set(SamplingParams.__struct_fields__)


@pytest.mark.parametrize("normalized", [False, True])
def test_a_follower_builds_the_request_that_rank_zero_has(normalized: bool) -> None:
    sent = received(FULL_SAMPLING, extra_key="tenant", cache_salt="salt", **FULL_REQUEST)
    if normalized:
        sent.sampling_params.stop_regex_max_len = 4
        sent.sampling_params.stop = sent.sampling_params.stop_regex = None
        sent.sampling_params.is_normalized = True
    before = sampling_dict(sent.sampling_params)
    got = request_from(over_the_wire(record_from(sent, built(sent))))
    for field in (*OWN_FIELDS, *CARRIED):
        if field != "sampling_params":
            assert getattr(got, field) == getattr(sent, field), field
    assert sampling_dict(got.sampling_params) == before
    assert type(got.input_ids) is array
    assert got.input_ids.typecode == "q"
    for field in REFUSED:
        assert getattr(got, field) in (None, False), field


def test_greedy_stays_greedy() -> None:
    got = request_from(over_the_wire(record_from(*both(received({"temperature": 0.0, "max_new_tokens": 4})))))
    assert (got.sampling_params.temperature, got.sampling_params.top_k) == (1.0, 1)


@pytest.mark.parametrize("grammar", ["json_schema", "regex", "ebnf", "structural_tag"])
def test_grammars_travel(grammar: str) -> None:
    got = request_from(over_the_wire(record_from(*both(received({grammar: "text", "max_new_tokens": 4})))))
    assert getattr(got.sampling_params, grammar) == "text"
    assert has_grammar(record_from(*both(received({grammar: "text", "max_new_tokens": 4}))))
    assert not has_grammar(record_from(*both(received({"max_new_tokens": 4}))))


def both(recv_req: TokenizedGenerateReqInput) -> tuple[TokenizedGenerateReqInput, Req]:
    return recv_req, built(recv_req)


def test_what_building_the_request_clipped_is_what_travels() -> None:
    recv_req, req = both(received({"max_new_tokens": 1 << 30}))
    req.origin_input_ids = req.origin_input_ids[:3]
    req.sampling_params.max_new_tokens = 17
    record = record_from(recv_req, req, epoch=2)
    assert (record.epoch, record.max_new_tokens, record.token_ids) == (2, 17, array("q", [10, 11, 12]))
    assert request_from(record).sampling_params.max_new_tokens == 17


def test_the_record_owns_its_token_ids() -> None:
    recv_req, req = both(received())
    record = record_from(recv_req, req)
    frames = encode(Broadcast(round=1, records=(record,), aborts=(), attempts=(), hints=(), after_command=0))
    req.origin_input_ids.append(14)  # would raise if it were the array whose memory is being sent
    assert len(frames[1]) == 32


@pytest.mark.parametrize(
    ("return_logprob", "start", "limit"),
    [(False, -1, 3), (True, 0, 0), (True, 2, 2), (True, 4, 3), (False, 1, 3)],
)
def test_prompt_logprobs_limit_what_may_come_from_the_cache(
    return_logprob: bool, start: int, limit: int
) -> None:
    recv_req, req = both(received(return_logprob=return_logprob, logprob_start_len=start))
    assert record_from(recv_req, req).cache_limit == limit == req._compute_max_prefix_len(4)


def test_the_back_reference_of_logit_processors_stays_at_home() -> None:
    recv_req, req = both(
        received({"custom_params": {"a": 1}, "max_new_tokens": 4}, custom_logit_processor="{}")
    )
    assert "__req__" in req.sampling_params.custom_params
    assert request_from(over_the_wire(record_from(recv_req, req))).sampling_params.custom_params == {"a": 1}


@pytest.mark.parametrize("field", sorted(REFUSED))
def test_what_can_not_travel_is_refused_in_one_line(field: str) -> None:
    recv_req, req = both(received())
    setattr(recv_req, field, True)
    with pytest.raises(UnsupportedRequest, match=f"^.*{REFUSED[field]}.*{field}.*$"):
        record_from(recv_req, req)


def test_text_that_has_no_wire_form_is_refused() -> None:
    recv_req, req = both(received({"stop": "\ud800", "max_new_tokens": 4}))
    with pytest.raises(UnsupportedRequest, match="'r1'"):
        record_from(recv_req, req)
