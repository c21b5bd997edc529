from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmark.client import Answer
from benchmark.comparison import (
    client_rid,
    differences,
    first_positions,
    implausible_reuse,
    reuse_differences,
    wait_for_prompts,
)
from benchmark.workloads import Prompt
from sglang_wavepp.plane.messages import RankId
from sglang_wavepp.telemetry.trace import WAVES, Timeline

PROMPT = Prompt(name="p", token_ids=(3, 4, 5), output_tokens=3)
ANSWER = Answer(
    rid="r",
    prompt_tokens=200,
    cached_tokens=128,
    token_ids=(1, 2, 3),
    logprobs=(-0.1, -0.2, -0.3),
    text="",
    finish={"type": "length"},
    seconds=0.1,
    meta={},
)


def wrong(**changes: object) -> list[str]:
    return [str(d) for d in differences([PROMPT], [replace(ANSWER, **changes)], [ANSWER])]  # type: ignore[arg-type]


def test_equal_answers_do_not_differ() -> None:
    assert wrong() == wrong(logprobs=(-0.1, -0.2, -0.3005), cached_tokens=0, seconds=9.0) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"token_ids": (1, 9, 3)}, "p: token 1 differs: (9, 3) instead of (2, 3)"),
        ({"token_ids": (1, 2)}, "p: token 2 differs"),
        ({"token_ids": ()}, "p: token 0 differs"),
        ({"logprobs": (-0.1, -0.2, -0.31)}, "logprobs differ by 0.01"),
        ({"logprobs": (-0.1, -0.2)}, "logprobs differ by inf"),
        ({"logprobs": (-0.1, -0.2, float("nan"))}, "logprobs differ by nan"),
    ],
)
def test_every_difference_is_seen(changes: dict[str, object], words: str) -> None:
    (text,) = wrong(**changes)
    assert words in text


@pytest.mark.parametrize(
    ("cached", "right"), [(0, True), (128, True), (130, False), (-64, False), (256, False)]
)
def test_reuse_is_whole_pages_below_the_prompt(cached: int, right: bool) -> None:
    assert (not implausible_reuse([PROMPT], [replace(ANSWER, cached_tokens=cached)], page=64)) is right


def test_reuse_equals_the_first_span_of_the_trace(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path, RankId(pp_rank=0, tp_rank=0, index=0))
    timeline.complete("wave 0", 1, 2, WAVES, wave=0, slot=0, spans=[("7:r", 128, 64), ("8:other", 0, 3)])
    timeline.complete("wave 1", 3, 4, WAVES, wave=1, slot=0, spans=[("7:r", 192, 8)])
    timeline.close()
    assert first_positions(tmp_path, ["r", "other"]) == {"r": 128, "other": 0}
    assert not reuse_differences([ANSWER], tmp_path)
    (found,) = reuse_differences([replace(ANSWER, cached_tokens=64)], tmp_path)
    assert "64 cached, but its first span starts at 128" in str(found)
    with pytest.raises(TimeoutError, match="missing"):
        first_positions(tmp_path, ["missing"], timeout_seconds=0)


def test_the_traces_of_all_ranks_must_hold_a_prompt_to_its_end(tmp_path: Path) -> None:
    for index, last in enumerate([8, 7]):
        timeline = Timeline(tmp_path, RankId(pp_rank=index, tp_rank=0, index=index))
        timeline.complete("wave 0", 1, 2, WAVES, wave=0, slot=0, spans=[("7:r", 128, 64)])
        timeline.complete("wave 1", 3, 4, WAVES, wave=1, slot=0, spans=[("7:r", 192, last)])
        timeline.close()
        if index:
            with pytest.raises(TimeoutError, match="1 ends of 1 prompts"):
                wait_for_prompts(tmp_path, [ANSWER], timeout_seconds=0)
        else:
            wait_for_prompts(tmp_path, [ANSWER], timeout_seconds=0)


def test_client_ids_may_look_like_anything() -> None:
    assert [client_rid(key) for key in ("12:abc", "12:a:b", "abc", "a:b", "5:")] == [
        "abc",
        "a:b",
        "abc",
        "a:b",
        "5:",
    ]
