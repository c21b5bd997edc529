"""An idle server uses almost no processor time, and WavePP hardly more memory than stock."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from e2e.configs import HYBRID
from e2e.pool import ServerPool

from benchmark.configuration import ServerConfig
from benchmark.servers import Server
from benchmark.workloads import lone_prompt

SECONDS = 10.0


@pytest.mark.server(HYBRID)
def test_processor_time(server: Server) -> None:
    server.client.ask(lone_prompt(91, 300, 4))
    time.sleep(3.0)  # what a request leaves behind (statistics, trace) is done
    pids = list(server.processes())
    before = {pid: _cpu_seconds(pid) for pid in pids}
    time.sleep(SECONDS)
    used = {pid: _cpu_seconds(pid) - before[pid] for pid in pids}
    share = sum(used.values()) / SECONDS
    titles = server.processes()
    detail = ", ".join(
        f"{titles.get(pid, '?')[-40:]}: {seconds / SECONDS:.1%}" for pid, seconds in used.items()
    )
    assert share < 0.05, f"{share:.1%} of a core while idle ({detail})"


@pytest.mark.full
def test_memory_of_a_rank(pool: ServerPool, record_property: Callable[[str, object], None]) -> None:
    ours, stock = (_rank_memory(pool, config) for config in (HYBRID, HYBRID.stock()))
    pairs = (f"{mine / 2**20:.0f} / {theirs / 2**20:.0f}" for mine, theirs in zip(ours, stock, strict=True))
    record_property("figures", f"MiB per rank, WavePP / stock: {', '.join(pairs)}")
    for rank, (mine, theirs) in enumerate(zip(ours, stock, strict=True)):
        assert mine <= 1.1 * theirs, f"rank {rank}: {mine / 2**20:.0f} MiB, stock {theirs / 2**20:.0f} MiB"


def _rank_memory(pool: ServerPool, config: ServerConfig) -> list[int]:
    """Proportional set size of each rank in bytes, after some work."""
    with pool.private(config) as server:
        for seed in range(8):
            server.client.ask(lone_prompt(92 + seed, 1000, 8))
        return [_proportional_bytes(pid) for pid in server.ranks()]


def _proportional_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process."""
    fields: Iterable[str] = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system = list(fields)[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
