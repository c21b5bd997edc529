"""Greedy tokens equal the reference's: every prompt alone, then all at once, then again on WavePP's own snapshots."""

from __future__ import annotations

import pytest
from e2e.configs import DENSE, HYBRID, HYBRID_MOE, INLINE, TWO_WALK
from e2e.references import References

from benchmark.client import ask_all
from benchmark.comparison import differences, implausible_reuse, reuse_differences
from benchmark.configuration import ServerConfig
from benchmark.servers import Server
from benchmark.workloads import mixed_workload


@pytest.mark.parametrize(
    ("seed", "requests", "longest"),
    [
        pytest.param(1, 60, 4000, id="hybrid", marks=pytest.mark.server(HYBRID)),
        pytest.param(1, 24, 1025, id="hybrid-inline", marks=pytest.mark.server(INLINE)),
        pytest.param(2, 30, 2048, id="dense", marks=pytest.mark.server(DENSE)),
        pytest.param(2, 16, 1025, id="dense-two-walk-supply", marks=pytest.mark.server(TWO_WALK)),
        pytest.param(3, 30, 1280, id="hybrid-moe", marks=pytest.mark.server(HYBRID_MOE)),
    ],
)
def test_every_pass_gives_the_reference_tokens(
    server: Server, config: ServerConfig, references: References, seed: int, requests: int, longest: int
) -> None:
    prompts, expected = references.turns(config, mixed_workload(seed, requests=requests, longest=longest))
    assert len(prompts) == requests
    server.client.flush_cache()
    reused = []
    for name, concurrency, flush in (("alone", 1, True), ("concurrent", 8, True), ("again", 16, False)):
        if flush:
            server.client.flush_cache()
        answers = ask_all(server.client, prompts, concurrency, rid_prefix=f"{name}-{seed}-{requests}-")
        wrong = differences(prompts, answers, expected) + implausible_reuse(
            prompts, answers, page=config.page
        )
        if server.trace_folder is not None:
            wrong += reuse_differences(answers, server.trace_folder)
        assert not wrong, f"{name}: {len(wrong)} of {len(prompts)} wrong:\n" + "\n".join(map(str, wrong[:10]))
        reused.append(sum(answer.cached_tokens for answer in answers))
    assert reused[0] > 0, "no prompt of the first pass met a shared prefix"
    assert reused[2] > reused[0], "the last pass did not reuse what the pass before had cached"
