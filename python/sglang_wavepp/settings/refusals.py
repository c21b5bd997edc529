"""The options that ``--wavepp`` refuses, by name, with the reason and what to do instead.

Each row looks at SGLang's ``ServerArgs`` (as typed, and again as resolved) and at the environment. The README's
table is rendered from here, so that the two cannot differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sglang_wavepp.settings.errors import SettingsError
from sglang_wavepp.settings.flags import WaveSettings

Environ = Mapping[str, str]
_TRUE = frozenset({"1", "true", "yes", "y", "on"})


@dataclass(frozen=True)
class Refusal:
    """One refused option: ``applies(arguments, environment)`` says whether the user chose it."""

    option: str
    applies: Callable[[Any, Environ], bool]
    reason: str
    instead: str

    @property
    def text(self) -> str:
        """The line that the user sees."""
        return f"--wavepp cannot be combined with {self.option}: {self.reason}; {self.instead}"


def check(arguments: Any, settings: WaveSettings, environ: Environ) -> None:
    """Raise ``SettingsError`` with one line for the first thing that WavePP cannot serve.

    ``arguments`` is a ``ServerArgs`` or SGLang's view of a resolved one.
    """
    if arguments.pp_size < 2:
        raise SettingsError(
            f"--wavepp needs a pipeline: --pp-size is {arguments.pp_size}; set --pp-size to 2 or more, "
            "or leave --wavepp out"
        )
    for refusal in REFUSALS:
        if refusal.applies(arguments, environ):
            raise SettingsError(refusal.text)
    if arguments.chunked_prefill_size is not None:
        tokens = settings.wave_tokens(arguments.chunked_prefill_size)
        # A model's recurrent grid can be wider than its pages; the ranks look at it when they have the model.
        if arguments.page_size is not None and tokens < arguments.page_size:
            raise SettingsError(
                f"a wave of {tokens} tokens holds no span: --wavepp-max-wave-tokens (or --chunked-prefill-size) "
                f"must be at least the page of {arguments.page_size} tokens"
            )


def markdown_table() -> str:
    """Return the table of refused options for the README."""
    lines = ["| option | why it is refused with `--wavepp` | what to do |", "|---|---|---|"]
    lines += [f"| `{r.option}` | {r.reason} | {r.instead} |" for r in REFUSALS]
    return "\n".join(lines) + "\n"


def _given(*names: str) -> Callable[[Any, Environ], bool]:
    """Any of the options has a value other than None, False, 0 and empty."""
    return lambda arguments, environ: any(bool(getattr(arguments, name)) for name in names)


def _above_one(*names: str) -> Callable[[Any, Environ], bool]:
    return lambda arguments, environ: any(getattr(arguments, name) > 1 for name in names)


def _other_than(name: str, *allowed: object) -> Callable[[Any, Environ], bool]:
    return lambda arguments, environ: getattr(arguments, name) not in allowed


def _env(name: str) -> Callable[[Any, Environ], bool]:
    return lambda arguments, environ: environ.get(name, "").strip().lower() in _TRUE


def _other_ring(arguments: Any, environ: Environ) -> bool:
    return arguments.pp_async_batch_depth not in (0, arguments.pp_size)


_TUNING = "leave it out"

REFUSALS: tuple[Refusal, ...] = (
    # Parallel layout
    Refusal(
        "--dp-size",
        _above_one("dp_size"),
        "one WavePP server is one replica",
        "start one server per replica and put a router in front",
    ),
    Refusal(
        "--attn-dp-size / --enable-dp-attention",
        lambda a, e: a.attn_dp_size > 1 or a.enable_dp_attention,
        "attention data parallelism gives each rank other requests, and admission needs all ranks to see the same ones",
        "use --tp-size inside a stage",
    ),
    Refusal(
        "--attn-cp-size / --enable-prefill-cp",
        lambda a, e: a.attn_cp_size > 1 or a.enable_prefill_cp,
        "context parallelism splits a span over ranks that then hold different parts of a prefix",
        "use --tp-size inside a stage",
    ),
    Refusal(
        "--dcp-size",
        _above_one("dcp_size"),
        "decode context parallelism widens cache pages beyond the ones that admission counts",
        "use --tp-size inside a stage",
    ),
    Refusal("--moe-dp-size", _above_one("moe_dp_size"), "not supported yet", "use --ep-size inside a stage"),
    Refusal("--dwdp-size", _above_one("dwdp_size"), "not supported yet", "use --ep-size inside a stage"),
    Refusal(
        "--enable-kv-cache-sharding",
        _given("enable_kv_cache_sharding"),
        "it needs a disaggregated prefill server",
        _TUNING,
    ),
    Refusal(
        "--elastic-ep-backend / --ep-join-mode / --enable-elastic-expert-backup",
        _given("elastic_ep_backend", "ep_join_mode", "enable_elastic_expert_backup"),
        "elastic expert parallelism changes the set of ranks while requests are being admitted",
        "use a fixed --ep-size",
    ),
    Refusal(
        "--enable-eplb",
        _given("enable_eplb"),
        "rebalancing experts stops all ranks at a forward count that differs between stages",
        "leave it out, or rebalance offline with --init-expert-location",
    ),
    Refusal(
        "--enable-two-batch-overlap",
        _given("enable_two_batch_overlap"),
        "it splits a batch in two behind the planner's back",
        "leave it out: several waves are in flight already",
    ),
    Refusal(
        "--use-ray", _given("use_ray"), "ranks are started as plain processes", "use --nnodes and --node-rank"
    ),
    Refusal(
        "--pp-async-batch-depth",
        _other_ring,
        "the ring always has 2 x pp-size slots",
        "leave it out; --wavepp sets it to --pp-size",
    ),
    # Scheduling
    Refusal(
        "--schedule-policy",
        _other_than("schedule_policy", "fcfs"),
        "requests are admitted in the order of their arrival, on all ranks alike",
        "use --schedule-policy fcfs",
    ),
    Refusal(
        "--enable-priority-scheduling",
        _given("enable_priority_scheduling"),
        "a request that was admitted on all ranks is never preempted",
        "leave it out and limit the load in front of the server",
    ),
    Refusal(
        "--enable-mixed-chunk",
        _given("enable_mixed_chunk"),
        "decode steps run in lanes of their own between prefill waves",
        _TUNING,
    ),
    Refusal(
        "--enable-dynamic-chunking",
        _given("enable_dynamic_chunking"),
        "the planner chooses the size of every wave",
        "leave it out: --wavepp-planner mpu balances waves by time",
    ),
    Refusal(
        "--prefill-decode-interval",
        _given("prefill_decode_interval"),
        "WavePP alternates decode and prefill waves by its own rule",
        "set --prefill-decode-interval 0",
    ),
    Refusal(
        "--num-continuous-decode-steps",
        _above_one("num_continuous_decode_steps"),
        "WavePP alternates decode and prefill waves by its own rule",
        _TUNING,
    ),
    Refusal(
        "--scheduler-recv-interval",
        _above_one("scheduler_recv_interval"),
        "the executor loop wakes up for a request instead of polling",
        _TUNING,
    ),
    Refusal(
        "--prefill-max-requests",
        _given("prefill_max_requests"),
        "a wave is limited by tokens",
        "use --wavepp-max-wave-tokens",
    ),
    Refusal(
        "--enable-prefill-delayer / --min-free-slots-delay",
        lambda a, e: a.enable_prefill_delayer or a.min_free_slots_delay is not None,
        "only the planner may hold a wave back",
        _TUNING,
    ),
    # Cache
    Refusal(
        "--disable-radix-cache",
        _given("disable_radix_cache"),
        "admission agrees on a prefix in the radix cache",
        "leave --wavepp out if nothing is reused",
    ),
    Refusal(
        "--radix-cache-backend",
        _other_than("radix_cache_backend", None, "", "wavepp"),
        "WavePP needs a cache that two threads may use",
        "leave it out; --wavepp sets it",
    ),
    Refusal(
        "--enable-hierarchical-cache",
        _given("enable_hierarchical_cache"),
        "the host tier is not part of the agreement yet",
        _TUNING,
    ),
    Refusal(
        "--hicache-storage-backend",
        _given("hicache_storage_backend"),
        "the storage tier is not part of the agreement yet",
        _TUNING,
    ),
    Refusal(
        "--enable-lmcache / --enable-flexkv",
        _given("enable_lmcache", "enable_flexkv"),
        "another program's cache is not part of the agreement",
        _TUNING,
    ),
    Refusal(
        "--enable-unified-cache-external-linker",
        _given("enable_unified_cache_external_linker"),
        "an external store is not part of the agreement",
        _TUNING,
    ),
    Refusal(
        "--enable-hisparse",
        _given("enable_hisparse"),
        "sparse host offload moves cache that admission has counted",
        _TUNING,
    ),
    Refusal(
        "--enable-unified-memory / --enable-page-major-kv-layout",
        _given("enable_unified_memory", "enable_page_major_kv_layout"),
        "admission counts each kind of cache in a pool of its own",
        _TUNING,
    ),
    Refusal(
        "--enable-session-radix-cache / --enable-streaming-session",
        _given("enable_session_radix_cache", "enable_streaming_session"),
        "sessions expire by each rank's own clock",
        "send the whole conversation with each request; its prefix is reused",
    ),
    Refusal(
        "--enable-int8-mamba-checkpoint",
        _given("enable_int8_mamba_checkpoint"),
        "SGLang supports it with its own radix cache backend only",
        _TUNING,
    ),
    Refusal(
        "--enable-linear-replayssm",
        _given("enable_linear_replayssm", "enable_linear_replayssm_spec"),
        "recurrent states would be kept outside the slots that admission counts",
        _TUNING,
    ),
    Refusal(
        "--prefill-only-disable-kv-cache",
        _given("prefill_only_disable_kv_cache"),
        "there would be no prefix to agree on",
        _TUNING,
    ),
    # Kinds of serving
    Refusal(
        "--disaggregation-mode",
        _other_than("disaggregation_mode", "null", None),
        "prefill/decode disaggregation has a request queue of its own, which is not part of the agreement yet",
        "serve prefill and decode in one server",
    ),
    Refusal(
        "--enable-pd-role-switch",
        _given("enable_pd_role_switch"),
        "it needs --disaggregation-mode",
        _TUNING,
    ),
    Refusal("--enable-pdmux", _given("enable_pdmux"), "it runs a scheduler loop of its own", _TUNING),
    Refusal(
        "--encoder-only / --language-only / --encoder-urls",
        _given("encoder_only", "language_only", "encoder_urls", "encoder_register_urls"),
        "encoder disaggregation is not supported yet",
        "use --language-model-only for text",
    ),
    Refusal(
        "--enable-multimodal",
        _given("enable_multimodal"),
        "images, audio and video are not carried to the other ranks yet",
        "use --language-model-only for text",
    ),
    Refusal(
        "--speculative-algorithm",
        _given("speculative_algorithm", "enable_multi_layer_eagle", "uno_lora_path"),
        "draft tokens are not part of a wave yet",
        _TUNING,
    ),
    Refusal(
        "--decoupled-spec-role",
        _other_than("decoupled_spec_role", "null", None),
        "draft tokens are not part of a wave yet",
        _TUNING,
    ),
    Refusal(
        "--enable-lora / --lora-paths",
        _given("enable_lora", "lora_paths"),
        "adapters are loaded and drained by each rank's own decision",
        "merge the adapter into the weights",
    ),
    Refusal(
        "--dllm-algorithm", _given("dllm_algorithm"), "diffusion models do not decode left to right", _TUNING
    ),
    Refusal(
        "--is-embedding",
        _given("is_embedding"),
        "only generation requests are admitted",
        "serve embeddings without --wavepp",
    ),
    Refusal("--enable-mis", _given("enable_mis"), "multi-item scoring disables the radix cache", _TUNING),
    Refusal(
        "--enable-return-hidden-states / --return-hidden-states-mode / --enable-return-aux-hidden-states",
        _given("enable_return_hidden_states", "return_hidden_states_mode", "enable_return_aux_hidden_states"),
        "results carry tokens and logprobs only",
        _TUNING,
    ),
    Refusal(
        "--enable-return-routed-experts / --enable-return-indexer-topk",
        _given("enable_return_routed_experts", "enable_return_indexer_topk"),
        "results carry tokens and logprobs only",
        _TUNING,
    ),
    Refusal(
        "--enable-watermark",
        _given("enable_watermark", "watermark_config"),
        "not supported yet",
        _TUNING,
    ),
    # Processes around the scheduler
    Refusal(
        "--tokenizer-worker-num / --detokenizer-worker-num",
        _above_one("tokenizer_worker_num", "detokenizer_worker_num"),
        "replies are routed back to one tokenizer and one detokenizer",
        "use 1",
    ),
    Refusal(
        "--smg-grpc-mode / --grpc-mode / --grpc-port",
        _given("smg_grpc_mode", "grpc_mode", "grpc_port"),
        "the gRPC servers are not supported yet",
        "use the HTTP server",
    ),
    Refusal(
        "--enable-memory-saver",
        _given("enable_memory_saver"),
        "memory cannot be given back between waves yet",
        _TUNING,
    ),
    Refusal(
        "--kv-events-config / --load-publish-endpoint",
        _given("kv_events_config", "load_publish_endpoint"),
        "cache events are not published yet",
        _TUNING,
    ),
    Refusal(
        "--enable-forward-pass-metrics",
        _given("enable_forward_pass_metrics"),
        "it reports iterations of SGLang's own loop",
        "use --wavepp-trace",
    ),
    # Environment
    Refusal(
        "SGLANG_ENABLE_RANK_CONSENSUS_CHECKER",
        _env("SGLANG_ENABLE_RANK_CONSENSUS_CHECKER"),
        "it ends the server when ranks use their caches in another order, which WavePP allows",
        "unset it",
    ),
    Refusal(
        "SGLANG_RUST_SERVER",
        _env("SGLANG_RUST_SERVER"),
        "its requests arrive by another way",
        "unset it",
    ),
    Refusal(
        "SGLANG_ENABLE_PP_SPEC",
        _env("SGLANG_ENABLE_PP_SPEC"),
        "draft tokens are not part of a wave yet",
        "unset it",
    ),
    Refusal(
        "SGLANG_TEST_RETRACT",
        _env("SGLANG_TEST_RETRACT"),
        "a request that was admitted on all ranks is never retracted",
        "unset it",
    ),
)


if __name__ == "__main__":
    print(markdown_table(), end="")
