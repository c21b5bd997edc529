"""The installation record of a request: what rank 0 received, so that every rank can build the same request.

The three tables below say for each field of SGLang's struct whether it travels, is useless to a follower, or
can't travel at all. A test compares them with the struct, so that a new field of SGLang is noticed.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import msgspec
from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.sampling.watermarking.core import WatermarkRequestConfig

from sglang_wavepp.admission.messages import Broadcast, InstallRecord
from sglang_wavepp.plane.codec import CodecError, encode

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req

OWN_FIELDS = ("rid", "input_ids", "sampling_params", "extra_key", "cache_salt")
"""Fields with a place of their own in the record (sampling parameters: under `request["sampling_params"]`)."""

CARRIED = (
    "token_type_ids",
    "return_logprob",
    "logprob_start_len",
    "top_logprobs_num",
    "token_ids_logprob",
    "stream",
    "return_flat_raw_top_logprobs",
    "routed_experts_start_len",
    "session_id",
    "custom_logit_processor",
    "routed_dp_rank",
    "routing_key",
    "require_reasoning",
    "priority",
    "no_logs",
    "return_bytes",
    "return_entropy",
    "sampling_logprobs_mode",
)
"""Fields that travel as they are."""

NOT_NEEDED = {
    "input_text": "the token ids say it; only rank 0 answers a client",
    "http_worker_ipc": "the return address; only rank 0 answers a client",
    "time_stats": "clock readings of the API server; only rank 0 reports them",
    "kv_hints": "read by storage tiers alone, which are refused at start",
    "bootstrap_port": "every scheduler fills in its own default",
}
"""Fields that no follower reads, and why."""

REFUSED = {
    "input_embeds": "input embeddings",
    "mm_inputs": "multimodal inputs",
    "session_params": "sessions",
    "lora_id": "LoRA",
    "lora_name": "LoRA",
    "positional_embed_overrides": "embedding overrides",
    "bootstrap_host": "disaggregation",
    "bootstrap_room": "disaggregation",
    "bootstrap_pair_key": "disaggregation",
    "decode_tp_size": "disaggregation",
    "disagg_prefill_dp_rank": "disaggregation",
    "need_wait_for_mm_inputs": "multimodal inputs",
    "num_items_assigned": "multimodal inputs",
    "encoder_urls": "multimodal inputs",
    "pp_prefetch_ticketed": "prefetch from storage tiers",
    "return_hidden_states": "hidden states in the answer",
    "return_routed_experts": "routed experts in the answer",
    "return_indexer_topk": "indexer choices in the answer",
    "return_sampling_mask": "sampling masks in the answer",
    "multi_item_delimiter_indices": "multi-item scoring",
    "token_indices_to_pool": "pooled readout",
}
"""Fields that can't travel, or whose answer can't, and the feature that a request with one of them asks for."""

GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")
"""Sampling parameters that SGLang compiles a grammar for."""

_SAMPLING_FIELDS = SamplingParams.__struct_fields__
_BACK_REFERENCE = "__req__"  # SGLang adds the request itself here, for custom logit processors


class UnsupportedRequest(ValueError):
    """A request that WavePP can't serve; one line that says why, fit for its client."""


def record_from(recv_req: TokenizedGenerateReqInput, req: Req, *, epoch: int = 0) -> InstallRecord:
    """The record of a request that rank 0 has built and validated.

    Args:
        recv_req: what the tokenizer sent.
        req: what SGLang made of it. Prompt, sampling parameters and logprob start are taken from it, because building
            it may have shortened and clipped them.
        epoch: how often the request was taken back before.

    Raises:
        UnsupportedRequest: the request uses something that can't travel.
    """
    for field, feature in REFUSED.items():
        if getattr(recv_req, field) not in (None, False):
            raise UnsupportedRequest(f"--wavepp can't serve requests with {feature} ({field})")
    if req.beam_group is not None:
        raise UnsupportedRequest("--wavepp can't serve beam search (beam_width)")
    if type(req.sampling_params) is not SamplingParams:
        raise UnsupportedRequest(
            f"--wavepp can't serve sampling parameters of type {type(req.sampling_params).__name__}"
        )
    request: dict[str, Any] = {field: getattr(recv_req, field) for field in CARRIED}
    request["sampling_params"] = _builtins(req.sampling_params)
    record = InstallRecord(
        rid=req.rid,
        epoch=epoch,
        token_ids=array("q", req.origin_input_ids),  # a copy: an array that is being sent can't grow
        max_new_tokens=req.sampling_params.max_new_tokens,
        cache_limit=_cache_limit(req),
        extra_key=recv_req.extra_key,
        cache_salt=recv_req.cache_salt,
        request=request,
    )
    try:
        encode(Broadcast(round=0, records=(record,), aborts=(), attempts=(), hints=(), after_command=0))
    except CodecError as error:
        raise UnsupportedRequest(f"--wavepp can't serve this request: {error}") from error
    return record


def request_from(record: InstallRecord) -> TokenizedGenerateReqInput:
    """What a follower hands to SGLang's `handle_generate_request`; shares the token ids with the record."""
    request = dict(record.request)
    sampling: dict[str, Any] = dict(request.pop("sampling_params"))
    sampling["max_new_tokens"] = record.max_new_tokens
    if sampling["stop_token_ids"] is not None:
        sampling["stop_token_ids"] = set(sampling["stop_token_ids"])
    if sampling["watermark"] is not None:
        sampling["watermark"] = WatermarkRequestConfig(**sampling["watermark"])
    return TokenizedGenerateReqInput(
        rid=record.rid,
        input_text="",
        input_ids=record.token_ids,
        sampling_params=SamplingParams(**sampling),
        extra_key=record.extra_key,
        cache_salt=record.cache_salt,
        input_embeds=None,
        mm_inputs=None,
        **request,
    )


def has_grammar(record: InstallRecord) -> bool:
    """Whether a rank must compile a grammar to build the request, which takes a while."""
    sampling: dict[str, Any] = record.request["sampling_params"]
    return any(sampling[field] is not None for field in GRAMMARS)


def _builtins(params: SamplingParams) -> dict[str, Any]:
    fields = {field: getattr(params, field) for field in _SAMPLING_FIELDS}
    if isinstance(fields["custom_params"], dict):
        fields["custom_params"] = {k: v for k, v in fields["custom_params"].items() if k != _BACK_REFERENCE}
    if fields["stop_token_ids"] is not None:
        fields["stop_token_ids"] = sorted(fields["stop_token_ids"])
    if fields["watermark"] is not None:
        fields["watermark"] = msgspec.to_builtins(fields["watermark"])
    return fields


def _cache_limit(req: Req) -> int:
    """Tokens that may come from the cache: the last one, and those whose logprobs were asked for, are computed."""
    limit = len(req.origin_input_ids) - 1
    if req.return_logprob and req.logprob_start_len >= 0:
        limit = min(limit, req.logprob_start_len)
    return max(limit, 0)
