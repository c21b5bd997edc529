"""What a client can ask beside greedy tokens: streams, stops, logprobs, several answers, grammars."""

from __future__ import annotations

import itertools
import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from e2e.configs import HYBRID
from e2e.references import References

from benchmark.client import RequestFailed, request_body
from benchmark.comparison import LOGPROB_TOLERANCE
from benchmark.configuration import ServerConfig
from benchmark.servers import Server
from benchmark.workloads import lone_prompt

pytestmark = pytest.mark.server(HYBRID)

LONG = lone_prompt(11, 900).token_ids  # four chunks of 256: three are in the middle of the prompt
SHORT = lone_prompt(12, 40).token_ids


def test_a_stream_has_no_empty_chunk_and_adds_up(server: Server) -> None:
    whole = server.client.post("/generate", _body(LONG, 16))
    chunks = list(server.client.stream(LONG, 16))
    counts = [chunk["meta_info"]["completion_tokens"] for chunk in chunks]
    assert counts[0] >= 1, "the first chunk came before there was a token"
    assert counts == sorted(set(counts)), f"a chunk without a new token: {counts}"
    assert len(counts) > 4
    texts = [chunk["text"] for chunk in chunks]
    assert texts[-1] == whole["text"] and chunks[-1]["output_ids"] == whole["output_ids"]
    for before, after in itertools.pairwise(texts):
        assert after.startswith(before.rstrip("\ufffd"))
    assert chunks[-1]["meta_info"]["finish_reason"]["type"] == "length"


def test_streams_beside_each_other_stay_apart(
    server: Server, config: ServerConfig, references: References
) -> None:
    prompts = [lone_prompt(seed, 300 + 40 * seed, 12) for seed in range(6)]
    expected = references.answers(config, prompts)
    with ThreadPoolExecutor(6) as threads:
        streams = list(threads.map(lambda p: list(server.client.stream(p.token_ids, 12)), prompts))
    for stream, wanted in zip(streams, expected, strict=True):
        assert tuple(stream[-1]["output_ids"]) == wanted.token_ids


@pytest.mark.parametrize("prompt", [LONG, SHORT], ids=["long", "short"])
def test_stop_token(
    server: Server, config: ServerConfig, references: References, prompt: tuple[int, ...]
) -> None:
    stopping = {"ignore_eos": False}  # SGLang takes ignore_eos for the stop tokens as well
    greedy = references.raw(config, prompt, 16, sampling_params=stopping)["output_ids"]
    stop = greedy[min(5, len(greedy) - 1)]
    answer = _same_as_reference(
        server, config, references, prompt, 16, sampling_params={**stopping, "stop_token_ids": [stop]}
    )
    assert answer["output_ids"] == greedy[: greedy.index(stop) + 1]
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}


def test_stop_string(server: Server, config: ServerConfig, references: References) -> None:
    text = references.raw(config, LONG, 16)["text"]
    stop = next(word for word in re.findall(r"[!-~]{2,3}", text[4:]))
    answer = _same_as_reference(server, config, references, LONG, 16, sampling_params={"stop": [stop]})
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert answer["text"] == text[: text.index(stop)]


def test_logprobs_of_the_prompt_and_alternatives(
    server: Server, config: ServerConfig, references: References
) -> None:
    fields: dict[str, Any] = {"logprob_start_len": 100, "top_logprobs_num": 3}
    server.client.generate(LONG, 1)  # the prefix is cached now, but not to be used beyond token 100
    answer = server.client.post("/generate", _body(LONG, 6, **fields))
    wanted = references.raw(config, LONG, 6, **fields)
    for name in ("input_token_logprobs", "output_token_logprobs"):
        _assert_close(answer["meta_info"][name], wanted["meta_info"][name])
    assert len(answer["meta_info"]["input_token_logprobs"]) == len(LONG) - 100
    for name in ("input_top_logprobs", "output_top_logprobs"):
        for ours, theirs in zip(answer["meta_info"][name], wanted["meta_info"][name], strict=True):
            _assert_close(ours or [], theirs or [])
    assert answer["meta_info"]["cached_tokens"] <= 100


