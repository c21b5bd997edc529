"""Room for another server."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from benchmark.paced.memory import available, see_room, used_by
from benchmark.servers import ServerError


def machine(folder: Path, *, left: int, each: int) -> Path:
    (folder / "meminfo").write_text(f"MemTotal: 99999999 kB\nMemAvailable:   {left} kB\n")
    for pid in (7, 8):
        (folder / str(pid)).mkdir()
        (folder / str(pid) / "smaps_rollup").write_text(
            f"0-ff ---p 0 0 0 [rollup]\nRss: 900000 kB\nPss:   {each} kB\nPss_Dirty: 1 kB\n"
        )
    return folder


def test_a_server_of_the_size_of_the_last_one_must_fit_with_a_margin(tmp_path: Path) -> None:
    proc = machine(tmp_path, left=2500, each=1000)
    assert available(proc) == 2500 * 1024 and used_by([7, 8], proc) == 2000 * 1024
    see_room([7, 8], proc)
    (proc / "meminfo").write_text("MemAvailable: 2499 kB\n")
    with pytest.raises(ServerError, match=r"needs 0\.0 GB .*ARMS="):
        see_room([7, 8], proc)


def test_this_machine_says_what_it_has() -> None:
    def said(path: str, name: str) -> int:
        (line,) = (line for line in Path(path).read_text().splitlines() if line.startswith(f"{name}:"))
        return int(line.split()[1]) * 1024

    total, used = said("/proc/meminfo", "MemTotal"), used_by([os.getpid()])
    assert total / 1000 < available() <= total
    # The kernel counts VmRSS in steps, so that it may lag behind.
    resident = said("/proc/self/status", "VmRSS")
    assert resident / 100 < used <= 1.05 * resident


def test_a_process_that_has_ended_takes_nothing(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert used_by([ended.pid]) == 0
    zombie = subprocess.Popen(["true"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    assert used_by([zombie.pid]) == 0
    zombie.wait()
    proc = machine(tmp_path, left=2500, each=1000)
    assert used_by([7, 9, 8], proc) == 2000 * 1024


def test_a_kernel_that_says_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 1 kB\n")
    with pytest.raises(ServerError, match="MemAvailable"):
        available(tmp_path)
