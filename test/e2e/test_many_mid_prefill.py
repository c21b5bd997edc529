"""Waves carry several requests in the middle of their prompts.

On the dense model: a first prompt of 1,500 tokens leaves 36 tokens of its sixth wave to the second. On the hybrid ones
nothing may begin there, as spans end at multiples of 64.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from e2e.configs import DENSE
from e2e.pool import ServerPool
from e2e.references import References

from benchmark.client import Answer
from benchmark.comparison import client_rid, differences, wait_for_prompts
from benchmark.configuration import ServerConfig
from benchmark.interleaved import Spread, in_turn
from benchmark.servers import Server
from benchmark.workloads import Prompt, lone_prompt
from sglang_wavepp.telemetry.reading import read_folder

PROMPTS = [
    lone_prompt(101, 1500, 4, "long-a"),
    lone_prompt(102, 1500, 4, "long-b"),
    lone_prompt(103, 40, 4, "short"),
]


@pytest.mark.server(DENSE)
def test_waves_carry_several_requests(server: Server, config: ServerConfig, references: References) -> None:
    expected = references.answers(config, PROMPTS)
    server.client.flush_cache()
    answers = _ask_together(server, PROMPTS, "mid-")
    wrong = differences(PROMPTS, answers, expected)
    assert not wrong, "\n".join(map(str, wrong))
    assert server.trace_folder is not None
    rids = {answer.rid for answer in answers}
    wait_for_prompts(server.trace_folder, answers)
    for rank in read_folder(server.trace_folder):
        shared = [
            wave
            for wave in rank.waves()
            if not wave.decode and len({client_rid(span.rid) for span in wave.spans} & rids) > 1
        ]
        assert shared, f"no wave of {rank.header.name} carries two of the requests"
        assert all(
            sum(span.length for span in wave.spans) <= config.wave_budget
            for wave in rank.waves()
            if not wave.decode
        )
    spans = [
        span for wave in read_folder(server.trace_folder)[0].waves() if not wave.decode for span in wave.spans
    ]
    for answer in answers:
        own = sorted((span.start, span.length) for span in spans if client_rid(span.rid) == answer.rid)
        ends = [start + length for start, length in own]
        assert [start for start, _ in own] == [0, *ends[:-1]], "spans of a request leave a gap or overlap"
        assert ends[-1] == answer.prompt_tokens
        assert all(end % config.page == 0 for end in ends[:-1])


@pytest.mark.full
def test_short_prompt_beside_stock(pool: ServerPool, record_property: Callable[[str, object], None]) -> None:
    def short(name: str, server: Server, number: int) -> float:
        server.client.flush_cache()
        return _ask_together(server, PROMPTS, f"timed{number}-")[2].seconds

    pool.stop_all()
    with pool.private(DENSE.stock()) as stock, pool.private(DENSE, beside=stock) as wavepp:
        servers = {"stock": stock, "wavepp": wavepp}
        in_turn(servers, 1, lambda name, server, number: _ask_together(server, PROMPTS, "warm-"))
        seconds = {name: Spread.of(times).text(2) for name, times in in_turn(servers, 5, short).items()}
    record_property(
        "figures",
        f"seconds, median (smallest-largest) of 5: stock {seconds['stock']}, WavePP {seconds['wavepp']}",
    )


def _ask_together(server: Server, prompts: list[Prompt], rid_prefix: str) -> list[Answer]:
    """All prompts at once, in this order of arrival."""
    with ThreadPoolExecutor(len(prompts)) as threads:
        futures = []
        for prompt in prompts:
            futures.append(threads.submit(server.client.ask, prompt, rid=rid_prefix + prompt.name))
            time.sleep(0.05)
        return [future.result() for future in futures]
