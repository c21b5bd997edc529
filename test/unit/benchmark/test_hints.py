from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import numpy
import pytest

from benchmark.figures import Figure, report, table
from benchmark.hint_discovery import KINDS, SNAPSHOT_GRID, Queue, discover, filled_index, hashes_of, probe_of
from benchmark.hints import main
from benchmark.stopwatch import BusyLoop, TimedMutex, Times, Twice, quantile
from sglang_wavepp.admission.components import Component

KEYS = (
    "probe_us_median",
    "discovery_ms_p99",
    "discovery_with_hash_ms_p99",
    "evict_few_leaves_ms",
    "evict_vs_rust_ratio",
    "mutex_ms_p99",
)


def test_quantiles_are_values_that_were_taken() -> None:
    assert [quantile([5, 1, 3, 2, 4], share) for share in (0, 0.2, 0.5, 0.99, 1)] == [1, 1, 3, 5, 5]
    assert quantile([7], 0.5) == 7
    with pytest.raises(ValueError, match="no times"):
        quantile([], 0.5)


def test_processor_time_leaves_out_what_is_slept() -> None:
    times = Times.of([lambda: time.sleep(0.02)] * 2)
    assert min(times.wall) >= 20_000_000
    assert max(times.cpu) < 15_000_000
    assert Twice(times, times) + Twice(times, times) == Twice(times + times, times + times)


def test_a_busy_loop_turns_until_the_block_ends_and_tells_what_failed_it() -> None:
    turned = threading.Event()
    with BusyLoop(turned.set) as loop:
        assert turned.wait(10)
    turns = loop.turns
    assert turns > 0
    time.sleep(0.01)
    assert loop.turns == turns

    def fails() -> None:
        turned.set()
        raise KeyError("lost")

    turned.clear()
    with pytest.raises(KeyError, match="lost"), BusyLoop(fails):
        turned.wait(10)


def test_a_mutex_notes_the_outermost_hold_once() -> None:
    mutex = TimedMutex()
    with mutex:
        with mutex:
            pass
        time.sleep(0.01)
    assert [len(part) for part in (mutex.cpu, mutex.wall)] == [1, 1]
    assert mutex.taken().wall[0] >= 10_000_000
    assert mutex.taken() == Times((), ())


def test_the_queue_shares_from_nothing_to_everything() -> None:
    queue = Queue.of(numpy.random.default_rng(1), requests=5, length=400, cached=2)
    common = []
    for number, prompt in enumerate(queue.waiting):
        there = queue.cached[number % 2]
        common.append(next((i for i in range(400) if prompt[i] != there[i]), 400))
    assert common == [0, 100, 200, 300, 400]


def test_the_worst_kinds_scan_all_blocks_in_vain() -> None:
    queue = Queue.of(numpy.random.default_rng(1), requests=2, length=2 * SNAPSHOT_GRID, cached=2)
    chain = hashes_of(queue.cached[0])
    for kind in KINDS:
        index = filled_index(kind, [hashes_of(prompt) for prompt in queue.cached], 8 * SNAPSHOT_GRID)
        assert len(index.contents()[Component.FULL]) == 8 * SNAPSHOT_GRID // 64
        assert index.dense_end(Component.FULL, chain, len(chain)) == len(chain)
        hint = probe_of(kind, index).hint(chain, 2 * SNAPSHOT_GRID)
        assert hint.endpoint == (0 if kind.worst else 2 * SNAPSHOT_GRID)
    details = discover(queue, KINDS[0], 8 * SNAPSHOT_GRID, rounds=2).details()
    assert details["hashed_ms_median"] > details["hint_ms_median"] > 0


def test_the_table_marks_what_missed_its_target() -> None:
    figures = [Figure("a", "fast", "ms", 1.0, 6.25, 1.0), Figure("b", "slow", "us", 11.5, 12.0, 10.0)]
    head, rule, *rows = table(figures).splitlines()
    assert {len(head), len(rule)} == {len(row) for row in rows}
    assert [row.split() for row in rows] == [
        ["fast", "(ms)", "1", "1", "6.25"],
        ["slow", "(us)", "11.5", "10", "MISSED", "12"],
    ]
    assert json.loads(report(figures, {"more": 1})) == {
        "a": 1.0,
        "a_wall": 6.25,
        "b": 11.5,
        "b_wall": 12.0,
        "details": {"more": 1},
    }


@pytest.mark.slow
def test_a_quick_run_measures_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--output", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "hints.json").read_text())
    assert set(found) == {*KEYS, *(f"{key}_wall" for key in KEYS), "details"}
    assert all(found[key] > 0 for key in found if key != "details")
    assert set(found["details"]) >= {"discovery", "growth", "two_walk", "leases", "insertion", "machine"}
    assert str(tmp_path) in capsys.readouterr().out


def test_the_help_explains(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "processor time" in " ".join(capsys.readouterr().out.split())
