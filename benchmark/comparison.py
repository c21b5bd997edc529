"""Compares answers with reference answers, and reuse with the trace: what "the same tokens" means here."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmark.client import Answer
from benchmark.workloads import Prompt
from sglang_wavepp.telemetry.reading import read_folder

LOGPROB_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class Difference:
    """One answer that is not as it should be; ``text`` says how."""

    prompt: str
    text: str

    def __str__(self) -> str:
        return f"{self.prompt}: {self.text}"


def differences(
    prompts: Sequence[Prompt],
    answers: Sequence[Answer],
    expected: Sequence[Answer],
    *,
    tolerance: float = LOGPROB_TOLERANCE,
) -> list[Difference]:
    """Answers whose tokens differ, or whose logprobs differ by more than ``tolerance``."""
    found = []
    for prompt, answer, wanted in zip(prompts, answers, expected, strict=True):
        if answer.token_ids != wanted.token_ids:
            at = next(
                (
                    k
                    for k, (a, b) in enumerate(zip(answer.token_ids, wanted.token_ids, strict=False))
                    if a != b
                ),
                min(len(answer.token_ids), len(wanted.token_ids)),
            )
            found.append(
                Difference(
                    prompt.name,
                    f"token {at} differs: {answer.token_ids[at : at + 4]} instead of {wanted.token_ids[at : at + 4]} "
                    f"({answer.prompt_tokens} prompt tokens, {answer.cached_tokens} cached)",
                )
            )
            continue
        off = logprob_distance(answer.logprobs, wanted.logprobs)
        if not off <= tolerance:
            found.append(Difference(prompt.name, f"logprobs differ by {off:.4g} (tokens are equal)"))
    return found


def logprob_distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Largest difference; infinite when the numbers of values differ, NaN when a value is none."""
    if len(one) != len(other):
        return math.inf
    distances = [abs(a - b) for a, b in zip(one, other, strict=True)]
    return math.nan if any(map(math.isnan, distances)) else max(distances, default=0.0)


def implausible_reuse(prompts: Sequence[Prompt], answers: Sequence[Answer], *, page: int) -> list[Difference]:
    """Answers whose ``cached_tokens`` is not a multiple of the page below the prompt's length."""
    return [
        Difference(
            prompt.name, f"{answer.cached_tokens} cached of {answer.prompt_tokens} tokens at page size {page}"
        )
        for prompt, answer in zip(prompts, answers, strict=True)
        if answer.cached_tokens % page or not 0 <= answer.cached_tokens < answer.prompt_tokens
    ]


def first_positions(trace_folder: Path, rids: Iterable[str], timeout_seconds: float = 5.0) -> dict[str, int]:
    """Client's request id -> start of its first span on rank 0, waiting until the trace holds all of them.

    Raises:
        TimeoutError: some request has no span in the trace.
    """
    wanted = set(rids)
    deadline = time.monotonic() + timeout_seconds
    while True:
        starts: dict[str, int] = {}
        for wave in read_folder(trace_folder)[0].waves():
            for span in () if wave.decode else wave.spans:
                starts.setdefault(client_rid(span.rid), span.start)
        missing = wanted - starts.keys()
        if not missing:
            return {rid: starts[rid] for rid in wanted}
        if time.monotonic() > deadline:
            raise TimeoutError(f"no span in {trace_folder} of {sorted(missing)[:5]} ({len(missing)} in all)")
        time.sleep(0.2)


def wait_for_prompts(trace_folder: Path, answers: Sequence[Answer], timeout_seconds: float = 5.0) -> None:
    """Wait until the traces of all ranks, which are written a while later, hold these prompts to their ends.

    Raises:
        TimeoutError: some don't.
    """
    deadline = time.monotonic() + timeout_seconds
    wanted = {(answer.rid, answer.prompt_tokens) for answer in answers}
    while True:
        missing = 0
        for rank in read_folder(trace_folder):
            spans = (span for wave in rank.waves() if not wave.decode for span in wave.spans)
            missing += len(wanted - {(client_rid(span.rid), span.start + span.length) for span in spans})
        if not missing:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{missing} ends of {len(wanted)} prompts are in no trace in {trace_folder}")
        time.sleep(0.1)


def reuse_differences(answers: Sequence[Answer], trace_folder: Path) -> list[Difference]:
    """Answers whose ``cached_tokens`` is not the position of their first span in the trace."""
    starts = first_positions(trace_folder, (answer.rid for answer in answers))
    return [
        Difference(
            answer.rid, f"{answer.cached_tokens} cached, but its first span starts at {starts[answer.rid]}"
        )
        for answer in answers
        if answer.cached_tokens != starts[answer.rid]
    ]


def client_rid(key: str) -> str:
    """The client's request id of a request as the ranks call it (``ARRIVAL:RID``)."""
    number, _, rid = key.partition(":")
    return rid if rid and number.isdigit() else key
