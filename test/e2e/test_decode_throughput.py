"""Decode is not slower than stock's: 32 requests of 64 output tokens at pp 4."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from e2e.configs import HYBRID
from e2e.pool import ServerPool

from benchmark.client import ask_all
from benchmark.configuration import ServerConfig
from benchmark.workloads import lone_prompt

CONFIG = HYBRID.with_(pp=4, trace=False, running=32, recurrent_slots=192)
PROMPTS = [lone_prompt(111 + k, 64, 64) for k in range(32)]


@pytest.mark.full
def test_output_tokens_per_second(pool: ServerPool, record_property: Callable[[str, object], None]) -> None:
    speeds = {}
    for name, config in (("stock", CONFIG.stock()), ("wavepp", CONFIG)):
        speeds[name] = _speed(pool, config)
    figures = f"stock {speeds['stock']:.0f} output tokens/s, WavePP {speeds['wavepp']:.0f}"
    record_property("figures", figures)
    assert speeds["wavepp"] >= speeds["stock"]


def _speed(pool: ServerPool, config: ServerConfig) -> float:
    """Output tokens per second, median of three runs."""
    runs = []
    with pool.private(config) as server:
        ask_all(server.client, PROMPTS[:8], 8)
        for _ in range(3):
            server.client.flush_cache()
            started = time.monotonic()
            answers = ask_all(server.client, PROMPTS, 32, return_logprob=False)
            runs.append(sum(len(answer.token_ids) for answer in answers) / (time.monotonic() - started))
    return sorted(runs)[1]
