"""Several ranks per stage, and stages that hold only one kind of layer."""

from __future__ import annotations

import pytest
from e2e.configs import TENSOR_PARALLEL, UNEVEN_STAGES
from e2e.references import References

from benchmark.client import ask_all
from benchmark.comparison import differences, implausible_reuse, reuse_differences
from benchmark.configuration import ServerConfig
from benchmark.servers import Server
from benchmark.workloads import mixed_workload


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(4, id="tp2-pp2", marks=pytest.mark.server(TENSOR_PARALLEL)),
        pytest.param(5, id="pp3-layers-3-1-4", marks=pytest.mark.server(UNEVEN_STAGES)),
    ],
)
def test_same_tokens(server: Server, config: ServerConfig, references: References, seed: int) -> None:
    prompts, expected = references.turns(config, mixed_workload(seed, requests=20, longest=1025))
    assert len(server.ranks()) == config.pp * config.tp
    server.client.flush_cache()
    for name, concurrency in (("alone", 1), ("concurrent", 8)):
        answers = ask_all(server.client, prompts, concurrency, rid_prefix=f"{name}-{seed}-")
        wrong = differences(prompts, answers, expected) + implausible_reuse(
            prompts, answers, page=config.page
        )
        assert server.trace_folder is not None
        wrong += reuse_differences(answers, server.trace_folder)
        assert not wrong, f"{name}: {len(wrong)} of {len(prompts)} wrong:\n" + "\n".join(map(str, wrong[:10]))
