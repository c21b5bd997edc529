"""Starts a server, waits until it answers, and ends it with everything it started.

The server runs under `benchmark.guard`, which ends it also when this process is killed.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import TracebackType

import requests

from benchmark.client import Client
from benchmark.configuration import ServerConfig
from benchmark.guard import GRACE_SECONDS, LEFT_BEHIND, session_members
from benchmark.models import model_folder

CHECKOUT = Path(__file__).resolve().parent.parent
PORTS_VARIABLE = "SGLANG_WAVEPP_TEST_PORTS"
DEFAULT_PORTS = "31200-31399"
START_SECONDS = 300.0
_START_NUMBERS = itertools.count()


class ServerError(RuntimeError):
    """A server did not start, or ended when it should not have; the text holds the end of its log."""


class Server:
    """One server process tree.

    Args:
        config: what to start.
        folder: where its log (``NAME-N.log``) and timeline (``NAME-N.trace/``) go.
        start_seconds: how long it may take until it answers.
    """

    def __init__(self, config: ServerConfig, folder: Path, *, start_seconds: float = START_SECONDS) -> None:
        self.config = config
        self.port = free_port()
        self.client = Client(f"http://127.0.0.1:{self.port}")
        folder = folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        stem = f"{config.name}-{os.getpid()}-{next(_START_NUMBERS)}"
        self.log = folder / f"{stem}.log"
        self.trace_folder = folder / f"{stem}.trace" if config.trace else None
        self._start_seconds = start_seconds
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, progress: Callable[[str], None] | None = None) -> None:
        """Start and wait until the server answers; ``progress`` gets a line every few seconds.

        Raises:
            ServerError: it ended, or did not answer in time. Nothing is left running.
        """
        require_entry_points()
        command = self.config.command(
            model_path=model_folder(self.config.model), port=self.port, trace_folder=self.trace_folder
        )
        with self.log.open("wb") as log:
            log.write((" ".join(command) + "\n").encode())
            log.flush()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmark.guard", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=CHECKOUT,
                env=server_environment(self.config, os.environ),
            )
        try:
            self._wait_until_ready(progress)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server and wait until nothing of it runs. May be called again."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()  # the guard ends the session
        try:
            self._process.wait(GRACE_SECONDS + 10)
        except subprocess.TimeoutExpired:
            for pid in (*session_members(self._process.pid), self._process.pid):
                _send(pid, signal.SIGKILL)
            self._process.wait()

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        """Whether the server process is alive."""
        return self._process is not None and self._process.poll() is None

    def exit_status(self, timeout_seconds: float) -> int | None:
        """The server's exit status, or None when it still runs after the timeout."""
        assert self._process is not None
        try:
            return self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            return None

    def processes(self) -> dict[int, str]:
        """Process id -> title of every live process of the server (its guard not counted)."""
        assert self._process is not None
        return {pid: _title(pid) for pid in session_members(self._process.pid)}

    def freeze(self) -> None:
        """Stop all processes where they are; they take no processor time until `thaw`."""
        for pid in self.processes():
            _send(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let them go on."""
        for pid in self.processes():
            _send(pid, signal.SIGCONT)

    def launcher(self) -> int:
        """Process id of the server process that an operator sees, the parent of all others."""
        assert self._process is not None
        guard = self._process.pid
        (pid,) = map(int, Path(f"/proc/{guard}/task/{guard}/children").read_text().split())
        return pid

    def ranks(self) -> list[int]:
        """Process ids of the scheduler processes, in rank order (pp major, tp minor)."""
        found = []
        for pid, title in self.processes().items():
            if "scheduler" in title:
                found.append((_rank_key(title), pid))
        return [pid for _, pid in sorted(found)]

    def log_text(self) -> str:
        """Everything the server printed so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def log_tail(self, lines: int = 60) -> str:
        """The end of the log."""
        return "\n".join(self.log_text().splitlines()[-lines:])

    def left_behind(self) -> list[str]:
        """Processes that the server left running when it ended by itself, as the guard saw them."""
        return [line for line in self.log_text().splitlines() if line.startswith(LEFT_BEHIND)]

    def _wait_until_ready(self, progress: Callable[[str], None] | None) -> None:
        started = time.monotonic()
        said = started
        while True:
            elapsed = time.monotonic() - started
            if not self.running:
                status = self.exit_status(0)
                raise ServerError(
                    f"{self.config.name} ended with status {status} while starting:\n{self.log_tail()}"
                )
            if self._answers():
                return
            if elapsed > self._start_seconds:
                raise ServerError(
                    f"{self.config.name} did not answer within {elapsed:.0f} s:\n{self.log_tail()}"
                )
            if progress is not None and time.monotonic() - said > 5:
                said = time.monotonic()
                progress(f"{elapsed:.0f} s")
            time.sleep(0.2)

    def _answers(self) -> bool:
        try:
            return requests.get(f"http://127.0.0.1:{self.port}/health", timeout=5).status_code == 200
        except requests.RequestException:
            return False


def free_port() -> int:
    """A port nobody listens on, from the range in ``SGLANG_WAVEPP_TEST_PORTS``.

    Raises:
        ServerError: the range has no free port.
    """
    first, _, last = os.environ.get(PORTS_VARIABLE, DEFAULT_PORTS).partition("-")
    ports = list(range(int(first), int(last) + 1))
    random.shuffle(ports)
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ServerError(f"no free port in {first}-{last}; set {PORTS_VARIABLE} to another range")


def server_environment(config: ServerConfig, base: Mapping[str, str]) -> dict[str, str]:
    """The environment of a server: this checkout importable, nothing downloaded, no setting of another server."""
    environment = {name: value for name, value in base.items() if not name.startswith("SGLANG_WAVEPP")}
    paths = [str(CHECKOUT / "python"), str(CHECKOUT), *filter(None, [base.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    environment["HF_HUB_OFFLINE"] = "1"
    environment["PYTHONUNBUFFERED"] = "1"
    environment.update(config.environment)
    return environment


def require_entry_points() -> None:
    """Check that SGLang would find this package.

    Raises:
        ServerError: the package is not installed in this environment.
    """
    for group, name in (("sglang.srt.platforms", "wavepp_cpu"), ("sglang.srt.plugins", "wavepp")):
        if not any(point.name == name for point in entry_points(group=group)):
            raise ServerError(f"the entry point {name} ({group}) is not installed: run `make env`")


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _rank_key(title: str) -> tuple[int, int]:
    words = title.replace("_", " ").split()

    def number(prefix: str) -> int:
        return next((int(w[2:]) for w in words if w.startswith(prefix) and w[2:].isdigit()), 0)

    return number("PP"), number("TP")


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
