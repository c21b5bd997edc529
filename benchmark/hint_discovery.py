"""What a rank's hint costs: the index alone, filled as a rank's would be that has so many tokens cached."""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy

from benchmark.progress import Progress
from benchmark.stopwatch import Times, Twice, quantile
from sglang_wavepp.admission.block_hash import Chain, block_hashes, namespace_seed
from sglang_wavepp.admission.components import Component
from sglang_wavepp.admission.hint import HintProbe
from sglang_wavepp.admission.hint_index import HintIndex

BLOCK = 64
SNAPSHOT_GRID = 8192
"""Tokens between recurrent snapshots."""
WINDOW = 4096
GAP_BLOCKS = WINDOW * 3 // 4 // BLOCK
"""Blocks from gap to gap where no window is whole; so spaced, a scan looks at a third of the blocks."""
SEED = namespace_seed(extra_key=None, cache_salt=None)
POLL_SECONDS = 0.0005


@dataclass(frozen=True, slots=True)
class Kind:
    """What a model keeps and what of it is there.

    Attributes:
        components: of the model.
        worst: the prompts are cached in full, but the sparse component has no snapshot of them, or a gap in every
            window, so that a scan finds nothing from the end of the prompt to its beginning.
    """

    name: str
    components: tuple[Component, ...]
    worst: bool = False


KINDS = (
    Kind("attention", (Component.FULL,)),
    Kind("recurrent", (Component.FULL, Component.MAMBA)),
    Kind("recurrent, no snapshot", (Component.FULL, Component.MAMBA), worst=True),
    Kind("window, none whole", (Component.FULL, Component.SWA), worst=True),
)


@dataclass(frozen=True, slots=True)
class Queue:
    """Requests that wait, and the prompts that are cached.

    Attributes:
        cached: prompts in the cache.
        waiting: prompts that share with one of them nothing, all, or something between.
    """

    cached: Sequence[array[int]]
    waiting: Sequence[array[int]]

    @staticmethod
    def of(rng: Any, *, requests: int, length: int, cached: int) -> Queue:
        """Draw them; the shares are spread evenly over the requests."""
        there = random_prompts(rng, cached, length)
        waiting = []
        for number, own in enumerate(random_prompts(rng, requests, length)):
            share = length * number // max(requests - 1, 1)
            waiting.append(there[number % cached][:share] + own[share:])
        return Queue(there, waiting)


def random_prompts(rng: Any, count: int, length: int) -> Sequence[array[int]]:
    """Prompts that share nothing, from a numpy generator; 150,000 different tokens."""
    return [array("q", rng.integers(0, 150_000, length, dtype=numpy.int64).tobytes()) for _ in range(count)]


def hashes_of(prompt: array[int]) -> Chain:
    """Chain of a prompt."""
    return block_hashes(prompt, block=BLOCK, seed=SEED)


