"""What admission costs on a real tree: the two-walk, keeping the index, evicting, holding the mutex."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from benchmark.cpu_trees import OURS, PAGE, PYTHON, RUST, CpuTree
from benchmark.hint_discovery import POLL_SECONDS, Queue, hashes_of, random_prompts
from benchmark.progress import Progress
from benchmark.stopwatch import BusyLoop, TimedMutex, Times, Twice, quantile
from sglang_wavepp.admission.hint import HintProbe
from sglang_wavepp.admission.hold import Hold
from sglang_wavepp.admission.messages import InstallRecord
from sglang_wavepp.admission.pools import PoolLimits
from sglang_wavepp.cache.lease import LeaseAdmission
from sglang_wavepp.cache.radix_tree import IndexedRadixTree, RadixTree
from sglang_wavepp.cache.two_walk import TwoWalkAdmission

SPAN = 8192
OUTPUT_TOKENS = 128


def ends_of(length: int, span: int = SPAN) -> Sequence[int]:
    """Where the spans of a prompt end that is cached in whole pages."""
    whole = length // PAGE * PAGE
    return sorted({*range(span, whole, span), whole})


def record_of(name: str, prompt: array[int]) -> InstallRecord:
    """A request as admission sees it."""
    return InstallRecord(
        rid=name,
        epoch=0,
        token_ids=prompt,
        max_new_tokens=OUTPUT_TOKENS,
        cache_limit=len(prompt) - 1,
        extra_key=None,
        cache_salt=None,
        request={},
    )


def limits_of(tree: CpuTree, rows: int) -> PoolLimits:
    """The tree's pool."""
    return PoolLimits(tokens=tree.tokens, page_size=PAGE, rows=rows, context=tree.tokens)


