"""Decode is not slower than stock's: 32 requests of 64 output tokens at pp 4, both servers in turn."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from e2e.configs import HYBRID
from e2e.pool import ServerPool

from benchmark.client import ask_all
from benchmark.interleaved import Spread, in_turn, ratio
from benchmark.servers import Server
from benchmark.workloads import lone_prompt

CONFIG = HYBRID.with_(pp=4, trace=False, running=32, recurrent_slots=192)
PROMPTS = [lone_prompt(111 + k, 64, 64) for k in range(32)]
ROUNDS = 5


@pytest.mark.full
def test_output_tokens_per_second(pool: ServerPool, record_property: Callable[[str, object], None]) -> None:
    pool.stop_all()
    with pool.private(CONFIG.stock()) as stock, pool.private(CONFIG, beside=stock) as wavepp:
        servers = {"stock": stock, "wavepp": wavepp}
        in_turn(servers, 1, lambda name, server, number: ask_all(server.client, PROMPTS[:8], 8))
        speeds = in_turn(servers, ROUNDS, lambda name, server, number: _speed(server))
    compared = ratio(speeds["wavepp"], speeds["stock"])
    record_property(
        "figures",
        f"output tokens/s, median (smallest-largest) of {ROUNDS}: stock {Spread.of(speeds['stock']).text()}, "
        f"WavePP {Spread.of(speeds['wavepp']).text()}, ratio {compared.text(2)}",
    )
    assert compared.median >= 1


def _speed(server: Server) -> float:
    """Output tokens per second of one round."""
    server.client.flush_cache()
    started = time.monotonic()
    answers = ask_all(server.client, PROMPTS, 32, return_logprob=False)
    return sum(len(answer.token_ids) for answer in answers) / (time.monotonic() - started)
