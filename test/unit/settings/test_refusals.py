"""Each refused option is refused by name, with one line, and nothing else is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from sglang.srt.server_args import ServerArgs

from sglang_wavepp.settings import refusals
from sglang_wavepp.settings.errors import SettingsError
from sglang_wavepp.settings.flags import WaveSettings

# Option as the table names it -> the ways in which a user can ask for it.
ASKED_BY: dict[str, list[dict[str, Any]]] = {
    "--dp-size": [{"dp_size": 2}],
    "--attn-dp-size / --enable-dp-attention": [{"attn_dp_size": 2}, {"enable_dp_attention": True}],
    "--attn-cp-size / --enable-prefill-cp": [{"attn_cp_size": 2}, {"enable_prefill_cp": True}],
    "--dcp-size": [{"dcp_size": 2}],
    "--moe-dp-size": [{"moe_dp_size": 2}],
    "--dwdp-size": [{"dwdp_size": 2}],
    "--enable-kv-cache-sharding": [{"enable_kv_cache_sharding": True}],
    "--elastic-ep-backend / --ep-join-mode / --enable-elastic-expert-backup": [
        {"elastic_ep_backend": "mooncake"},
        {"ep_join_mode": "scale"},
        {"enable_elastic_expert_backup": True},
    ],
    "--enable-eplb": [{"enable_eplb": True}],
    "--enable-two-batch-overlap": [{"enable_two_batch_overlap": True}],
    "--use-ray": [{"use_ray": True}],
    "--pp-async-batch-depth": [{"pp_async_batch_depth": 1}, {"pp_async_batch_depth": 3}],
    "--schedule-policy": [{"schedule_policy": "lpm"}, {"schedule_policy": "priority"}],
    "--enable-priority-scheduling": [{"enable_priority_scheduling": True}],
    "--enable-mixed-chunk": [{"enable_mixed_chunk": True}],
    "--enable-dynamic-chunking": [{"enable_dynamic_chunking": True}],
    "--prefill-decode-interval": [{"prefill_decode_interval": 4}],
    "--num-continuous-decode-steps": [{"num_continuous_decode_steps": 2}],
    "--scheduler-recv-interval": [{"scheduler_recv_interval": 2}],
    "--prefill-max-requests": [{"prefill_max_requests": 4}],
    "--enable-prefill-delayer / --min-free-slots-delay": [
        {"enable_prefill_delayer": True},
        {"min_free_slots_delay": 1},
    ],
    "--disable-radix-cache": [{"disable_radix_cache": True}],
    "--radix-cache-backend": [{"radix_cache_backend": "flexkv"}],
    "--enable-hierarchical-cache": [{"enable_hierarchical_cache": True}],
    "--hicache-storage-backend": [{"hicache_storage_backend": "file"}],
    "--enable-lmcache / --enable-flexkv": [{"enable_lmcache": True}, {"enable_flexkv": True}],
    "--enable-unified-cache-external-linker": [{"enable_unified_cache_external_linker": True}],
    "--enable-hisparse": [{"enable_hisparse": True}],
    "--enable-unified-memory / --enable-page-major-kv-layout": [
        {"enable_unified_memory": True},
        {"enable_page_major_kv_layout": True},
    ],
    "--enable-session-radix-cache / --enable-streaming-session": [
        {"enable_session_radix_cache": True},
        {"enable_streaming_session": True},
    ],
    "--enable-int8-mamba-checkpoint": [{"enable_int8_mamba_checkpoint": True}],
    "--enable-linear-replayssm": [{"enable_linear_replayssm": True}, {"enable_linear_replayssm_spec": True}],
    "--prefill-only-disable-kv-cache": [{"prefill_only_disable_kv_cache": True}],
    "--disaggregation-mode": [{"disaggregation_mode": "prefill"}, {"disaggregation_mode": "decode"}],
    "--enable-pd-role-switch": [{"enable_pd_role_switch": True}],
    "--enable-pdmux": [{"enable_pdmux": True}],
    "--encoder-only / --language-only / --encoder-urls": [
        {"encoder_only": True},
        {"language_only": True},
        {"encoder_urls": ["http://localhost:1"]},
        {"encoder_register_urls": ["http://localhost:1"]},
    ],
    "--enable-multimodal": [{"enable_multimodal": True}],
    "--speculative-algorithm": [
        {"speculative_algorithm": "EAGLE"},
        {"enable_multi_layer_eagle": True},
        {"uno_lora_path": "x"},
    ],
    "--decoupled-spec-role": [{"decoupled_spec_role": "drafter"}],
    "--enable-lora / --lora-paths": [{"enable_lora": True}, {"lora_paths": ["a=b"]}],
    "--dllm-algorithm": [{"dllm_algorithm": "LowConfidence"}],
    "--is-embedding": [{"is_embedding": True}],
    "--enable-mis": [{"enable_mis": True}],
    "--enable-return-hidden-states / --return-hidden-states-mode / --enable-return-aux-hidden-states": [
        {"enable_return_hidden_states": True},
        {"return_hidden_states_mode": "last"},
        {"enable_return_aux_hidden_states": True},
    ],
    "--enable-return-routed-experts / --enable-return-indexer-topk": [
        {"enable_return_routed_experts": True},
        {"enable_return_indexer_topk": True},
    ],
    "--enable-watermark": [{"enable_watermark": True}, {"watermark_config": "{}"}],
    "--tokenizer-worker-num / --detokenizer-worker-num": [
        {"tokenizer_worker_num": 2},
        {"detokenizer_worker_num": 2},
    ],
    "--smg-grpc-mode / --grpc-mode / --grpc-port": [
        {"smg_grpc_mode": True},
        {"grpc_mode": True},
        {"grpc_port": 50051},
    ],
    "--enable-memory-saver": [{"enable_memory_saver": True}],
    "--kv-events-config / --load-publish-endpoint": [
        {"kv_events_config": "{}"},
        {"load_publish_endpoint": "auto"},
    ],
    "--enable-forward-pass-metrics": [{"enable_forward_pass_metrics": True}],
    "SGLANG_ENABLE_RANK_CONSENSUS_CHECKER": [{"environ": {"SGLANG_ENABLE_RANK_CONSENSUS_CHECKER": "1"}}],
    "SGLANG_RUST_SERVER": [{"environ": {"SGLANG_RUST_SERVER": "true"}}],
    "SGLANG_ENABLE_PP_SPEC": [{"environ": {"SGLANG_ENABLE_PP_SPEC": "1"}}],
    "SGLANG_TEST_RETRACT": [{"environ": {"SGLANG_TEST_RETRACT": "1"}}],
}
CASES = [(option, dict(asked)) for option, ways in ASKED_BY.items() for asked in ways]


def check(environ: dict[str, str] | None = None, **asked: Any) -> None:
    arguments = ServerArgs(model_path="dummy", **{"pp_size": 2, **asked})
    refusals.check(arguments, WaveSettings(), environ or {})


@pytest.mark.parametrize(("option", "asked"), CASES, ids=[f"{o}-{i}" for i, (o, _) in enumerate(CASES)])
def test_is_refused_by_name(option: str, asked: dict[str, Any]) -> None:
    with pytest.raises(SettingsError) as refusal:
        check(**asked)
    line = str(refusal.value)
    assert line.startswith(f"--wavepp cannot be combined with {option}: ")
    assert "\n" not in line
    assert "; " in line, "the line must say what to do instead"


def test_every_row_has_a_case() -> None:
    assert set(ASKED_BY) == {refusal.option for refusal in refusals.REFUSALS}


def test_every_named_flag_exists_in_sglang() -> None:
    fields = {field.name for field in msgspec.structs.fields(ServerArgs)}
    for refusal in refusals.REFUSALS:
        for flag in refusal.option.split(" / "):
            if flag.startswith("--"):
                assert flag[2:].replace("-", "_") in fields, flag


def test_defaults_are_served() -> None:
    check()
    check(tp_size=2, pp_size=4, ep_size=2, page_size=64, chunked_prefill_size=256, pp_async_batch_depth=4)
    check(radix_cache_backend="wavepp", environ={"SGLANG_TEST_RETRACT": "0"})


def test_one_stage_is_no_pipeline() -> None:
    with pytest.raises(SettingsError, match="--pp-size is 1; set --pp-size to 2 or more"):
        check(pp_size=1)


def test_waves_need_a_size() -> None:
    with pytest.raises(SettingsError, match="--wavepp needs a wave size"):
        check(chunked_prefill_size=-1)


def test_a_wave_holds_a_page() -> None:
    check(page_size=64, chunked_prefill_size=64)
    for wrong in ({"page_size": 64, "chunked_prefill_size": 63}, {"page_size": 512}):
        with pytest.raises(
            SettingsError, match="wave of (63|256) tokens holds no span: --wavepp-max-wave-tokens"
        ):
            check(**{"chunked_prefill_size": 256, **wrong})


def test_table_lists_every_row() -> None:
    table = refusals.markdown_table().splitlines()
    assert len(table) == len(refusals.REFUSALS) + 2
    assert all(row.count("|") == 4 for row in table)


README = Path(__file__).parents[3] / "README.md"


@pytest.mark.skipif(not README.exists(), reason="a wheel has no README")
def test_readme_shows_this_table() -> None:
    assert refusals.markdown_table() in README.read_text(encoding="utf-8"), (
        "paste the output of python -m sglang_wavepp.settings.refusals into README.md"
    )
