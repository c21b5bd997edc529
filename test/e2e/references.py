"""Reference answers: stock SGLang on one stage, asked one at a time, every answer computed from the first token on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from e2e.pool import ServerPool

from benchmark.client import Answer, parse_answer, request_body
from benchmark.configuration import ServerConfig, reference
from benchmark.workloads import Prompt, Workload


class References:
    """Answers of the reference servers, each asked for once per session."""

    def __init__(self, pool: ServerPool) -> None:
        self._pool = pool
        self._raw: dict[tuple[ServerConfig, str], Any] = {}

    def raw(self, config: ServerConfig, token_ids: Sequence[int], output_tokens: int, **fields: Any) -> Any:
        """The JSON that the reference for ``config`` answers to ``/generate``."""
        of = reference_of(config)
        body = request_body(token_ids, output_tokens, **fields)
        key = (of, json.dumps(body, sort_keys=True))
        if key not in self._raw:
            self._raw[key] = self._pool.get(of).client.post("/generate", body)
        return self._raw[key]

    def answers(self, config: ServerConfig, prompts: Sequence[Prompt]) -> list[Answer]:
        """The reference answers to these prompts."""
        return [parse_answer(self.raw(config, p.token_ids, p.output_tokens), 0.0) for p in prompts]

    def turns(self, config: ServerConfig, workload: Workload) -> tuple[list[Prompt], list[Answer]]:
        """All prompts of a workload, second turns behind the first ones, and the reference answers to them."""
        firsts = self.answers(config, workload.prompts)
        outputs = {p.name: answer.token_ids for p, answer in zip(workload.prompts, firsts, strict=True)}
        seconds = workload.second_turns(outputs)
        return [*workload.prompts, *seconds], firsts + self.answers(config, seconds)


def reference_of(config: ServerConfig) -> ServerConfig:
    """The server that answers to ``config`` are compared with: same model, same tp size."""
    return reference(config.model, tp=config.tp)
