"""``python -m benchmark.full_run``: everything marked ``full``, test by test, resumable, also in the background.

Each test runs in a pytest of its own. Its result stands in ``build/full/tests``; one that passed with the present
sources is not run again, so that a run that was stopped, in whatever way, continues where it was.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from benchmark import matrix
from benchmark.background import Job, JobError, JobRunning
from benchmark.servers import CHECKOUT

FOLDER = matrix.RESULTS
ITEM_SECONDS = 3600.0
INTERRUPTED = 130
_KEPT_OUTCOMES = ("passed", "skipped")
_HELPERS = "test_*.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemResult:
    """How one test ended.

    Attributes:
        sources: fingerprint of what the result depends on.
        outcome: "passed", "skipped" or "failed".
        finished: local date and time, to the minute.
        commit: short name of the commit that was checked out, with "+" when files differed from it; may be empty.
        figures: what the test measured, in its own words.
    """

    item: str
    sources: str
    outcome: str
    seconds: float
    finished: str
    commit: str = ""
    figures: str = ""


Command = Callable[[str, Path], Sequence[str]]
"""From a test's id and the file for its JUnit report to the command that runs it."""


class FullRun:
    """Runs tests one after the other and keeps their results in a folder.

    Args:
        sources: from a test's id to the fingerprint of what its result depends on.
        say: gets a line per test.
        item_seconds: a test that takes longer is ended and has failed.
    """

    def __init__(
        self,
        folder: Path,
        *,
        command: Command,
        sources: Callable[[str], str],
        say: Callable[[str], None] = print,
        item_seconds: float = ITEM_SECONDS,
    ) -> None:
        self._folder = folder / "tests"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._command = command
        self._sources = sources
        self._say = say
        self._item_seconds = item_seconds

    def run(self, items: Sequence[str]) -> list[ItemResult]:
        """The result of every test, kept ones included."""
        commit = _commit()
        results = []
        for number, item in enumerate(items, 1):
            kept = self.kept(item)
            if kept is None:
                self._say(f"[{number}/{len(items)}] {time.strftime('%H:%M:%S')} {item} ...")
                kept = self._run_one(item, commit)
                where = "" if kept.outcome == "passed" else f", see {self._file(item, '.log')}"
                self._say(f"[{number}/{len(items)}] {kept.outcome} ({kept.seconds:.0f} s{where})")
            else:
                self._say(f"[{number}/{len(items)}] {item}: {kept.outcome} before")
            results.append(kept)
        return results

    def kept(self, item: str) -> ItemResult | None:
        """The result that stands, None when the test failed, was never run, or its sources have changed."""
        result = self.last(item)
        if result is None or result.outcome not in _KEPT_OUTCOMES or result.sources != self._sources(item):
            return None
        return result

    def last(self, item: str) -> ItemResult | None:
        """The last result, whatever it was."""
        path = self._file(item, ".json")
        return ItemResult(**json.loads(path.read_text())) if path.exists() else None

    def _run_one(self, item: str, commit: str) -> ItemResult:
        sources = self._sources(item)
        report = self._file(item, ".xml")
        report.unlink(missing_ok=True)
        started = time.monotonic()
        with self._file(item, ".log").open("wb") as log:
            # Under the guard nothing outlives this process, also when it is killed.
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmark.guard", *self._command(item, report)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=CHECKOUT,
            )
            try:
                status: int | None = process.wait(self._item_seconds)
            except subprocess.TimeoutExpired:
                status = None
                log.write(f"\nended after {self._item_seconds:g} s\n".encode())
            finally:
                assert process.stdin is not None
                process.stdin.close()
                process.wait()
        outcome, figures = read_report(report)
        result = ItemResult(
            item=item,
            sources=sources,
            outcome=outcome if status == 0 else "failed",
            seconds=round(time.monotonic() - started, 1),
            finished=time.strftime("%Y-%m-%d %H:%M"),
            commit=commit,
            figures=figures,
        )
        matrix.store(self._file(item, ".json"), asdict(result))
        return result

    def _file(self, item: str, suffix: str) -> Path:
        digest = hashlib.sha256(item.encode()).hexdigest()[:6]
        stem = re.sub(r"[^a-zA-Z0-9_.-]+", "-", item.split("/")[-1])
        return self._folder / f"{stem[:100]}-{digest}{suffix}"


def read_report(path: Path) -> tuple[str, str]:
    """Outcome and ``figures`` property of the one test in a JUnit report; "failed" when there is none."""
    if not path.exists():
        return "failed", ""
    case = ElementTree.parse(path).getroot().find(".//testcase")
    if case is None:
        return "failed", ""
    found = case.find("properties/property[@name='figures']")
    figures = "" if found is None else found.get("value", "")
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed", figures
    return "skipped" if case.find("skipped") is not None else "passed", figures


