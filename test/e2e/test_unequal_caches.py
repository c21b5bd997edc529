"""Ranks whose caches or pools differ still give the reference tokens."""

from __future__ import annotations

import pytest
from e2e.configs import HYBRID, UNEQUAL
from e2e.references import References

from benchmark.client import ask_all
from benchmark.comparison import differences
from benchmark.configuration import ServerConfig
from benchmark.servers import Server
from benchmark.workloads import mixed_workload


def _fault_marks(fault: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.server(HYBRID.with_(environment=(("SGLANG_WAVEPP_FAULT", fault),)))]


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(6, id="follower-evicts-a-smaller-pool", marks=pytest.mark.server(UNEQUAL)),
        pytest.param(7, id="leader-evicts", marks=[*_fault_marks("evict_cache:0:5"), pytest.mark.full]),
        pytest.param(8, id="follower-flushes", marks=[*_fault_marks("flush_cache:1:7"), pytest.mark.full]),
    ],
)
def test_same_tokens(server: Server, config: ServerConfig, references: References, seed: int) -> None:
    prompts, expected = references.turns(config, mixed_workload(seed, requests=24, longest=1280))
    for name, concurrency in (("alone", 1), ("concurrent", 8), ("again", 8)):
        answers = ask_all(server.client, prompts, concurrency)
        wrong = differences(prompts, answers, expected)
        assert not wrong, f"{name}: {len(wrong)} of {len(prompts)} wrong:\n" + "\n".join(map(str, wrong[:10]))
    server.client.flush_cache()
