"""Prompts as token ids, from a seed: the same seed gives the same workload everywhere.

Prefix lengths, suffix lengths and lone prompts sit on, just before and just behind the boundaries where caches and
waves are cut (pages of 64 tokens, chunks of 64 to 1,024).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

FIRST_ID, LAST_ID = 3, 2047
LONGEST = 4000
BOUNDARY_LENGTHS = (
    1,
    2,
    17,
    63,
    64,
    65,
    127,
    128,
    129,
    191,
    256,
    257,
    383,
    512,
    640,
    1000,
    1025,
    2048,
    LONGEST,
)
PREFIX_LENGTHS = (64, 192, 576, 700, 1280)
SUFFIX_LENGTHS = (1, 3, 40, 63, 64, 65, 90, 130, 300)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One request: its token ids and how many tokens to generate. ``name`` says what it is for."""

    name: str
    token_ids: tuple[int, ...]
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Prompts in sending order, and which of them get a second turn (a user goes on after the answer).

    Attributes:
        prompts: the first turns.
        follow_ups: name of a first turn -> the new tokens of its second turn, and its output length.
    """

    prompts: tuple[Prompt, ...]
    follow_ups: Mapping[str, tuple[tuple[int, ...], int]]

    def __len__(self) -> int:
        return len(self.prompts) + len(self.follow_ups)

    def second_turns(self, outputs: Mapping[str, Sequence[int]]) -> tuple[Prompt, ...]:
        """The follow-up prompts: first prompt, its answer, new tokens.

        Args:
            outputs: name of a first turn -> the token ids of its answer.
        """
        by_name = {prompt.name: prompt for prompt in self.prompts}
        return tuple(
            Prompt(
                name=f"{name}+turn2",
                token_ids=(*by_name[name].token_ids, *outputs[name], *new_tokens),
                output_tokens=output_tokens,
            )
            for name, (new_tokens, output_tokens) in self.follow_ups.items()
        )


def random_tokens(rng: random.Random, length: int) -> tuple[int, ...]:
    """Token ids without special tokens."""
    return tuple(rng.randint(FIRST_ID, LAST_ID) for _ in range(length))


def mixed_workload(
    seed: int,
    *,
    requests: int,
    longest: int = LONGEST,
    most_output_tokens: int = 16,
    follow_up_share: float = 0.2,
) -> Workload:
    """Lone prompts at boundary lengths, families that share a prefix, and second turns; ``requests`` in all.

    Args:
        longest: no first turn is longer (in tokens).
        most_output_tokens: output lengths are 1 to this.
    """
    if requests < 1 or not 1 <= longest <= LONGEST or most_output_tokens < 1:
        raise ValueError(
            "a workload needs requests, prompts of 1 to 4,000 tokens, and at least one output token"
        )
    rng = random.Random(seed)
    turns = int(requests * follow_up_share)
    firsts = requests - turns
    shapes = _shapes(rng, longest)
    prompts = []
    for number in range(firsts):
        name, token_ids = next(shapes)
        output_tokens = rng.randint(1, most_output_tokens)
        prompts.append(Prompt(name=f"{number:03d}-{name}", token_ids=token_ids, output_tokens=output_tokens))
    rng.shuffle(prompts)
    chosen = rng.sample(prompts, min(turns, firsts))
    follow_ups = {
        prompt.name: (random_tokens(rng, rng.choice(SUFFIX_LENGTHS)), rng.randint(1, most_output_tokens))
        for prompt in chosen
    }
    return Workload(prompts=tuple(prompts), follow_ups=follow_ups)


def shared_prefix_workload(
    seed: int,
    *,
    groups: int,
    prompts_per_group: int,
    prefix_tokens: int,
    suffix_tokens: int,
    output_tokens: int,
) -> Workload:
    """``groups`` prefixes, each continued by ``prompts_per_group`` suffixes, one group after the other in turn."""
    rng = random.Random(seed)
    prefixes = [random_tokens(rng, prefix_tokens) for _ in range(groups)]
    prompts = [
        Prompt(
            name=f"group{group}-{number}",
            token_ids=prefixes[group] + random_tokens(rng, suffix_tokens),
            output_tokens=output_tokens,
        )
        for number in range(prompts_per_group)
        for group in range(groups)
    ]
    return Workload(prompts=tuple(prompts), follow_ups={})


def lone_prompt(seed: int, length: int, output_tokens: int = 8, name: str = "") -> Prompt:
    """One prompt that shares nothing."""
    rng = random.Random(f"{seed}-{length}")
    return Prompt(
        name=name or f"lone{length}", token_ids=random_tokens(rng, length), output_tokens=output_tokens
    )


def _shapes(rng: random.Random, longest: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Endless: two boundary lengths, then a member of a prefix family, and so on; few prompts are long."""
    lengths = [length for length in BOUNDARY_LENGTHS if length <= longest]
    families = [
        random_tokens(rng, length) for length in PREFIX_LENGTHS if length + max(SUFFIX_LENGTHS) <= longest
    ]
    families = families or [random_tokens(rng, max(1, longest // 2))]
    order: list[int] = []
    while True:
        if not order:
            order = rng.sample(lengths, len(lengths))
        length = order.pop()
        yield f"lone{length}", random_tokens(rng, length)
        for _ in range(2):
            prefix = rng.choice(families)
            suffix = random_tokens(rng, min(rng.choice(SUFFIX_LENGTHS), longest - len(prefix)))
            yield f"prefix{len(prefix)}+{len(suffix)}", prefix + suffix
