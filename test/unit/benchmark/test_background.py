"""A detached job: alone in its folder, stopped from elsewhere, and nothing in the way after it was killed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmark.background import Job, JobError, JobRunning
from benchmark.servers import CHECKOUT

pytestmark = pytest.mark.slow

WORKS = """
import sys, time
from pathlib import Path
from benchmark.background import Job
with Job(Path(sys.argv[1])).alone():
    print("works", flush=True)
    time.sleep(60)
"""


def worker(folder: Path) -> list[str]:
    return [sys.executable, "-c", WORKS, str(folder)]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_detached_job_works_alone_until_it_is_stopped(tmp_path: Path) -> None:
    job = Job(tmp_path)
    assert job.pid() is None and not job.stop()
    pid = job.start(worker(tmp_path), CHECKOUT)
    try:
        assert job.pid() == pid
        assert os.getsid(pid) == pid, "it would get the terminal's Ctrl-C"
        with pytest.raises(JobRunning, match=str(pid)):
            job.start(worker(tmp_path), CHECKOUT)
        with pytest.raises(JobRunning, match=str(pid)), job.alone():
            pytest.fail("two at once")
        wait_for(lambda: "works" in job.log.read_text())
    finally:
        assert job.stop(seconds=20)
    assert job.pid() is None


def test_a_killed_job_is_not_in_the_way(tmp_path: Path) -> None:
    job = Job(tmp_path)
    pid = job.start(worker(tmp_path), CHECKOUT)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: job.pid() is None)
    with job.alone():
        assert job.pid() == os.getpid()


def test_who_only_looks_is_not_in_the_way(tmp_path: Path) -> None:
    job = Job(tmp_path)
    with job.alone():
        pass
    looking = threading.Event()

    def look() -> None:
        while not looking.is_set():
            assert job.pid() in (None, os.getpid())

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(50):
            with job.alone():
                pass
            assert job.pid() is None, "one who looks was taken for one who works"
    finally:
        looking.set()
        for looker in lookers:
            looker.join()


def test_a_job_that_ends_at_once_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="status 3"):
        Job(tmp_path).start([sys.executable, "-c", "raise SystemExit(3)"], CHECKOUT)
