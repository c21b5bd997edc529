"""A wrong recurrent state must show: otherwise equal tokens would prove nothing."""

from __future__ import annotations

import pytest
from e2e.configs import ZERO_SNAPSHOT
from e2e.references import References

from benchmark.comparison import differences
from benchmark.configuration import ServerConfig
from benchmark.servers import Server
from benchmark.workloads import shared_prefix_workload


@pytest.mark.server(ZERO_SNAPSHOT)
def test_zeroed_snapshots_change_the_answers(
    server: Server, config: ServerConfig, references: References
) -> None:
    workload = shared_prefix_workload(
        7, groups=1, prompts_per_group=5, prefix_tokens=704, suffix_tokens=40, output_tokens=8
    )
    expected = references.answers(config, workload.prompts)
    server.client.flush_cache()
    answers = [server.client.ask(prompt) for prompt in workload.prompts]
    cold, hits = answers[:1], answers[1:]
    assert not differences(workload.prompts[:1], cold, expected[:1]), "the first prompt restores nothing"
    assert all(answer.cached_tokens >= 640 for answer in hits)
    assert len(differences(workload.prompts[1:], hits, expected[1:])) == len(hits)
