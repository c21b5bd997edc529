"""A request can end early in every state; afterwards the server is idle, whole and right."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import requests
from e2e.configs import HYBRID, SMALL_POOL
from e2e.references import References

from benchmark.client import Answer, RequestFailed, request_body
from benchmark.configuration import ServerConfig
from benchmark.servers import Server
from benchmark.workloads import lone_prompt

CHECK = lone_prompt(21, 500, 6)


@pytest.fixture(autouse=True)
def whole_afterwards(server: Server, config: ServerConfig, references: References) -> Iterator[None]:
    """After every test: idle (flush succeeds), the next answer is right, and nothing leaked (all of it fits)."""
    (expected,) = references.answers(config, [CHECK])
    server.client.flush_cache()
    yield
    server.client.flush_cache(timeout_seconds=30)
    assert server.client.ask(CHECK).token_ids == expected.token_ids
    if config.pool <= 4096:
        server.client.flush_cache()
        whole_pool = lone_prompt(22, config.pool - config.page - 8, 1)
        assert len(server.client.ask(whole_pool).token_ids) == 1
    assert "leak" not in server.log_text().lower()


@pytest.mark.server(HYBRID)
def test_while_decoding(server: Server) -> None:
    stream = server.client.stream(lone_prompt(23, 100).token_ids, 2000, rid="decoding")
    first = next(stream)
    assert first["meta_info"]["completion_tokens"] >= 1
    server.client.abort("decoding")
    last = list(stream)[-1]
    assert last["meta_info"]["finish_reason"]["type"] == "abort"
    assert last["meta_info"]["completion_tokens"] < 2000


@pytest.mark.server(HYBRID)
@pytest.mark.parametrize("share", [0.02, 0.3, 0.6])
def test_in_the_middle_of_the_prompt(server: Server, share: float) -> None:
    started = time.monotonic()
    assert _finish(server, 24, 4000, "whole") == "length"
    whole = time.monotonic() - started
    server.client.flush_cache()
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(_finish, server, 24, 4000, "prompt")
        time.sleep(share * whole)
        assert _abort(server, "prompt", answer) == "abort"


@pytest.mark.server(HYBRID)
def test_while_queued_behind_a_full_batch(server: Server, config: ServerConfig) -> None:
    with ThreadPoolExecutor(config.running + 4) as threads:
        busy = [threads.submit(_finish, server, 25 + k, 64, f"busy{k}", 48) for k in range(config.running)]
        time.sleep(0.5)
        queued = [threads.submit(_finish, server, 60 + k, 64, f"queued{k}", 48) for k in range(4)]
        time.sleep(0.2)
        assert [_abort(server, f"queued{k}", answer) for k, answer in enumerate(queued)] == ["abort"] * 4
        assert [answer.result() for answer in busy] == ["length"] * config.running


@pytest.mark.server(SMALL_POOL)
def test_while_waiting_for_capacity(server: Server) -> None:
    with ThreadPoolExecutor(3) as threads:
        big = threads.submit(_finish, server, 31, 3000, "big", 200)
        time.sleep(0.3)
        waiting = threads.submit(_finish, server, 32, 3000, "waiting")
        time.sleep(0.5)
        behind = threads.submit(_finish, server, 33, 300, "behind")
        time.sleep(0.3)
        assert _abort(server, "waiting", waiting) == "abort"
        assert behind.result() == "length"
        assert big.result() == "length"


@pytest.mark.server(HYBRID)
@pytest.mark.parametrize("length", [100, 3000], ids=["decoding", "prompt"])
def test_when_the_client_goes_away(server: Server, length: int) -> None:
    body = request_body(lone_prompt(34, length).token_ids, 3000, stream=True)
    url = f"{server.client.base_url}/generate"
    if length == 100:
        with requests.post(url, json=body, stream=True, timeout=60) as response:
            next(response.iter_lines())
    else:
        with pytest.raises(requests.exceptions.ReadTimeout):
            requests.post(url, json=body | {"stream": False}, timeout=0.4)


@pytest.mark.server(HYBRID)
def test_all_at_once(server: Server) -> None:
    with ThreadPoolExecutor(24) as threads:
        answers = [
            threads.submit(_finish, server, 40 + k, 40 + 150 * (k % 8), f"all{k}", 400) for k in range(24)
        ]
        time.sleep(1.0)
        server.client.abort_all()
        assert {answer.result() for answer in answers} == {"abort"}


@pytest.mark.server(HYBRID)
def test_storm(server: Server, config: ServerConfig, references: References) -> None:
    """Every second of 40 requests is aborted at some moment; the others are answered rightly."""
    prompts = [lone_prompt(70 + k, 30 + 37 * (k % 20), 10) for k in range(40)]
    kept = prompts[::2]
    expected = references.answers(config, kept)
    with ThreadPoolExecutor(16) as threads:
        # SGLang aborts every id that begins with the given one, so no id may begin with another
        answers: list[Future[Answer]] = [
            threads.submit(server.client.ask, prompt, rid=f"storm{k:02}") for k, prompt in enumerate(prompts)
        ]
        for k in range(1, 40, 2):
            time.sleep(0.05)
            server.client.abort(f"storm{k:02}")
        got = [answer.result().token_ids for answer in answers[::2]]
    assert got == [answer.token_ids for answer in expected]


@pytest.mark.server(HYBRID)
def test_an_unknown_id_is_ignored(server: Server) -> None:
    server.client.abort("nobody")


def _finish(server: Server, seed: int, length: int, rid: str, output_tokens: int = 8) -> str:
    """How a request ended: the type of its finish reason."""
    prompt = lone_prompt(seed, length, output_tokens)
    try:
        return str(server.client.ask(prompt, rid=rid).finish["type"])
    except RequestFailed as error:
        if "abort" in str(error).lower():
            return "abort"
        raise


def _abort(server: Server, rid: str, answer: Future[str]) -> str:
    """Abort until the request has ended: an abort that overtakes its request is ignored by SGLang."""
    while not answer.done():
        server.client.abort(rid)
        time.sleep(0.1)
    return answer.result()
