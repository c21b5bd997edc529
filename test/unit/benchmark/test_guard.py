"""Nothing that the guard started outlives it, in whatever way its parent ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmark.guard import LEFT_BEHIND, session_members
from benchmark.servers import CHECKOUT

pytestmark = pytest.mark.slow

# A server with a child that ignores SIGTERM: it says both process ids.
IGNORES_SIGTERM = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(1, flush=True)
time.sleep(600)
"""
STUBBORN = f"""
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {IGNORES_SIGTERM!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print(os.getpid(), child.pid, flush=True)
"""


@contextmanager
def guarded(program: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmark.guard", sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "GUARD_GRACE_SECONDS": "0.3"},
    )
    try:
        yield process
    finally:
        for pid in session_members(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()


@pytest.mark.parametrize("how", ["close", "terminate"])
def test_all_of_the_session_ends(how: str) -> None:
    with guarded(STUBBORN + "time.sleep(600)") as process:
        pids = _pids(process)
        assert all(map(_alive, pids))
        if how == "close":
            assert process.stdin is not None
            process.stdin.close()
        else:
            process.terminate()
        process.wait(20)
        assert not any(map(_alive, pids))


def test_a_stopped_process_ends_too() -> None:
    with guarded(STUBBORN + "time.sleep(600)") as process:
        pids = _pids(process)
        os.kill(pids[0], signal.SIGSTOP)
        assert process.stdin is not None
        process.stdin.close()
        process.wait(20)
        assert not any(map(_alive, pids))


def test_the_killed_parent_takes_the_server_with_it() -> None:
    parent = f"""
import subprocess, sys, time
server = [sys.executable, "-m", "benchmark.guard", sys.executable, "-c", {STUBBORN + "time.sleep(600)"!r}]
guard = subprocess.Popen(server, stdin=subprocess.PIPE, start_new_session=True)
time.sleep(600)
"""
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "GUARD_GRACE_SECONDS": "0.3"}
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True, cwd=CHECKOUT, env=environment
    ) as process:
        pids = _pids(process)
        process.kill()
    deadline = time.monotonic() + 20
    while any(map(_alive, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_status_is_the_servers_and_what_it_left_behind_is_named() -> None:
    with guarded(STUBBORN + "os._exit(7)") as process:
        _, child = _pids(process)
        assert process.wait(20) == 7
        assert process.stderr is not None
        errors = process.stderr.read()
        assert f"{LEFT_BEHIND}: {child} " in errors
        assert not _alive(child)


def test_a_signal_becomes_a_status() -> None:
    with guarded("import os, signal; os.kill(os.getpid(), signal.SIGKILL)") as process:
        assert process.wait(20) == 128 + signal.SIGKILL


def test_the_guard_wants_a_session_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmark.guard", "true"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "session leader" in done.stderr


def _pids(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    return [int(word) for word in process.stdout.readline().split()]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
