"""Ranks whose caches or pools differ still give the reference tokens."""

from __future__ import annotations

import pytest
from e2e.configs import HYBRID
from e2e.references import References

from benchmark.client import ask_all
from benchmark.comparison import differences
from benchmark.configuration import ServerConfig
from benchmark.servers import Server
from benchmark.workloads import mixed_workload


def _with_fault(fault: str) -> ServerConfig:
    return HYBRID.with_(environment=(("SGLANG_WAVEPP_FAULT", fault),))


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(6, id="follower-evicts", marks=pytest.mark.server(_with_fault("evict_rank:1:5"))),
        pytest.param(7, id="leader-evicts", marks=pytest.mark.server(_with_fault("evict_rank:0:5"))),
        pytest.param(
            8, id="follower-has-a-smaller-pool", marks=pytest.mark.server(_with_fault("small_pool:1:8192"))
        ),
    ],
)
def test_same_tokens(server: Server, config: ServerConfig, references: References, seed: int) -> None:
    prompts, expected = references.turns(config, mixed_workload(seed, requests=30, longest=1280))
    for name, concurrency in (("alone", 1), ("concurrent", 8), ("again", 8)):
        answers = ask_all(server.client, prompts, concurrency)
        wrong = differences(prompts, answers, expected)
        assert not wrong, f"{name}: {len(wrong)} of {len(prompts)} wrong:\n" + "\n".join(map(str, wrong[:10]))
    server.client.flush_cache()
