"""Small waves give the same tokens and keep no more recurrent snapshots than large ones."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
import requests
from e2e.configs import HYBRID
from e2e.pool import ServerPool
from e2e.references import References

from benchmark.client import ask_all
from benchmark.comparison import differences, reuse_differences
from benchmark.configuration import ServerConfig
from benchmark.servers import Server
from benchmark.workloads import Prompt, lone_prompt, mixed_workload

PERIOD = 256
METRICS = ("--enable-metrics",)
LARGE = HYBRID.with_(chunk=PERIOD, options=(*HYBRID.options, *METRICS))
SMALL = LARGE.with_(wave_tokens=64, options=(*LARGE.options, "--wavepp-snapshot-period", str(PERIOD)))


def snapshots(server: Server) -> list[int]:
    """Recurrent snapshots in the cache of each rank."""
    page = requests.get(f"{server.client.base_url}/metrics", timeout=30).text
    found = re.findall(r'^sglang_wavepp:snapshots\{.*pp_rank="(\d+)".*\} (\S+)$', page, re.MULTILINE)
    return [int(float(value)) for _, value in sorted(found)]


@pytest.mark.server(SMALL)
def test_every_pass_gives_the_reference_tokens(
    server: Server, config: ServerConfig, references: References
) -> None:
    prompts, expected = references.turns(config, mixed_workload(11, requests=40, longest=2048))
    reused = []
    for name, concurrency, flush in (("alone", 1, True), ("concurrent", 8, True), ("again", 16, False)):
        if flush:
            server.client.flush_cache()
        answers = ask_all(server.client, prompts, concurrency, rid_prefix=f"small-{name}-")
        assert server.trace_folder is not None
        wrong = differences(prompts, answers, expected) + reuse_differences(answers, server.trace_folder)
        assert not wrong, f"{name}: {len(wrong)} of {len(prompts)} wrong:\n" + "\n".join(map(str, wrong[:10]))
        reused.append(sum(answer.cached_tokens for answer in answers))
    assert reused[2] > reused[0] > 0


@pytest.mark.server(SMALL)
def test_a_prefix_that_two_prompts_share_is_kept_where_they_part(
    server: Server, config: ServerConfig, references: References
) -> None:
    """Neither of them ends a span there, and it is no multiple of the period."""
    shared = lone_prompt(81, 640 - 64).token_ids
    prompts = [
        Prompt(name=f"own{k}", token_ids=shared + lone_prompt(82 + k, 300).token_ids, output_tokens=2)
        for k in range(3)
    ]
    server.client.flush_cache()
    answers = [server.client.ask(prompt) for prompt in prompts]
    assert [answer.cached_tokens for answer in answers] == [0, 512, 576]
    assert not differences(prompts, answers, references.answers(config, prompts))


def test_small_waves_keep_no_more_snapshots_than_waves_of_the_period(pool: ServerPool) -> None:
    prompts = [lone_prompt(71 + k, length, 1) for k, length in enumerate((100, 500, 1000, 1090, 2048))]
    # A multiple of the period each, and the end of the prompt where that is none.
    expected = sum(n // PERIOD + (n // 64 * 64 % PERIOD > 0) for n in (100, 500, 1000, 1090, 2048))
    kept = []
    for config in (SMALL, LARGE):
        server = pool.get(config)
        server.client.flush_cache()
        ask_all(server.client, prompts, 1)
        # The gauges are set when the server has nothing left to do, which is after the last answer.
        deadline = time.monotonic() + 10
        while (found := snapshots(server)) != [expected] * HYBRID.pp and time.monotonic() < deadline:
            time.sleep(0.2)
        kept.append(found)
    assert kept == [[expected] * HYBRID.pp] * 2


@pytest.mark.full
@pytest.mark.parametrize(("period", "least", "most"), [(64, 0.0, 0.05), (256, 0.9, 1.0)])
def test_few_slots_hold_the_prefixes_of_many_prompts(
    pool: ServerPool, record_property: Callable[[str, object], None], period: int, least: float, most: float
) -> None:
    """Eight prompts in turn, three times; a snapshot for each wave would need three times the slots there are."""
    options = ("--wavepp-planner", "static", "--wavepp-snapshot-period", str(period))
    prompts = [lone_prompt(500 + k, 1536 + 10 * k, 1) for k in range(8)]
    config = HYBRID.with_(trace=False, wave_tokens=64, running=4, recurrent_slots=64, options=options)
    with pool.private(config) as server:
        turns = [sum(answer.cached_tokens for answer in ask_all(server.client, prompts, 1)) for _ in range(3)]
    tokens = sum(len(prompt.token_ids) for prompt in prompts)
    record_property("figures", f"tokens reused in each turn: {turns} of {tokens}")
    assert turns[0] == 0
    assert all(least <= reused / tokens <= most for reused in turns[1:]), turns
