"""Runs random histories of real pipelines for as long as it takes: `python -m model.real_campaign --steps 3000000`.

What has been run is kept in the folder, one line per history, and is not run again; `result.json` sums it up. A
history that breaks a rule ends the run and is named with its number: the same number is always the same history.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.pool import AsyncResult
from pathlib import Path
from typing import Any

FIRST = 10_000_000
FOLDER = Path("build/real-campaign")


def run_one(seed: int) -> dict[str, Any]:
    """One history in a worker process; `broken` says what went wrong, if anything did."""
    from model.real.histories import Broken, run_history

    began = time.process_time()
    try:
        met = run_history(seed)
    except Broken as failure:
        return {"seed": seed, "broken": str(failure), "steps": 0}
    return {"seed": seed, "steps": met["steps"], "seconds": time.process_time() - began, "met": dict(met)}


class Record:
    """The histories that were run, in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._lines = folder / "histories.jsonl"
        self._result = folder / "result.json"
        self.seeds: set[int] = set()
        self.met: Counter[str] = Counter()
        self.seconds = 0.0
        self.broken: list[str] = []
        if self._lines.exists():
            for line in self._lines.read_text().splitlines():
                self._take(json.loads(line))

    def add(self, history: dict[str, Any]) -> None:
        """Keep what a history came to. A broken one is not kept, so that it is run again."""
        if "broken" not in history:
            with self._lines.open("a") as lines:
                lines.write(json.dumps(history) + "\n")
        self._take(history)

    def _take(self, history: dict[str, Any]) -> None:
        if "broken" in history:
            self.broken.append(history["broken"])
            return
        self.seeds.add(history["seed"])
        self.seconds += history["seconds"]
        self.met.update(history["met"])

    @property
    def steps(self) -> int:
        return self.met["steps"]

    def write_result(self) -> dict[str, Any]:
        """Sum up what was run so far."""
        result = {
            "steps": self.steps,
            "histories": len(self.seeds),
            "seeds": [min(self.seeds), max(self.seeds)] if self.seeds else [],
            "cpu_seconds": round(self.seconds, 1),
            "steps_per_cpu_second": round(self.steps / self.seconds) if self.seconds else 0,
            "broken": self.broken,
            "met": dict(sorted(self.met.items())),
        }
        self._result.write_text(json.dumps(result, indent=1) + "\n")
        return result


def run(record: Record, *, steps: int, processes: int) -> None:
    """Run histories until so many steps were made, or one broke a rule."""
    seeds = iter(range(FIRST, 1 << 40))
    shown = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for history in _finished(pool, (seed for seed in seeds if seed not in record.seeds), 2 * processes):
            record.add(history)
            if record.broken or record.steps >= steps:
                return
            if time.monotonic() - shown > 20:
                shown = time.monotonic()
                record.write_result()
                print(f"{record.steps:,} of {steps:,} steps, {len(record.seeds):,} histories", flush=True)


def _finished(pool: Any, seeds: Iterator[int], ahead: int) -> Iterator[dict[str, Any]]:
    """What the workers return, with so many histories in work."""
    waiting: list[AsyncResult[dict[str, Any]]] = [
        pool.apply_async(run_one, (next(seeds),)) for _ in range(ahead)
    ]
    while True:
        waiting[0].wait(0.2)
        for each in [each for each in waiting if each.ready()]:
            waiting.remove(each)
            waiting.append(pool.apply_async(run_one, (next(seeds),)))
            yield each.get()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--steps", type=int, default=3_000_000, help="steps in all, those of earlier runs included"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    record = Record(arguments.folder)
    try:
        if record.steps < arguments.steps:
            run(record, steps=arguments.steps, processes=arguments.processes)
    finally:
        result = record.write_result()
    print(json.dumps(result, indent=1))
    return 1 if record.broken else 0


if __name__ == "__main__":
    sys.exit(main())
