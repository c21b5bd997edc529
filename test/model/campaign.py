"""Long runs of random histories, resumable: ``PYTHONPATH=python:.:test python -m model.campaign --steps 3000000``.

Two arms: `oracle` runs the model alone, `product` the product beside it. What was run with the present sources is kept
in ``build/model``, batch by batch; a run that was stopped, in whatever way, goes on where it was.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model.oracle.config import FAMILIES
from model.oracle.mutants import harm, history
from model.oracle.rules import Rules
from model.oracle.simulation import Simulation
from model.shadow import Difference, ShadowedSimulation, lease, two_walk

CHECKOUT = Path(__file__).resolve().parents[2]
RESULTS = CHECKOUT / "build" / "model"
BATCH = 25
MAXIMA = ("max_overtaken", "max_passed")
SEEDS_APART = 10_000_000
"""Histories of two seeds never meet below so many."""

_OWN = ("test/model/oracle", "test/model/campaign.py")
_PRODUCT = (
    "test/model/shadow.py",
    "test/model/naive_tree.py",
    "python/sglang_wavepp/admission",
    "python/sglang_wavepp/cache",
)


def oracle_history(seed: int) -> Simulation:
    """The model alone; half of the histories name their victims."""
    rules = Rules(victims="concrete" if seed // len(FAMILIES) % 2 else "counted")
    return history(rules, _family(seed), seed)


def product_history(seed: int) -> Simulation:
    """The product beside the model: by single operations or whole rounds, every fourth one by two walks."""
    config = FAMILIES[_family(seed)](random.Random(f"{_family(seed)}/{seed}"))
    turn = seed // len(FAMILIES)
    return ShadowedSimulation(config, seed, make=lease if turn % 4 else two_walk, members=bool(turn // 4 % 2))


def _family(seed: int) -> str:
    return tuple(FAMILIES)[seed % len(FAMILIES)]


@dataclass(frozen=True)
class Arm:
    """What is run, and on which files that depends."""

    make: Callable[[int], Simulation]
    sources: tuple[str, ...]

    def fingerprint(self) -> str:
        """Of everything that a history depends on."""
        digest = hashlib.sha256()
        for name in self.sources:
            path = CHECKOUT / name
            for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
                digest.update(file.relative_to(CHECKOUT).as_posix().encode() + file.read_bytes())
        return digest.hexdigest()[:12]


ARMS = {"oracle": Arm(oracle_history, _OWN), "product": Arm(product_history, (*_OWN, *_PRODUCT))}


@dataclass
class Batch:
    """Some histories: what happened in them, and the first one that harmed somebody."""

    number: int
    histories: int = 0
    steps: int = 0
    seen: dict[str, int] = field(default_factory=dict)
    harmed: int | None = None
    harm: str | None = None


def run_batch(task: tuple[str, int, int]) -> Batch:
    """One batch of an arm; `task` is arm, seed and number."""
    arm, seed, number = task
    batch, seen, most = Batch(number), Counter[str](), Counter[str]()
    for each in range(number * BATCH, (number + 1) * BATCH):
        simulation = ARMS[arm].make(seed * SEEDS_APART + each)
        found = _harm(simulation)
        for what in MAXIMA:
            most[what] = max(most[what], simulation.stat.pop(what, 0))
        seen += simulation.stat
        batch.histories += 1
        batch.steps += simulation.steps
        if found is not None:
            batch.harmed, batch.harm = each, found
            break
    batch.seen = {**seen, **most}
    return batch


def _harm(simulation: Simulation) -> str | None:
    try:
        return harm(simulation)
    except Difference as found:
        return str(found)
    except Exception as found:  # whatever the product raises is what the campaign looks for
        return f"{type(found).__name__}: {found}"


class Campaign:
    """Runs batches of one arm and keeps their results.

    Args:
        folder: where results are kept.
    """

    def __init__(self, arm: str, seed: int, folder: Path = RESULTS) -> None:
        self.arm, self.seed = arm, seed
        self.sources = ARMS[arm].fingerprint()
        folder.mkdir(parents=True, exist_ok=True)
        self._kept = folder / f"{arm}-seed{seed}-{self.sources}.jsonl"
        self.summary_file = folder / f"{arm}-seed{seed}.json"
        self.batches: dict[int, Batch] = {}
        if self._kept.exists():
            for line in self._kept.read_text().splitlines():
                try:
                    batch = Batch(**json.loads(line))
                except (json.JSONDecodeError, TypeError):  # the line that a kill cut off
                    continue
                self.batches[batch.number] = batch

    @property
    def steps(self) -> int:
        """Of all batches so far."""
        return sum(batch.steps for batch in self.batches.values())

    @property
    def harmed(self) -> Batch | None:
        """The first batch in which somebody was harmed."""
        found = [batch for _, batch in sorted(self.batches.items()) if batch.harm is not None]
        return found[0] if found else None

    def run(
        self, steps: int, *, processes: int = 1, tell: Callable[[int, int], None] = lambda done, of: None
    ) -> dict[str, Any]:
        """Go on until so many steps were made or somebody was harmed; the summary."""
        tell(self.steps, steps)
        with self._kept.open("a") as kept:
            for batch in self._new_batches(steps, processes):
                self.batches[batch.number] = batch
                kept.write(json.dumps(batch.__dict__) + "\n")
                kept.flush()
                tell(self.steps, steps)
                if batch.harm is not None or self.steps >= steps:
                    break
        summary = self.summary()
        self.summary_file.write_text(json.dumps(summary, indent=1) + "\n")
        return summary

    def _new_batches(self, steps: int, processes: int) -> Iterator[Batch]:
        if self.harmed is not None or self.steps >= steps:
            return
        tasks = ((self.arm, self.seed, n) for n in itertools.count() if n not in self.batches)
        if processes == 1:
            yield from map(run_batch, tasks)
            return
        with ProcessPoolExecutor(processes, multiprocessing.get_context("fork")) as pool:
            running: set[Future[Batch]] = set()
            try:
                while True:
                    while len(running) < 2 * processes:
                        running.add(pool.submit(run_batch, next(tasks)))
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        yield future.result()
            finally:
                pool.shutdown(cancel_futures=True)

    def summary(self) -> dict[str, Any]:
        """What is kept, in figures."""
        seen: Counter[str] = Counter()
        for batch in self.batches.values():
            most = {what: max(seen[what], batch.seen[what]) for what in MAXIMA}
            seen.update(batch.seen)
            for what in MAXIMA:
                seen[what] = most[what]
        harmed = self.harmed
        return {
            "arm": self.arm,
            "seed": self.seed,
            "sources": self.sources,
            "steps": self.steps,
            "histories": sum(batch.histories for batch in self.batches.values()),
            "outcome": "no harm" if harmed is None else f"history {harmed.harmed}: {harmed.harm}",
            "seen": dict(sorted(seen.items())),
            "finished_at": time.strftime("%Y-%m-%d %H:%M"),
        }


class Bar:
    """A line on a terminal that says how far a campaign is and how long it may take."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._began: tuple[float, int] | None = None

    def __call__(self, done: int, of: int) -> None:
        now = time.monotonic()
        if self._began is None:
            self._began = (now, done)
        began, before = self._began
        pace = (done - before) / (now - began) if done > before else 0.0
        rest = f"{pace:,.0f}/s, {max(of - done, 0) / pace / 60:.1f} min left" if pace else ""
        filled = min(30 * done // of, 30)
        line = f"{self._what} [{'#' * filled}{'.' * (30 - filled)}] {done:,} of {of:,} steps {rest}"
        print(f"\r{line:<100}", end="", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 when somebody was harmed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arm", choices=(*ARMS, "both"), default="both")
    parser.add_argument("--steps", type=int, default=3_000_000, help="of each arm")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--history", type=int, help="run one history of an arm and show its end")
    chosen = parser.parse_args(arguments)
    arms = list(ARMS) if chosen.arm == "both" else [chosen.arm]
    if chosen.history is not None:
        return max(_show(arm, chosen.seed, chosen.history) for arm in arms)
    harmed = 0
    for arm in arms:
        campaign = Campaign(arm, chosen.seed)
        summary = campaign.run(chosen.steps, processes=chosen.processes, tell=Bar(arm))
        print(file=sys.stderr)
        print(json.dumps(summary))
        harmed += campaign.harmed is not None
    return int(harmed > 0)


def _show(arm: str, seed: int, number: int) -> int:
    simulation = ARMS[arm].make(seed * SEEDS_APART + number)
    found = _harm(simulation)
    print(simulation.rules, simulation.config, *simulation.log[-40:], sep="\n")
    print(f"{arm} history {number}: {found or 'no harm'} after {simulation.steps} steps")
    return int(found is not None)


if __name__ == "__main__":
    sys.exit(main())
