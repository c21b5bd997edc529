"""The sections of ``benchmark.hints``, and which of their figures have a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from benchmark.cpu_trees import OURS, PAGE, PYTHON, RUST
from benchmark.figures import Figure
from benchmark.hint_discovery import KINDS, Discovery, Queue, discover, growth, upkeep
from benchmark.hint_trees import conversation_tree, eviction, insertion, leases, two_walk
from benchmark.progress import Progress
from benchmark.stopwatch import Times, Twice

STEPS = 6
_SEED = 11


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured; lengths in tokens.

    Attributes:
        prompt: of each waiting request.
        queued: requests that wait.
        cached: sizes of the cache.
        lengths, grown: prompts and caches for the growth.
        rounds: hints of each request, in each setting.
        leaves: of the tree that is evicted from.
        evicted: in one eviction.
        few: leaves that one eviction takes when they are large.
        evictions: in each setting.
        together: leases held at a time.
    """

    prompt: int = 200_000
    queued: int = 64
    cached: Sequence[int] = (1_000_000, 4_000_000)
    lengths: Sequence[int] = (25_000, 50_000, 100_000, 200_000, 400_000)
    grown: Sequence[int] = (1_000_000, 4_000_000, 16_000_000)
    rounds: int = 8
    leaves: int = 20_000
    evicted: int = 100_000
    few: int = 20
    evictions: int = 5
    together: int = 4


QUICK_SIZES = Sizes(
    prompt=12_800,
    queued=4,
    cached=(64_000,),
    lengths=(6_400, 12_800),
    grown=(64_000,),
    rounds=1,
    leaves=200,
    evicted=6_400,
    few=4,
    evictions=1,
    together=2,
)


def measure(sizes: Sizes, progress: Progress) -> tuple[list[Figure], dict[str, Any]]:
    """All sections, one after the other."""
    rng = numpy.random.default_rng(_SEED)
    progress.step(f"hints of {sizes.queued} requests of {sizes.prompt:,} tokens")
    queue = Queue.of(rng, requests=sizes.queued, length=sizes.prompt, cached=5)
    hints = []
    for tokens in sizes.cached:
        for kind in KINDS:
            progress.detail(f"{tokens:,} cached, {kind.name}")
            hints.append(discover(queue, kind, tokens, rounds=sizes.rounds))
    progress.done()
    details: dict[str, Any] = {"discovery": [each.details() for each in hints]}

    progress.step("growth with prompt and cache")
    grown = growth(rng, lengths=sizes.lengths, sizes=sizes.grown, rounds=20 * sizes.rounds, progress=progress)
    details["growth"] = grown
    progress.done()

    progress.step("two-walk, and leases with escrow")
    details["two_walk"], details["leases"] = [], []
    mutex = Twice(Times((), ()), Times((), ()))
    for tokens in sizes.cached:
        for core in (RUST, PYTHON, OURS):
            progress.detail(f"{tokens:,} cached, {core} tree")
            tree = conversation_tree(core, queue, tokens, rng, spare=sizes.prompt // 2)
            walks = two_walk(queue, tree, rounds=max(sizes.rounds // 2, 1))
            details["two_walk"].append({"core": core, "cached_tokens": tokens, **_milliseconds(walks)})
        for what, held in leases(queue, tree, together=sizes.together, rounds=sizes.rounds).items():
            details["leases"].append({"what": what, "cached_tokens": tokens, **_milliseconds(held)})
            mutex += held
    progress.done()

    progress.step("keeping the index")
    details["index_upkeep"] = upkeep(rng, rounds=20 * sizes.rounds)
    length = sizes.evicted // PAGE * PAGE
    details["insertion"] = insertion(rng, length=length, prompts=4 * sizes.rounds)
    progress.done()

    progress.step(f"evicting {sizes.evicted:,} tokens, {sizes.leaves:,} leaves of a page")
    many = _evict(sizes, 0, rng, progress)
    progress.done()
    progress.step(f"evicting {sizes.evicted:,} tokens in {sizes.few} leaves of {sizes.leaves:,}")
    few = _evict(sizes, sizes.few, rng, progress)
    progress.done()
    for name, taken in (("evict_many_leaves", many), ("evict_few_leaves", few)):
        details[name] = {core: _milliseconds(times) for core, times in taken.items()}
    return [*_hint_figures(hints), *_tree_figures(many, few, mutex)], details


def _hint_figures(hints: Sequence[Discovery]) -> list[Figure]:
    """Of the worst kind of model and size of cache."""

    def worst(key: str, meaning: str, unit: str, target: float) -> Figure:
        cpu, wall = (max(each.details()[f"{key}{suffix}"] for each in hints) for suffix in ("", "_wall"))
        return Figure(_KEYS[key], meaning, unit, cpu, wall, target)

    return [
        worst("probe_us_median", "probe, median", "us", 10),
        worst("hint_ms_p99", "hint, p99", "ms", 1),
        worst("hashed_ms_p99", "hint with hashing, p99", "ms", 3),
    ]


_KEYS = {
    "probe_us_median": "probe_us_median",
    "hint_ms_p99": "discovery_ms_p99",
    "hashed_ms_p99": "discovery_with_hash_ms_p99",
}


def _tree_figures(many: dict[str, Twice], few: dict[str, Twice], mutex: Twice) -> list[Figure]:
    ours, rust = many[OURS], many[RUST]
    return [
        Figure(
            "evict_few_leaves_ms",
            "evicting few leaves, median",
            "ms",
            few[OURS].cpu(0.5) / 1e6,
            few[OURS].wall(0.5) / 1e6,
            5,
        ),
        Figure(
            "evict_vs_rust_ratio",
            "evicting many, to Rust, median",
            "ratio",
            ours.cpu(0.5) / rust.cpu(0.5),
            ours.wall(0.5) / rust.wall(0.5),
            1,
        ),
        Figure(
            "mutex_ms_p99",
            "mutex held for leases, p99",
            "ms",
            mutex.cpu(0.99) / 1e6,
            mutex.wall(0.99) / 1e6,
            2,
        ),
    ]


def _evict(sizes: Sizes, large: int, rng: Any, progress: Progress) -> dict[str, Twice]:
    return eviction(
        (OURS, RUST),
        leaves=sizes.leaves,
        large=large,
        large_tokens=-(-sizes.evicted // sizes.few // PAGE) * PAGE,
        tokens=sizes.evicted,
        rounds=sizes.evictions,
        rng=rng,
        progress=progress,
    )


def _milliseconds(times: Twice) -> dict[str, float]:
    return {
        "cpu_ms_median": times.cpu(0.5) / 1e6,
        "cpu_ms_p99": times.cpu(0.99) / 1e6,
        "wall_ms_median": times.wall(0.5) / 1e6,
        "wall_ms_p99": times.wall(0.99) / 1e6,
    }
