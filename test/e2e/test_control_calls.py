"""Control calls: what WavePP serves works, and everything else is refused with one line that says why.

`sglang_wavepp.executor.control` holds the list of what is served.
"""

from __future__ import annotations

from typing import Any

import pytest
import requests
from e2e.configs import HYBRID
from e2e.references import References

from benchmark.configuration import ServerConfig
from benchmark.servers import Server
from benchmark.workloads import lone_prompt

pytestmark = pytest.mark.server(HYBRID)

CHECK = lone_prompt(151, 200, 4)

REFUSED: dict[str, dict[str, Any] | None] = {
    "/start_profile": None,
    "/stop_profile": None,
    "/start_expert_distribution_record": None,
    "/stop_expert_distribution_record": None,
    "/dump_expert_distribution_record": None,
    "/set_internal_state": {"server_args": {"pp_max_micro_batch_size": 8}},
    "/update_weights_from_disk": {"model_path": "elsewhere"},
    "/update_weights_from_distributed": {"names": [], "dtypes": [], "shapes": []},
    "/update_weights_from_ipc": {"zmq_handles": {}},
    "/update_weights_from_tensor": {"serialized_named_tensors": []},
    "/update_weight_version": {"new_version": "2"},
    "/begin_weight_update": {},
    "/end_weight_update": {},
    "/init_weights_update_group": {
        "master_address": "127.0.0.1",
        "master_port": 1,
        "rank_offset": 0,
        "world_size": 1,
    },
    "/destroy_weights_update_group": {},
    "/init_weights_send_group_for_remote_instance": {
        "master_address": "127.0.0.1",
        "ports": "1",
        "group_rank": 0,
        "world_size": 1,
    },
    "/send_weights_to_remote_instance": {"master_address": "127.0.0.1", "ports": "1"},
    "/get_weights_by_name": {"name": "lm_head.weight"},
    "/weights_checker": {"action": "snapshot"},
    "/release_memory_occupation": {},
    "/resume_memory_occupation": {},
    "/slow_down": {"forward_sleep_time": None},
    "/open_session": {"capacity_of_str_len": 100},
    "/close_session": {"session_id": "mine"},
    "/hicache/storage-backend/clear": None,
    "/pause_generation": {"mode": "retract"},
}
NOT_ENABLED: dict[str, dict[str, Any]] = {
    "/load_lora_adapter": {"lora_name": "a", "lora_path": "b"},
    "/unload_lora_adapter": {"lora_name": "a"},
    "/pd_role_switch": {"new_role": "decode"},
}
"""SGLang refuses these itself: they need options that WavePP refuses at start."""
SERVED: dict[str, dict[str, Any] | None] = {
    "/freeze_gc": None,
    "/configure_logging": {"log_requests": False},
    "/flush_cache": None,
    "/abort_request": {"rid": "nobody"},
}
READ = (
    "/health",
    "/health_generate",
    "/model_info",
    "/server_info",
    "/v1/loads",
    "/get_hicache_l3_cache_layout",
)


@pytest.mark.parametrize("path", REFUSED)
def test_refused_with_the_reason(server: Server, path: str) -> None:
    answer = _post(server, path, REFUSED[path])
    assert answer.status_code == 400, f"{answer.status_code}: {answer.text}"
    assert "isn't supported with --wavepp" in answer.text
    assert len(answer.text.strip().splitlines()) == 1


@pytest.mark.parametrize("path", NOT_ENABLED)
def test_refused_by_sglang_itself(server: Server, path: str) -> None:
    answer = _post(server, path, NOT_ENABLED[path])
    assert answer.status_code == 400
    assert "not enabled" in answer.text or "is not set" in answer.text


@pytest.mark.parametrize("path", SERVED)
def test_served(server: Server, path: str) -> None:
    answer = _post(server, path, SERVED[path])
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("path", READ)
def test_read(server: Server, path: str) -> None:
    answer = requests.get(server.client.base_url + path, timeout=60)
    assert answer.status_code == 200, answer.text


def test_pause_in_place_and_go_on(server: Server) -> None:
    stream = server.client.stream(lone_prompt(152, 64).token_ids, 60, return_logprob=False)
    next(stream)
    assert _post(server, "/pause_generation", {"mode": "in_place"}).status_code == 200
    assert _post(server, "/continue_generation", {}).status_code == 200
    assert list(stream)[-1]["meta_info"]["completion_tokens"] == 60


def test_afterwards_the_server_is_whole(server: Server, config: ServerConfig, references: References) -> None:
    """Runs after all refusals above: none of them has changed a rank."""
    (expected,) = references.answers(config, [CHECK])
    assert server.client.ask(CHECK).token_ids == expected.token_ids
    server.client.flush_cache()


def _post(server: Server, path: str, body: dict[str, Any] | None) -> requests.Response:
    return requests.post(server.client.base_url + path, json=body, timeout=60)