def conversation_tree(core: str, queue: Queue, tokens: int, rng: Any, *, spare: int) -> CpuTree:
    """A tree that holds the queue's cached prompts and others, so many tokens, and beside them some free ones."""
    length = len(queue.cached[0]) // PAGE * PAGE
    count = max(tokens // length, len(queue.cached))
    tree = CpuTree(core, count * length + spare)
    others = (random_prompts(rng, 1, length)[0] for _ in range(count - len(queue.cached)))
    for prompt in (*others, *queue.cached):
        tree.insert(prompt, ends_of(length))
    return tree


def two_walk(queue: Queue, tree: CpuTree, *, rounds: int) -> Twice:
    """The hint of the two-walk: a walk of the tree for each waiting request."""
    admission = TwoWalkAdmission(tree=RadixTree(tree.cache, grid=PAGE), limits=limits_of(tree, 1))
    records = [record_of(str(number), prompt) for number, prompt in enumerate(queue.waiting)]

    def calls() -> Iterator[Callable[[], object]]:
        for _ in range(rounds):
            time.sleep(POLL_SECONDS)
            for record in records:
                yield partial(admission.hint, record)

    return Twice.of(calls, lambda: None)


def insertion(rng: Any, *, length: int, prompts: int) -> dict[str, float]:
    """Nanoseconds of processor time per token to cache new prompts in spans, by tree core."""
    cores = {
        "sglang_python": PYTHON,
        "sglang_rust": RUST,
        "indexed_hashing": OURS,
        "indexed_known_hashes": OURS,
    }
    trees = {name: CpuTree(core, (prompts + 1) * length) for name, core in cores.items()}
    times: dict[str, list[int]] = {name: [] for name in cores}
    for prompt in random_prompts(rng, prompts, length):
        trees["indexed_known_hashes"].core.publishing = hashes_of(prompt)
        for name, tree in trees.items():
            times[name] += Times.of([partial(tree.insert, prompt, ends_of(length))]).cpu
    return {f"{name}_ns_per_token": quantile(taken, 0.5) / length for name, taken in times.items()}


class LeafTree:
    """A tree of many leaves, all children of the root, the oldest large and the rest of one page.

    Args:
        core: name of the tree core.
        leaves: how many small ones.
        large: how many large ones.
        large_tokens: tokens of a large one, a multiple of the page.
        rng: numpy generator.
        progress: told how many there are.
    """

    def __init__(
        self, core: str, *, leaves: int, large: int, large_tokens: int, rng: Any, progress: Progress
    ) -> None:
        self.tree = CpuTree(core, leaves * PAGE + large * large_tokens)
        self._rng = rng
        self._progress = progress
        for _ in range(large):
            self._add(large_tokens)
        self.refill()

    def refill(self) -> None:
        """Fill the pool with small leaves."""
        while (left := self.tree.free() // PAGE) > 0:
            if left % 500 == 0:
                self._progress.detail(f"{left:,} leaves to add")
            self._add(PAGE)

    def _add(self, tokens: int) -> None:
        self.tree.insert(random_prompts(self._rng, 1, tokens)[0], [tokens])


def eviction(
    cores: Sequence[str],
    *,
    leaves: int,
    large: int,
    large_tokens: int,
    tokens: int,
    rounds: int,
    rng: Any,
    progress: Progress,
) -> dict[str, Twice]:
    """Evict so many tokens, over and over, by core; each time from a tree with as many leaves.

    Args:
        large: how many of the oldest leaves are large, for each of the evictions.
    """
    trees = {}
    for core in cores:
        trees[core] = LeafTree(
            core,
            leaves=leaves,
            large=2 * rounds * large,
            large_tokens=large_tokens,
            rng=rng,
            progress=progress,
        )
    times: dict[str, list[Times]] = {core: [] for core in cores}
    for beside in (False, True):
        for number in range(rounds):
            progress.detail(f"eviction {number + 1} of {rounds}{', beside a busy thread' if beside else ''}")
            for core, tree in trees.items():
                call = partial(tree.tree.evict, tokens)
                if beside:
                    with BusyLoop(lambda: None):
                        times[core].append(Times.of([call]))
                else:
                    times[core].append(Times.of([call]))
                if not large:
                    tree.refill()
    empty = Times((), ())
    return {
        core: Twice(sum(taken[:rounds], empty), sum(taken[rounds:], empty)) for core, taken in times.items()
    }


class LeaseRound:
    """Leases of the waiting requests on one rank, each taken, cut down and released again.

    Args:
        queue: what waits.
        tree: holds the queue's cached prompts.
        together: leases that are held at a time; the room for them needs victims.
    """

    def __init__(self, queue: Queue, tree: CpuTree, *, together: int) -> None:
        self.mutex = TimedMutex()
        cache: Any = tree.cache
        cache.mutex = self.mutex
        source = IndexedRadixTree(tree.cache, grid=PAGE)
        probe = HintProbe(tree.core.index, block=tree.core.block, step=PAGE)
        self._admission = LeaseAdmission(
            tree=source,
            limits=limits_of(tree, together),
            probe=probe,
            block=tree.core.block,
            wanted=tree.core.wanted,
        )
        tree.core.holder = self._admission.escrows
        self._records = [record_of(str(number), prompt) for number, prompt in enumerate(queue.waiting)]
        self._candidates = {record.rid: self._admission.hint(record).endpoint for record in self._records}
        self._together = together

    def run(self) -> dict[str, Times]:
        """One lease for each request, the oldest released when there are too many; times by what was done."""
        self.mutex.taken()
        times = dict.fromkeys(("hold", "trim", "release"), Times((), ()))
        held: list[InstallRecord] = []

        def note(what: str) -> None:
            times[what] += self.mutex.taken()

        def release() -> None:
            self._admission.release(held.pop(0).rid)
            note("release")

        for record in self._records:
            candidate = self._candidates[record.rid]
            while len(held) >= self._together:
                release()
            while not isinstance(self._admission.hold(record, candidate), Hold):
                note("hold")
                if not held:
                    raise RuntimeError(f"no room for request {record.rid} in an empty pool")
                release()
            note("hold")
            held.append(record)
            if not isinstance(self._admission.trim(record, max(candidate - SPAN, 0)), Hold):
                held.pop()
            note("trim")
        while held:
            release()
        return times


def leases(queue: Queue, tree: CpuTree, *, together: int, rounds: int) -> dict[str, Twice]:
    """How long the mutex is held, by what is done."""
    lease_round = LeaseRound(queue, tree, together=together)

    def all_rounds() -> dict[str, Times]:
        total = dict.fromkeys(("hold", "trim", "release"), Times((), ()))
        for _ in range(rounds):
            time.sleep(POLL_SECONDS)
            for what, times in lease_round.run().items():
                total[what] += times
        return total

    alone = all_rounds()
    with BusyLoop(lambda: None):
        beside = all_rounds()
    return {what: Twice(alone[what], beside[what]) for what in alone}
