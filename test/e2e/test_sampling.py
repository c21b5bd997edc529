"""Sampling with a temperature: the same draws where draws can be repeated, else the same state and the same odds.

SGLang's own seeds (`sampling_seed`) count only with --enable-deterministic-inference, which it refuses without a GPU.
Here a custom logit processor adds noise that follows from a seed and from the logits, so that the greedy choice is a
draw at that temperature which every server repeats.
"""

from __future__ import annotations

import builtins
import json
import math
from collections import Counter
from types import FunctionType
from typing import Any

import dill
import pytest
from e2e.configs import HYBRID
from e2e.references import References

from benchmark.client import parse_answer, request_body
from benchmark.comparison import LOGPROB_TOLERANCE, logprob_distance
from benchmark.configuration import ServerConfig
from benchmark.servers import Server
from benchmark.workloads import lone_prompt

pytestmark = pytest.mark.server(HYBRID)

LONG = lone_prompt(141, 900).token_ids
SHORT = lone_prompt(142, 40).token_ids


def add_seeded_noise(self: object, logits: Any, params: list[dict[str, Any]]) -> Any:
    """Gumbel noise at each request's temperature; the same for equal seeds and equal logits."""
    import hashlib

    import torch

    for row, asked in zip(logits, params, strict=True):
        place = str((asked["seed"], (row[:16].float() * 8).round().int().tolist()))
        number = int.from_bytes(hashlib.sha256(place.encode()).digest()[:7], "big")
        generator = torch.Generator().manual_seed(number)
        uniform = torch.rand(row.shape, generator=generator, dtype=torch.float64).clamp(1e-12, 1 - 1e-12)
        row.copy_(row.double() / asked["temperature"] - (-uniform.log()).log())
    return logits


def seeded(seed: int, temperature: float, **sampling: Any) -> dict[str, Any]:
    """Fields of a request whose draws follow from a seed."""
    # Seemingly from __main__, so that dill sends the code itself and not a name that the server can't import.
    home = {"__name__": "__main__", "__builtins__": builtins}
    call = FunctionType(add_seeded_noise.__code__, home)
    processor = type("SeededNoise", (), {"__call__": call, "__module__": "__main__"})
    return {
        "custom_logit_processor": json.dumps({"callable": dill.dumps(processor, recurse=True).hex()}),
        "sampling_params": {**sampling, "custom_params": {"seed": seed, "temperature": temperature}},
    }


@pytest.mark.parametrize("prompt", [LONG, SHORT], ids=["long", "short"])
def test_seeded_draws_are_those_of_stock(
    server: Server, config: ServerConfig, references: References, prompt: tuple[int, ...]
) -> None:
    drawn = set()
    for seed in range(4):
        fields = seeded(seed, 1.5)
        wanted = parse_answer(references.raw(config, prompt, 12, **fields), 0.0)
        answer = server.client.generate(prompt, 12, **fields)
        assert answer.token_ids == wanted.token_ids
        assert logprob_distance(answer.logprobs, wanted.logprobs) <= LOGPROB_TOLERANCE
        drawn.add(answer.token_ids)
    assert len(drawn) == 4, "the seed makes no difference"


def test_four_seeded_answers_to_one_prompt(
    server: Server, config: ServerConfig, references: References
) -> None:
    fields = seeded(7, 1.5)
    wanted = references.raw(config, LONG, 8, **fields)["output_ids"]
    answers = server.client.post("/generate", request_body(LONG, 8, **seeded(7, 1.5, n=4)))
    assert [answer["output_ids"] for answer in answers] == [wanted] * 4


def test_four_drawn_answers_to_one_prompt_are_what_stock_would_say_of_them(
    server: Server, config: ServerConfig, references: References
) -> None:
    """Nobody can say what is drawn, but the logprob of every drawn token follows from the tokens before it."""
    body = request_body(LONG, 12, sampling_params={"temperature": 1.0, "n": 4})
    answers = [parse_answer(answer, 0.0) for answer in server.client.post("/generate", body)]
    assert len({answer.token_ids for answer in answers}) == 4, (
        "four draws of twelve tokens were not independent"
    )
    for answer in answers:
        assert len(answer.token_ids) == 12
        told = references.raw(config, (*LONG, *answer.token_ids), 1, logprob_start_len=len(LONG) - 1)
        wanted = [entry[0] for entry in told["meta_info"]["input_token_logprobs"][1:]]
        assert logprob_distance(answer.logprobs, wanted) <= LOGPROB_TOLERANCE
    again = server.client.generate((*LONG, *answers[0].token_ids[:-1]), 1)
    greedy = references.raw(config, (*LONG, *answers[0].token_ids[:-1]), 1)
    assert list(again.token_ids) == greedy["output_ids"], "what a drawn answer left in the cache is wrong"


def test_the_odds_are_those_of_stock(server: Server, config: ServerConfig, references: References) -> None:
    """256 draws of one token among the likeliest four: chi-square with three degrees of freedom."""
    told = references.raw(config, SHORT, 1, top_logprobs_num=4)
    likeliest = {entry[1]: math.exp(entry[0]) for entry in told["meta_info"]["output_top_logprobs"][0]}
    total = sum(likeliest.values())
    sampling = {"temperature": 1.0, "top_k": 4, "n": 16}
    drawn: Counter[int] = Counter()
    for _ in range(16):
        for answer in server.client.post("/generate", request_body(SHORT, 1, sampling_params=sampling)):
            drawn[answer["output_ids"][0]] += 1
    assert drawn.total() == 256 and set(drawn) <= set(likeliest)
    expected = {token: 256 * p / total for token, p in likeliest.items()}
    distance = sum((drawn[token] - count) ** 2 / count for token, count in expected.items())
    assert distance < 30, f"one in a million: drawn {drawn}, expected {expected}"


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 3.0, "top_p": 1e-6},
        {"temperature": 3.0, "min_p": 1.0},
    ],
    ids=["top-k", "top-p", "min-p"],
)
def test_a_draw_among_one_is_greedy(
    server: Server, config: ServerConfig, references: References, sampling: dict[str, Any]
) -> None:
    greedy = references.raw(config, LONG, 8)["output_ids"]
    assert list(server.client.generate(LONG, 8, sampling_params=sampling).token_ids) == greedy
