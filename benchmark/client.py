"""Talks to one server: ``/generate`` with token ids, aborts, flush, and a closed loop of many requests."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import requests

from benchmark.workloads import Prompt

DEFAULT_TIMEOUT = 180.0


class RequestFailed(RuntimeError):
    """The server answered with an error, or not in time. ``status`` is the HTTP status, or None."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a server answered to one prompt. ``seconds``: from sending to the whole answer."""

    rid: str
    prompt_tokens: int
    cached_tokens: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    finish: dict[str, Any]
    seconds: float
    meta: dict[str, Any] = field(repr=False)


class Client:
    """One server's HTTP interface. Safe to use from several threads.

    Args:
        base_url: such as ``http://127.0.0.1:30000``.
        timeout_seconds: how long one answer may take before `RequestFailed`.
    """

    def __init__(self, base_url: str, timeout_seconds: float = DEFAULT_TIMEOUT) -> None:
        self.base_url = base_url
        self.timeout_seconds = timeout_seconds

    def generate(self, token_ids: Sequence[int], output_tokens: int = 8, **fields: Any) -> Answer:
        """Greedy answer of exactly ``output_tokens`` tokens, with logprobs.

        Args:
            fields: further fields of ``/generate``; ``sampling_params`` is merged with the defaults.

        Raises:
            RequestFailed: see there.
        """
        body = request_body(token_ids, output_tokens, **fields)
        started = time.monotonic()
        answer = self.post("/generate", body)
        if not isinstance(answer, dict) or "meta_info" not in answer:
            raise RequestFailed(f"unexpected answer: {str(answer)[:300]}")
        return parse_answer(answer, time.monotonic() - started)

    def ask(self, prompt: Prompt, **fields: Any) -> Answer:
        """The greedy answer to a prompt of a workload."""
        return self.generate(prompt.token_ids, prompt.output_tokens, **fields)

    def stream(
        self, token_ids: Sequence[int], output_tokens: int = 8, **fields: Any
    ) -> Iterator[dict[str, Any]]:
        """The chunks of a streamed answer. Closing the iterator closes the connection."""
        body = request_body(token_ids, output_tokens, stream=True, **fields)
        with requests.post(
            f"{self.base_url}/generate", json=body, stream=True, timeout=(10, self.timeout_seconds)
        ) as response:
            if response.status_code != 200:
                raise RequestFailed(response.text[:2000], response.status_code)
            for line in response.iter_lines(chunk_size=1):
                if not line.startswith(b"data:"):
                    continue
                payload = line[len(b"data:") :].strip()
                if payload == b"[DONE]":
                    return
                yield json.loads(payload)

    def flush_cache(self, timeout_seconds: float = 30.0) -> None:
        """Empty the prefix cache, waiting until the server is idle.

        Raises:
            RequestFailed: the server refused, so the cache still holds something.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            response = self._send(
                "POST", f"/flush_cache?timeout={max(0.0, deadline - time.monotonic()):.1f}", None
            )
            if response.status_code == 200:
                return
            if time.monotonic() > deadline:
                raise RequestFailed(f"flush_cache refused: {response.text[:500]}", response.status_code)
            time.sleep(0.2)

    def abort(self, rid: str) -> None:
        """Abort one request."""
        self._check(self._send("POST", "/abort_request", {"rid": rid}))

    def abort_all(self) -> None:
        """Abort every request."""
        self._check(self._send("POST", "/abort_request", {"rid": "", "abort_all": True}))

    def server_info(self) -> dict[str, Any]:
        """``/server_info``."""
        info = self._check(self._send("GET", "/server_info", None)).json()
        assert isinstance(info, dict)
        return info

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """POST as JSON; the answer's JSON."""
        return self._check(self._send("POST", path, body)).json()

    def _send(self, method: str, path: str, body: dict[str, Any] | None) -> requests.Response:
        try:
            return requests.request(
                method, self.base_url + path, json=body, timeout=(10, self.timeout_seconds)
            )
        except requests.RequestException as error:
            raise RequestFailed(f"{method} {path}: {error}") from error

    @staticmethod
    def _check(response: requests.Response) -> requests.Response:
        if response.status_code != 200:
            raise RequestFailed(response.text[:2000], response.status_code)
        return response


def request_body(token_ids: Sequence[int], output_tokens: int, **fields: Any) -> dict[str, Any]:
    """The body of a greedy ``/generate`` request for exactly ``output_tokens`` tokens, with logprobs."""
    sampling = {"max_new_tokens": output_tokens, "temperature": 0, "ignore_eos": True}
    sampling.update(fields.pop("sampling_params", {}))
    return {"input_ids": list(token_ids), "sampling_params": sampling, "return_logprob": True, **fields}


def parse_answer(answer: dict[str, Any], seconds: float) -> Answer:
    """The JSON of ``/generate`` as a value."""
    meta = answer["meta_info"]
    return Answer(
        rid=str(meta["id"]),
        prompt_tokens=int(
            meta.get("prompt_tokens", 0)
        ),  # missing when it was aborted before it was scheduled
        cached_tokens=int(meta.get("cached_tokens", 0)),
        token_ids=tuple(answer.get("output_ids") or ()),
        logprobs=tuple(float(entry[0]) for entry in meta.get("output_token_logprobs") or ()),
        text=answer.get("text", ""),
        finish=meta["finish_reason"] or {},
        seconds=seconds,
        meta=meta,
    )


def ask_all(
    client: Client,
    prompts: Sequence[Prompt],
    concurrency: int,
    progress: Callable[[int, int], None] | None = None,
    rid_prefix: str | None = None,
    **fields: Any,
) -> list[Answer]:
    """Answers in the order of the prompts, ``concurrency`` requests at a time (a closed loop).

    Args:
        progress: gets the number of answers so far and the number of prompts.
        rid_prefix: request ids are this and the prompt's name; None lets the server choose.

    Raises:
        RequestFailed: of the first request that failed; what was not sent yet is not sent.
    """
    answers: list[Answer] = []
    with ThreadPoolExecutor(concurrency) as pool:
        futures = []
        for prompt in prompts:
            named = {} if rid_prefix is None else {"rid": rid_prefix + prompt.name}
            futures.append(pool.submit(client.ask, prompt, **named, **fields))
        try:
            for prompt, future in zip(prompts, futures, strict=True):
                try:
                    answers.append(future.result())
                except RequestFailed as error:
                    raise RequestFailed(f"{prompt.name}: {error}", error.status) from error
                if progress is not None:
                    progress(len(answers), len(prompts))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return answers
