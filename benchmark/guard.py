"""``python -m benchmark.guard COMMAND...``: runs a server and never outlives the process that asked for it.

The guard leads a session of its own. When its standard input closes (its parent stopped it, or died in whatever way),
or it gets SIGTERM or SIGINT, everything in the session is ended: SIGTERM to the server, SIGKILL to what is left after a
grace time. It exits with the server's status; processes that a server left behind when it ended by itself are named on
stderr and killed.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

GRACE_SECONDS = float(os.environ.get("GUARD_GRACE_SECONDS", "10"))
_SETTLE_SECONDS = 1.0
LEFT_BEHIND = "[guard] left behind"


def session_members(session: int) -> list[int]:
    """Live processes (zombies not counted) of a session, but for its leader."""
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == session:
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended meanwhile
        if int(fields[3]) == session and fields[0] != "Z":
            members.append(int(entry.name))
    return members


def end_session(session: int, *, first: int, grace_seconds: float) -> None:
    """End every member: SIGTERM to the process ``first``, which may end the others, after the grace time SIGKILL."""
    _send([first], signal.SIGTERM)
    _send([first], signal.SIGCONT)  # a stopped process can't end
    wait_for_end(session, grace_seconds)
    kill_session(session)


def wait_for_end(session: int, seconds: float) -> None:
    """Wait until no member is left, or the time is over."""
    deadline = time.monotonic() + seconds
    while session_members(session) and time.monotonic() < deadline:
        time.sleep(0.05)


def kill_session(session: int) -> None:
    """Kill every member and wait until none is left."""
    while members := session_members(session):
        _send(members, signal.SIGKILL)
        time.sleep(0.02)


def _send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def main(command: list[str]) -> int:
    """Run the command; its exit status, negative signals as 128 + number."""
    session = os.getsid(0)
    if session != os.getpid():
        print("error: benchmark.guard must be started as a session leader", file=sys.stderr)
        return 2
    stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as server:
        while not stopping and server.poll() is None:
            readable, _, _ = select.select([sys.stdin], [], [], 0.1)
            stopping = stopping or bool(readable and not os.read(sys.stdin.fileno(), 1))
        if stopping:
            end_session(session, first=server.pid, grace_seconds=GRACE_SECONDS)
            status = server.wait()
        else:
            status = server.wait()
            wait_for_end(session, _SETTLE_SECONDS)  # what the server killed last may not have ended yet
            for pid in session_members(session):
                print(f"{LEFT_BEHIND}: {pid} {_command_line(pid)}", file=sys.stderr, flush=True)
            kill_session(session)
    return status if status >= 0 else 128 - status


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return "(ended)"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
