"""Prompts as large as the pool are served, larger ones refused at once, and nobody behind them starves."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from e2e.configs import SMALL_POOL
from e2e.references import References

from benchmark.client import RequestFailed
from benchmark.comparison import differences
from benchmark.configuration import ServerConfig
from benchmark.servers import Server
from benchmark.workloads import lone_prompt

pytestmark = pytest.mark.server(SMALL_POOL)


@pytest.mark.parametrize("length", [4033, 4064, 4089])
def test_one_that_fills_the_pool_with_others_behind(
    server: Server, config: ServerConfig, references: References, length: int
) -> None:
    prompts = [lone_prompt(51, length, 4), lone_prompt(52, 700, 4), lone_prompt(53, 40, 4)]
    expected = references.answers(config, prompts)
    with ThreadPoolExecutor(3) as threads:
        answers = []
        for prompt in prompts:
            answers.append(threads.submit(server.client.ask, prompt))
            time.sleep(0.1)
        got = [answer.result(timeout=120) for answer in answers]
    wrong = differences(prompts, got, expected)
    assert not wrong, "\n".join(map(str, wrong))


def test_small_ones_do_not_starve_a_large_one(
    server: Server, config: ServerConfig, references: References
) -> None:
    large, small = lone_prompt(54, 4060, 2), [lone_prompt(55 + k, 200, 2) for k in range(12)]
    (expected,) = references.answers(config, [large])
    with ThreadPoolExecutor(8) as threads:
        before = [threads.submit(server.client.ask, prompt) for prompt in small[:4]]
        answer = threads.submit(server.client.ask, large)
        time.sleep(0.05)
        after = [threads.submit(server.client.ask, prompt) for prompt in small[4:]]
        assert answer.result(timeout=120).token_ids == expected.token_ids
        for other in before + after:
            assert len(other.result(timeout=120).token_ids) == 2


@pytest.mark.parametrize("length", [4097, 5000])
def test_one_that_never_fits_is_refused_at_once_with_the_numbers(server: Server, length: int) -> None:
    started = time.monotonic()
    with pytest.raises(RequestFailed) as failed:
        server.client.ask(lone_prompt(56, length, 4))
    assert time.monotonic() - started < 5
    assert failed.value.status == 400
    numbers = re.findall(r"\d+", str(failed.value).replace(",", ""))
    assert str(length) in numbers and len(numbers) >= 2, f"no numbers in: {failed.value}"
    assert len(server.client.generate(lone_prompt(57, 100).token_ids, 2).token_ids) == 2


def test_reuse_under_eviction(server: Server, config: ServerConfig, references: References) -> None:
    """More prefixes than the pool can hold, asked in turns."""
    prompts = [lone_prompt(60 + k % 6, 1200, 3, name=f"turn{k}") for k in range(18)]
    expected = references.answers(config, prompts)
    with ThreadPoolExecutor(4) as threads:
        got = list(threads.map(server.client.ask, prompts))
    wrong = differences(prompts, got, expected)
    assert not wrong, "\n".join(map(str, wrong))
