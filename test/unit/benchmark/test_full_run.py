"""The resumable run of everything that is marked ``full``, with small commands in the place of the tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmark.background import Job
from benchmark.full_run import FullRun, ItemResult, pytest_command, read_report, sources_of, table
from benchmark.guard import session_members
from benchmark.servers import CHECKOUT

pytestmark = pytest.mark.slow

REPORT = '<testsuites><testsuite><testcase name="t">{}</testcase></testsuite></testsuites>'

TEST = """
import sys, time
from pathlib import Path
item, report = sys.argv[1:]
folder = Path(report).parent
with (folder / "ran").open("a") as ran:
    ran.write(item + "\\n")
if item == "slow" and not (folder / "quick").exists():
    time.sleep(60)
inside = "<failure/>" if item == "bad" else '<properties><property name="figures" value="7 of 8"/></properties>'
Path(report).write_text('<testsuites><testsuite><testcase name="t">' + inside + "</testcase></testsuite></testsuites>")
sys.exit(item == "bad")
"""

RUN = """
import signal, sys
from pathlib import Path
from benchmark import full_run
from benchmark.background import Job
sys.path.insert(0, sys.argv[2])
from test_full_run import made
full_run.collect = lambda: ["good", "slow", "bad"]
folder = full_run.FOLDER = Path(sys.argv[1])
with Job(folder).alone():
    sys.exit(full_run._run(made(folder)))
"""


def command(item: str, report: Path) -> list[str]:
    return [sys.executable, "-c", TEST, item, str(report)]


def made(folder: Path, sources: str = "now", seconds: float = 60.0) -> FullRun:
    return FullRun(
        folder,
        command=command,
        sources=lambda item: sources,
        say=lambda text: print(text, flush=True),
        item_seconds=seconds,
    )


def ran(folder: Path) -> list[str]:
    path = folder / "tests" / "ran"
    return path.read_text().split() if path.exists() else []


def test_what_passed_with_the_present_sources_is_not_run_again(tmp_path: Path) -> None:
    first = made(tmp_path).run(["good", "bad"])
    assert [(one.outcome, one.figures) for one in first] == [("passed", "7 of 8"), ("failed", "")]
    again = made(tmp_path).run(["good", "bad"])
    assert again[0] == first[0]
    assert ran(tmp_path) == ["good", "bad", "bad"]
    made(tmp_path, sources="changed").run(["good"])
    assert ran(tmp_path) == ["good", "bad", "bad", "good"]


def test_a_test_that_takes_too_long_is_ended_and_has_failed(tmp_path: Path) -> None:
    started = time.monotonic()
    (result,) = made(tmp_path, seconds=1.0).run(["slow"])
    assert result.outcome == "failed"
    assert time.monotonic() - started < 15


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_run_leaves_nothing_behind_and_continues(tmp_path: Path, number: signal.Signals) -> None:
    job = Job(tmp_path)
    whole = [sys.executable, "-c", RUN, str(tmp_path), str(Path(__file__).parent)]
    pid = job.start(whole, CHECKOUT)
    deadline = time.monotonic() + 30
    while ran(tmp_path) != ["good", "slow"]:
        assert time.monotonic() < deadline, job.log.read_text()
        time.sleep(0.05)
    (guard,) = _children(pid)
    assert session_members(guard), "the test runs in a session of its own"
    os.kill(pid, number)
    while job.pid() is not None or session_members(guard):
        assert time.monotonic() < deadline, "the run or its test goes on"
        time.sleep(0.05)
    (tmp_path / "tests" / "quick").touch()
    ended = subprocess.run(whole, cwd=CHECKOUT, check=False, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1, ended.stderr
    assert ran(tmp_path) == ["good", "slow", "slow", "bad"]
    assert "| bad | failed |" in (tmp_path / "result.md").read_text()


def test_reports_are_read(tmp_path: Path) -> None:
    path = tmp_path / "report.xml"
    assert read_report(path) == ("failed", "")
    for inside, outcome in (("", "passed"), ("<skipped/>", "skipped"), ("<error/>", "failed")):
        path.write_text(REPORT.format(inside))
        assert read_report(path) == (outcome, "")


def test_the_table_shows_also_what_was_not_run() -> None:
    result = ItemResult(
        item="a", sources="", outcome="passed", seconds=61.2, finished="2000-01-01 10:00", commit="abc"
    )
    text = table([result, None], ["a", "b"])
    assert "| a | passed | 61 | 2000-01-01 10:00 | abc |" in text and "| b | not run |" in text


def test_a_result_depends_on_the_test_and_not_on_other_tests() -> None:
    here = Path(__file__).relative_to(CHECKOUT).as_posix()
    assert sources_of(f"{here}::a") == sources_of(f"{here}::b")
    assert sources_of(f"{here}::a") != sources_of("test/unit/benchmark/test_background.py::a")


def test_one_test_is_run_with_a_report(tmp_path: Path) -> None:
    words = pytest_command("test/a.py::b", tmp_path / "r.xml")
    assert words[-1] == "test/a.py::b" and f"--junitxml={tmp_path / 'r.xml'}" in words


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