def test_two_answers_to_one_prompt(server: Server, config: ServerConfig, references: References) -> None:
    greedy = references.raw(config, LONG, 8)["output_ids"]
    answers = server.client.post("/generate", _body(LONG, 8, sampling_params={"n": 2}))
    assert [answer["output_ids"] for answer in answers] == [greedy, greedy]


def test_a_batch_in_one_http_request(server: Server, config: ServerConfig, references: References) -> None:
    prompts = [lone_prompt(seed, 70 + seed).token_ids for seed in range(3)]
    body = _body(SHORT, 5) | {"input_ids": [list(prompt) for prompt in prompts]}
    answers = server.client.post("/generate", body)
    expected = [references.raw(config, prompt, 5)["output_ids"] for prompt in prompts]
    assert [answer["output_ids"] for answer in answers] == expected


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        ({"regex": "[ab]{3,8}"}, r"[ab]{3,8}"),
        ({"ebnf": 'root ::= "yes" | "no"'}, r"yes|no"),
    ],
    ids=["regex", "ebnf"],
)
def test_grammar(
    server: Server, config: ServerConfig, references: References, grammar: dict[str, str], pattern: str
) -> None:
    sampling = {**grammar, "ignore_eos": False}
    answer = _same_as_reference(server, config, references, SHORT, 12, sampling_params=sampling)
    assert re.fullmatch(pattern, answer["text"]), answer["text"]


def test_json_schema(server: Server, config: ServerConfig, references: References) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"enum": [1, 2]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    sampling = {"json_schema": json.dumps(schema), "ignore_eos": False}
    answer = _same_as_reference(server, config, references, LONG, 40, sampling_params=sampling)
    assert json.loads(answer["text"])["a"] in (1, 2)


def test_a_grammar_that_does_not_compile_is_refused_and_harms_nobody(server: Server) -> None:
    with pytest.raises(RequestFailed) as failed:
        server.client.generate(SHORT, 4, sampling_params={"regex": "[ab"})
    assert failed.value.status == 400
    assert len(server.client.generate(SHORT, 4).token_ids) == 4


def test_penalties(server: Server, config: ServerConfig, references: References) -> None:
    sampling = {"frequency_penalty": 1.5, "presence_penalty": 0.5, "min_new_tokens": 12}
    _same_as_reference(server, config, references, SHORT, 12, sampling_params=sampling)


def test_cache_salts_do_not_share(server: Server) -> None:
    prompt = lone_prompt(13, 400).token_ids
    assert server.client.generate(prompt, 1, cache_salt="one").cached_tokens == 0
    assert server.client.generate(prompt, 1, cache_salt="two").cached_tokens == 0
    assert server.client.generate(prompt, 1, cache_salt="one").cached_tokens >= 256


def _body(token_ids: tuple[int, ...], output_tokens: int, **fields: Any) -> dict[str, Any]:
    return request_body(token_ids, output_tokens, **fields)


def _same_as_reference(
    server: Server,
    config: ServerConfig,
    references: References,
    token_ids: tuple[int, ...],
    output_tokens: int,
    **fields: Any,
) -> Any:
    answer = server.client.post("/generate", _body(token_ids, output_tokens, **fields))
    wanted = references.raw(config, token_ids, output_tokens, **fields)
    assert answer["output_ids"] == wanted["output_ids"]
    assert answer["text"] == wanted["text"]
    assert answer["meta_info"]["finish_reason"] == wanted["meta_info"]["finish_reason"]
    return answer


def _assert_close(ours: list[Any], theirs: list[Any]) -> None:
    assert [entry[1] for entry in ours] == [entry[1] for entry in theirs]
    for (value, *_), (wanted, *_) in zip(ours, theirs, strict=True):
        assert (value is None) == (wanted is None)
        assert value is None or abs(value - wanted) <= LOGPROB_TOLERANCE
