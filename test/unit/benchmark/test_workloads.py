from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark.workloads import FIRST_ID, LAST_ID, lone_prompt, mixed_workload, shared_prefix_workload

SIZES = st.integers(1, 120)


@settings(max_examples=30)
@given(st.integers(0, 99), SIZES, st.integers(1, 4000), st.integers(1, 16))
def test_a_mixed_workload_is_what_was_asked_for(seed: int, requests: int, longest: int, output: int) -> None:
    workload = mixed_workload(seed, requests=requests, longest=longest, most_output_tokens=output)
    assert len(workload) == requests
    assert len({prompt.name for prompt in workload.prompts}) == len(workload.prompts)
    for prompt in workload.prompts:
        assert 1 <= len(prompt.token_ids) <= longest and 1 <= prompt.output_tokens <= output
        assert all(FIRST_ID <= token <= LAST_ID for token in prompt.token_ids)
    assert workload == mixed_workload(seed, requests=requests, longest=longest, most_output_tokens=output)


def test_another_seed_gives_other_prompts() -> None:
    one, other = (mixed_workload(seed, requests=60) for seed in (1, 2))
    assert {p.token_ids for p in one.prompts}.isdisjoint(p.token_ids for p in other.prompts)


def test_a_mixed_workload_shares_prefixes_and_reaches_the_longest_prompt() -> None:
    prompts = [prompt.token_ids for prompt in mixed_workload(1, requests=200).prompts]
    assert {len(prompt) for prompt in prompts} >= {1, 64, 65, 4000}
    starts = [prompt[:64] for prompt in prompts if len(prompt) > 64]
    assert len(starts) - len(set(starts)) > 50


def test_a_second_turn_goes_on_after_the_answer() -> None:
    workload = mixed_workload(3, requests=40)
    assert len(workload.follow_ups) == 8
    outputs = {prompt.name: [7] * prompt.output_tokens for prompt in workload.prompts}
    by_name = {prompt.name: prompt for prompt in workload.prompts}
    turns = workload.second_turns(outputs)
    assert len(turns) == 8
    for turn in turns:
        first = by_name[turn.name.removesuffix("+turn2")]
        so_far = (*first.token_ids, *outputs[first.name])
        assert turn.token_ids[: len(so_far)] == so_far and len(turn.token_ids) > len(so_far)


def test_groups_share_exactly_their_prefix() -> None:
    workload = shared_prefix_workload(
        1, groups=2, prompts_per_group=3, prefix_tokens=100, suffix_tokens=20, output_tokens=4
    )
    assert [prompt.name for prompt in workload.prompts[:3]] == ["group0-0", "group1-0", "group0-1"]
    assert len({prompt.token_ids[:100] for prompt in workload.prompts}) == 2
    assert len({prompt.token_ids for prompt in workload.prompts}) == 6
    assert {len(prompt.token_ids) for prompt in workload.prompts} == {120}


def test_lone_prompts_differ_by_seed_and_length() -> None:
    assert lone_prompt(1, 50) == lone_prompt(1, 50)
    assert lone_prompt(1, 50).token_ids != lone_prompt(2, 50).token_ids
    assert lone_prompt(1, 51).token_ids[:50] != lone_prompt(1, 50).token_ids


@pytest.mark.parametrize(
    "wrong", [{"requests": 0}, {"requests": 1, "longest": 4001}, {"requests": 1, "longest": 0}]
)
def test_impossible_workloads_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="a workload needs"):
        mixed_workload(1, **wrong)
