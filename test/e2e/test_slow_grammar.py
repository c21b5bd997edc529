"""A rank that takes long to compile a grammar holds up that request, and nobody else."""

from __future__ import annotations

import itertools
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from e2e.configs import UNEQUAL
from e2e.references import References

from benchmark.client import RequestFailed
from benchmark.configuration import ServerConfig
from benchmark.servers import Server
from benchmark.workloads import lone_prompt

pytestmark = pytest.mark.server(UNEQUAL)

COMPILATION = 2.5
SHORT = lone_prompt(161, 40).token_ids
OTHERS = [lone_prompt(162 + k, 60 + 20 * k, 2) for k in range(3)]


def test_others_go_on_while_a_follower_compiles(
    server: Server, config: ServerConfig, references: References
) -> None:
    sampling = {"regex": "[ab]{3,8}", "ignore_eos": False}
    wanted = references.raw(config, SHORT, 12, sampling_params=sampling)
    expected = references.answers(config, OTHERS)
    server.client.ask(OTHERS[0])
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(_stream_times, server)
        time.sleep(0.5)
        begun = time.monotonic()
        waiting = threads.submit(server.client.generate, SHORT, 12, sampling_params=sampling)
        time.sleep(0.3)
        assert [server.client.ask(other).token_ids for other in OTHERS] == [e.token_ids for e in expected]
        assert time.monotonic() - begun < COMPILATION, "they waited for the grammar"
        assert not waiting.done()
        answer = waiting.result()
        assert time.monotonic() - begun >= COMPILATION
        times = running.result()
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert max(pauses) < COMPILATION / 2, f"a stream stood still for {max(pauses):.1f} s"
    assert list(answer.token_ids) == wanted["output_ids"] and re.fullmatch("[ab]{3,8}", answer.text)


def test_an_abort_while_a_follower_compiles(
    server: Server, config: ServerConfig, references: References
) -> None:
    (expected,) = references.answers(config, OTHERS[:1])
    with ThreadPoolExecutor(1) as threads:
        begun = time.monotonic()
        answer = threads.submit(_ending, server, {"regex": "[cd]{3,8}"}, "compiling")
        time.sleep(0.5)
        while not answer.done():
            server.client.abort("compiling")
            time.sleep(0.1)
        assert answer.result() == "abort"
        assert time.monotonic() - begun < COMPILATION
    server.client.flush_cache()
    assert server.client.ask(OTHERS[0]).token_ids == expected.token_ids
    time.sleep(COMPILATION)  # the grammar that nobody waits for is there
    again = server.client.generate(SHORT, 12, sampling_params={"regex": "[cd]{3,8}", "ignore_eos": False})
    assert re.fullmatch("[cd]{3,8}", again.text)


def _stream_times(server: Server) -> list[float]:
    """When the chunks of a stream came."""
    stream = server.client.stream(lone_prompt(169, 64).token_ids, 150, return_logprob=False)
    return [time.monotonic() for _ in stream]


def _ending(server: Server, sampling: dict[str, Any], rid: str) -> str:
    try:
        return str(server.client.generate(SHORT, 12, rid=rid, sampling_params=sampling).finish["type"])
    except RequestFailed as error:
        if "abort" in str(error).lower():
            return "abort"
        raise
