"""Requests that take longer than the operator allows, and the end of a server on SIGTERM."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from e2e.configs import SMALL_POOL
from e2e.pool import ServerPool
from e2e.references import References

from benchmark.client import Answer, RequestFailed
from benchmark.configuration import ServerConfig
from benchmark.servers import Server
from benchmark.workloads import lone_prompt

WAITING, RUNNING = 1.5, 8.0
LATENESS = 6.0
"""Seconds that a busy machine may add."""
CONFIG = SMALL_POOL.with_(
    trace=False,
    environment=(
        ("SGLANG_REQ_WAITING_TIMEOUT", f"{WAITING:g}"),
        ("SGLANG_REQ_RUNNING_TIMEOUT", f"{RUNNING:g}"),
    ),
)
SHUTDOWN_SECONDS = 30.0
"""SGLang looks for the signal and for requests that go on every 5 s each."""

pytestmark = pytest.mark.server(CONFIG)

CHECK = lone_prompt(121, 300, 6)
ENDLESS = lone_prompt(122, 900, 3000)
"""Holds nearly the whole pool, and takes longer than a request may run."""


def test_the_client_of_a_request_that_waits_or_runs_too_long_is_told(
    server: Server, config: ServerConfig, references: References
) -> None:
    (expected,) = references.answers(config, [CHECK])
    server.client.flush_cache()
    with ThreadPoolExecutor(3) as threads:
        running = threads.submit(_refused, server, ENDLESS.token_ids, ENDLESS.output_tokens)
        time.sleep(0.3)
        waiting = threads.submit(_refused, server, lone_prompt(123, 2000).token_ids, 8)
        behind = threads.submit(_refused, server, lone_prompt(124, 1500).token_ids, 8)
        for answer in (waiting, behind):
            took, text = answer.result()
            assert "waiting timeout" in text
            assert WAITING <= took <= WAITING + LATENESS
        took, text = running.result()
        assert "running timeout" in text
        assert RUNNING <= took <= RUNNING + LATENESS
    assert server.client.ask(CHECK).token_ids == expected.token_ids
    _assert_whole(server, config)


def test_a_stream_that_runs_too_long_ends_with_the_reason(server: Server, config: ServerConfig) -> None:
    started = time.monotonic()
    # each chunk repeats what came before, so with logprobs the client itself would take seconds
    chunks = list(server.client.stream(ENDLESS.token_ids, ENDLESS.output_tokens, return_logprob=False))
    assert RUNNING <= time.monotonic() - started <= RUNNING + LATENESS
    finish = chunks[-1]["meta_info"]["finish_reason"]
    assert finish["type"] == "abort" and "running timeout" in finish["message"]
    assert len(chunks) > 10, "nothing was streamed before"
    _assert_whole(server, config)


def test_sigterm_lets_requests_end_and_leaves_nothing(
    server: Server, config: ServerConfig, pool: ServerPool, references: References
) -> None:
    prompts = [lone_prompt(125 + k, 100 + 300 * k, 12) for k in range(3)]
    expected = references.answers(config, prompts)
    with ThreadPoolExecutor(5) as threads:
        answers = [threads.submit(server.client.ask, prompt) for prompt in prompts]
        time.sleep(0.5)
        too_long = threads.submit(_refused, server, lone_prompt(129, 900).token_ids, 1000)
        time.sleep(0.3)
        with _terminated(server):
            for answer, wanted in zip(answers, expected, strict=True):
                assert _answer(answer).token_ids == wanted.token_ids
            assert "timeout" in too_long.result()[1]
    assert not server.left_behind()
    assert "critical" not in server.log_text().lower()
    pool.drop(config)


@pytest.mark.full
def test_sigterm_ends_an_idle_server(server: Server, config: ServerConfig, pool: ServerPool) -> None:
    server.client.ask(CHECK)
    with _terminated(server):
        pass
    assert not server.left_behind()
    pool.drop(config)


@contextmanager
def _terminated(server: Server) -> Iterator[None]:
    """SIGTERM to the launcher, as an operator sends it; it must end in time, with status 0."""
    started = time.monotonic()
    os.kill(server.launcher(), signal.SIGTERM)
    yield
    status = server.exit_status(SHUTDOWN_SECONDS - (time.monotonic() - started))
    assert status is not None, f"still running after {SHUTDOWN_SECONDS:g} s:\n{server.log_tail()}"
    assert status == 0, server.log_tail()


def _answer(answer: Future[Answer]) -> Answer:
    return answer.result(timeout=SHUTDOWN_SECONDS)


def _refused(server: Server, token_ids: tuple[int, ...], output_tokens: int) -> tuple[float, str]:
    """How long it took until a request was refused with status 503, and the text."""
    started = time.monotonic()
    with pytest.raises(RequestFailed) as failed:
        server.client.generate(token_ids, output_tokens)
    assert failed.value.status == 503, failed.value
    return time.monotonic() - started, str(failed.value)


def _assert_whole(server: Server, config: ServerConfig) -> None:
    """Idle, nothing leaked: a prompt as large as the pool is served."""
    server.client.flush_cache()
    whole_pool = lone_prompt(120, config.pool - config.page - 8, 1)
    assert len(server.client.ask(whole_pool).token_ids) == 1