def table(results: Iterable[ItemResult | None], items: Sequence[str]) -> str:
    """A Markdown table, one row per test; None where there is no result."""
    lines = ["| test | result | seconds | finished | commit | measured |", "|---|---|---|---|---|---|"]
    for item, result in zip(items, results, strict=True):
        if result is None:
            lines.append(f"| {item} | not run | | | | |")
        else:
            lines.append(
                f"| {item} | {result.outcome} | {result.seconds:,.0f} | {result.finished} | {result.commit} "
                f"| {result.figures} |"
            )
    return "\n".join(lines)


def collect() -> list[str]:
    """Ids of all tests that are marked ``full``, in pytest's order.

    Raises:
        JobError: pytest could not collect them.
    """
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "full", "test"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode != 0:
        raise JobError(f"pytest could not collect the tests:\n{found.stdout[-3000:]}{found.stderr[-3000:]}")
    return [line for line in found.stdout.splitlines() if "::" in line]


def pytest_command(item: str, report: Path) -> list[str]:
    """Runs one test."""
    return [sys.executable, "-m", "pytest", "-q", "-m", "full", f"--junitxml={report}", item]


def sources_of(item: str) -> str:
    """Fingerprint of the product, of the test's file and of the helpers of all tests."""
    tests = CHECKOUT / "test"
    own = (CHECKOUT / item.split("::")[0]).resolve()
    digest = hashlib.sha256(matrix.source_fingerprint().encode())
    for path in sorted(tests.rglob("*.py")):
        if path == own or not path.match(_HELPERS):
            digest.update(path.relative_to(tests).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def main(arguments: list[str] | None = None) -> int:
    """Command line; exit status 1 when a test failed, 130 when interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.full_run", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument(
        "what",
        choices=("run", "start", "status", "stop", "table"),
        help="run here; start in the background; say how far it is; stop it; print the results as tables",
    )
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="run, start: only tests with this in their id"
    )
    parsed = parser.parse_args(arguments)
    what = parsed.what
    job = Job(FOLDER)
    try:
        if what == "start":
            pid = job.start(
                [sys.executable, "-m", "benchmark.full_run", "run", f"--only={parsed.only}"], CHECKOUT
            )
            print(f"running as process {pid}; make test-full-status says how far it is; log: {job.log}")
            return 0
        if what == "stop":
            print("stopped; it continues where it was" if job.stop() else "it does not run")
            return 0
        if what == "status":
            print(_status(job))
            return 0
        full_run = FullRun(FOLDER, command=pytest_command, sources=sources_of, say=_say)
        if what == "table":
            print(_tables(full_run, collect()))
            return 0
        with job.alone():
            return _run(full_run, parsed.only)
    except (JobRunning, JobError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _run(full_run: FullRun, only: str = "") -> int:
    signal.signal(signal.SIGTERM, _end_as_interrupted)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        _say(f"{time.strftime('%Y-%m-%d %H:%M:%S')} collecting (process {os.getpid()})")
        items = collect()
        results = full_run.run([item for item in items if re.search(only, item)])
    except KeyboardInterrupt:
        _say("interrupted; every server was stopped, and the next run continues here")
        return INTERRUPTED
    text = _tables(full_run, items)
    (FOLDER / "result.md").write_text(text + "\n")
    counts = {outcome: [r.outcome for r in results].count(outcome) for outcome in (*_KEPT_OUTCOMES, "failed")}
    _say(f"{time.strftime('%Y-%m-%d %H:%M:%S')} ended: {', '.join(f'{n} {o}' for o, n in counts.items())}")
    _say(f"tables: {FOLDER / 'result.md'}")
    return 1 if counts["failed"] else 0


def _tables(full_run: FullRun, items: Sequence[str]) -> str:
    others = [item for item in items if "test_matrix.py" not in item]
    return matrix.kept_summary() + "\n\n" + table([full_run.last(item) for item in others], others)


def _status(job: Job) -> str:
    pid = job.pid()
    lines = job.log.read_text(errors="replace").splitlines() if job.log.exists() else []
    state = "not running" if pid is None else f"running (process {pid})"
    return "\n".join([state, *(f"  {line}" for line in lines[-5:])])


def _say(text: str) -> None:
    print(text, flush=True)


def _commit() -> str:
    try:
        name = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=CHECKOUT, capture_output=True, text=True, check=True
        )
        changed = subprocess.run(
            ["git", "status", "--porcelain"], cwd=CHECKOUT, capture_output=True, text=True, check=True
        )
    except (FileNotFoundError, subprocess.CalledProcessError):
        return ""  # sources without a repository
    return name.stdout.strip() + ("+" if changed.stdout.strip() else "")


def _end_as_interrupted(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
