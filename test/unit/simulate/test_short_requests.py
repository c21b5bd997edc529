"""Short requests that arrive among long ones, in an open loop; `pytest -s` prints the table."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from sglang_wavepp.simulate.arms import ARMS, Knobs
from sglang_wavepp.simulate.machine import Machine
from sglang_wavepp.simulate.outcome import percentile
from sglang_wavepp.simulate.workload import Workload, job

pytestmark = [pytest.mark.unit, pytest.mark.slow]

LONG = 262_144
SHORT = 32_768
RATE = 0.35
SHARE = 0.15
REQUESTS = 300


def uneven() -> Workload:
    """Of the requests, 15% are long and cold, the others short with 90% of their prompt cached."""
    rng = random.Random(5)
    clock, times, jobs = 0.0, [], []
    for _ in range(REQUESTS):
        times.append(clock)
        clock += rng.expovariate(RATE)
        jobs.append(job(LONG) if rng.random() < SHARE else job(SHORT, reused=0.9))
    return Workload(name="uneven", concurrency=0, jobs=tuple(jobs), times=tuple(times))


def seconds(arm: str, machine: Machine, workload: Workload) -> tuple[float, float, float, float]:
    """Short requests' p50 and p95, long ones' p50 and p95."""
    times = ARMS[arm].run(machine, workload, Knobs()).times
    found: list[float] = []
    for length in (SHORT, LONG):
        ordered = sorted(
            time for time, each in zip(times, workload.jobs, strict=True) if each.prompt == length
        )
        found += [percentile(ordered, 0.5), percentile(ordered, 0.95)]
    return found[0], found[1], found[2], found[3]


def test_short_requests_do_not_wait_for_long_ones() -> None:
    machine, workload = Machine.even(8), uneven()
    arms = [arm for arm in ARMS if arm.startswith("stock") and not arm.endswith("ideal")]
    stock = {arm: seconds(arm, machine, workload) for arm in arms}
    ours = seconds("wavepp", machine, workload)
    little_ahead = seconds("wavepp", replace(machine, admitted_waves=2), workload)
    for name, row in {**stock, "wavepp, two waves ahead": little_ahead, "wavepp": ours}.items():
        print(
            f"{name:24} short p50 {row[0]:5.1f} p95 {row[1]:5.1f}   long p50 {row[2]:5.1f} p95 {row[3]:5.1f}"
        )
    assert ours[0] < 0.5 * min(row[0] for row in stock.values())
    assert ours[1] < 0.5 * min(row[1] for row in stock.values())
    assert ours[1] < 0.5 * little_ahead[1], "the planner must see the short ones behind a long one"
    assert ours[2] < 1.05 * min(row[2] for row in stock.values()), "and the long ones must not pay for it"
    assert ours[3] < 1.05 * min(row[3] for row in stock.values())
