"""500 requests, 70% of them aborted at random moments, on a pool that is too small for all: no hang, no leak."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from e2e.configs import HYBRID
from e2e.references import References

from benchmark.client import Answer, Client, RequestFailed, ask_all
from benchmark.comparison import differences
from benchmark.configuration import ServerConfig
from benchmark.servers import Server
from benchmark.workloads import FIRST_ID, LAST_ID, Prompt

STORM = HYBRID.with_(trace=False, pool=6144, running=32, recurrent_slots=160)


def _prompts(count: int, seed: int) -> list[Prompt]:
    rng = random.Random(seed)
    texts = [[rng.randint(FIRST_ID, LAST_ID) for _ in range(900)] for _ in range(8)]
    return [
        Prompt(
            name=f"p{number:03}",
            token_ids=(*rng.choice(texts)[: rng.randint(1, 900)], FIRST_ID + number),
            output_tokens=rng.randint(1, 12),
        )
        for number in range(count)
    ]


def _ask(client: Client, prompt: Prompt, rid: str, abort_after: float | None) -> Answer | None:
    """The answer, None when the request ended by its abort."""
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(client.ask, prompt, rid=rid)
        if abort_after is not None:
            time.sleep(abort_after)
            if not answer.done():
                client.abort(rid)
        try:
            got = answer.result()
        except RequestFailed as error:
            if abort_after is not None and "abort" in str(error).lower():
                return None
            raise
    return None if got.finish["type"] == "abort" else got


@pytest.mark.parametrize(
    ("requests", "seed"),
    [
        pytest.param(120, 3, id="pp2-short", marks=pytest.mark.server(STORM)),
        pytest.param(500, 4, id="pp2", marks=[pytest.mark.server(STORM), pytest.mark.full]),
        pytest.param(500, 5, id="pp4", marks=[pytest.mark.server(STORM.with_(pp=4)), pytest.mark.full]),
    ],
)
def test_a_storm_of_aborts(
    server: Server, config: ServerConfig, references: References, requests: int, seed: int
) -> None:
    rng = random.Random(seed)
    prompts = _prompts(requests, seed)
    moments = [rng.expovariate(3.0) if rng.random() < 0.7 else None for _ in prompts]
    with ThreadPoolExecutor(32) as threads:
        futures = [
            threads.submit(_ask, server.client, prompt, f"storm-{prompt.name}", moment)
            for prompt, moment in zip(prompts, moments, strict=True)
        ]
        answers = [future.result() for future in futures]
    kept = [(p, a) for p, a, moment in zip(prompts, answers, moments, strict=True) if moment is None]
    assert all(answer is not None and answer.finish["type"] == "length" for _, answer in kept)
    assert any(answer is None for answer in answers), "no abort came in time"
    sample = kept[:: max(len(kept) // 20, 1)]
    some = [prompt for prompt, _ in sample]
    expected = references.answers(config, some)
    wrong = differences(some, [answer for _, answer in sample if answer is not None], expected)
    assert not wrong, "\n".join(map(str, wrong[:10]))
    again = ask_all(server.client, some, 4)
    assert not differences(some, again, expected), "after the storm"
    server.client.flush_cache()  # refused while anything is held