def filled_index(kind: Kind, chains: Sequence[Sequence[int]], tokens: int) -> HintIndex:
    """Index of a rank that has these prompts cached, and others up to so many tokens."""
    index = HintIndex(kind.components)
    rng = random.Random(tokens)
    length = len(chains[0])
    others = (rng.sample(range(2**62), length) for _ in range(tokens // BLOCK // length - len(chains)))
    for number, chain in enumerate((*chains, *others)):
        index.add(Component.FULL, chain)
        gaps = kind.worst and number < len(chains)
        if Component.MAMBA in kind.components and not gaps:
            grid = SNAPSHOT_GRID // BLOCK
            index.add(Component.MAMBA, chain[grid - 1 :: grid])
        if Component.SWA in kind.components:
            index.add(Component.SWA, [each for i, each in enumerate(chain) if not gaps or i % GAP_BLOCKS])
    return index


def probe_of(kind: Kind, index: HintIndex) -> HintProbe:
    """Gives the hints of a rank with such a model."""
    window = WINDOW if Component.SWA in kind.components else None
    return HintProbe(index, block=BLOCK, step=BLOCK, window=window)


class Publisher:
    """What an executor does to the index at the end of a span: one goes, one comes."""

    def __init__(self, index: HintIndex, span: int = 8192) -> None:
        self._index = index
        rng = random.Random(span)
        self._spans = [rng.sample(range(2**62), span // BLOCK) for _ in range(2)]
        index.add(Component.FULL, self._spans[0])

    def turn(self) -> None:
        """Publish one span and take one back."""
        gone, came = self._spans
        self._index.add(Component.FULL, came)
        self._index.remove(Component.FULL, gone)
        self._spans = [came, gone]


@dataclass(frozen=True, slots=True)
class Discovery:
    """Times of one kind at one size.

    Attributes:
        probe: one search of the attention component's end.
        hint: of a prompt whose hashes are known.
        hashed: hashes and hint.
    """

    kind: Kind
    tokens: int
    probe: Twice
    hint: Twice
    hashed: Twice

    def details(self) -> dict[str, Any]:
        """For the report."""
        figures: dict[str, Any] = {"kind": self.kind.name, "cached_tokens": self.tokens}
        for name, twice, unit in (
            ("probe_us", self.probe, 1e3),
            ("hint_ms", self.hint, 1e6),
            ("hashed_ms", self.hashed, 1e6),
        ):
            for label, share in (("median", 0.5), ("p99", 0.99)):
                figures[f"{name}_{label}"] = twice.cpu(share) / unit
                figures[f"{name}_{label}_wall"] = twice.wall(share) / unit
        return figures


def discover(queue: Queue, kind: Kind, tokens: int, *, rounds: int) -> Discovery:
    """Give each waiting request its hint, `rounds` times; as a round of the protocol does, one after the other."""
    chains = [hashes_of(prompt) for prompt in queue.cached]
    index = filled_index(kind, chains, tokens)
    probe = probe_of(kind, index)
    prompts = [queue.cached[i % len(queue.cached)] for i in range(len(queue.waiting))]
    if not kind.worst:
        prompts = list(queue.waiting)
    hashes = [hashes_of(prompt) for prompt in prompts]

    def calls(one: Callable[[int], Callable[[], object]]) -> Callable[[], Iterator[Callable[[], object]]]:
        def each_round() -> Iterator[Callable[[], object]]:
            for _ in range(rounds):
                time.sleep(POLL_SECONDS)  # the thread waits for the next broadcast
                yield from map(one, range(len(prompts)))

        return each_round

    publisher = Publisher(index)
    return Discovery(
        kind,
        tokens,
        probe=Twice.of(
            calls(lambda i: partial(index.dense_end, Component.FULL, hashes[i], len(hashes[i]))),
            publisher.turn,
        ),
        hint=Twice.of(calls(lambda i: partial(probe.hint, hashes[i], len(prompts[i]) - 1)), publisher.turn),
        hashed=Twice.of(
            calls(lambda i: lambda: probe.hint(hashes_of(prompts[i]), len(prompts[i]) - 1)), publisher.turn
        ),
    )


def growth(
    rng: Any, *, lengths: Sequence[int], sizes: Sequence[int], rounds: int, progress: Progress
) -> list[dict[str, Any]]:
    """Median processor time of a full hit's hint at each length of prompt and each size of cache."""
    rows = []
    for tokens in sizes:
        for length in lengths:
            if length > tokens:
                continue
            prompt = random_prompts(rng, 1, length)[0]
            chain = hashes_of(prompt)
            row: dict[str, Any] = {"prompt_tokens": length, "cached_tokens": tokens}
            for kind in KINDS:
                progress.detail(f"{length:,} of {tokens:,} tokens, {kind.name}")
                index = filled_index(kind, [chain], tokens)
                probe = probe_of(kind, index)
                call = partial(probe.hint, chain, length - 1)
                row[f"{kind.name}_us"] = quantile(Times.of([call] * rounds).cpu, 0.5) / 1e3
            hashing = partial(hashes_of, prompt)
            row["hash_us"] = quantile(Times.of([hashing] * rounds).cpu, 0.5) / 1e3
            rows.append(row)
    return rows


def upkeep(rng: Any, *, rounds: int, span: int = 8192) -> dict[str, float]:
    """Nanoseconds of processor time per token to put a span into the index and to take it out, hashes known."""
    chain = hashes_of(random_prompts(rng, 1, span)[0])
    index = filled_index(KINDS[0], [hashes_of(prompt) for prompt in random_prompts(rng, 5, span)], 10**6)
    add, remove = partial(index.add, Component.FULL, chain), partial(index.remove, Component.FULL, chain)
    times = Times.of([add, remove] * rounds).cpu
    return {
        "add_ns_per_token": quantile(times[::2], 0.5) / span,
        "remove_ns_per_token": quantile(times[1::2], 0.5) / span,
    }
