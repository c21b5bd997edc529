"""Whether another server fits into this machine: without room for its pages Linux would hardly run any of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from benchmark.servers import ServerError

PROC = Path("/proc")
MARGIN = 1.25
"""A server's share of memory grows while it serves."""


def available(proc: Path = PROC) -> int:
    """Bytes that processes could still take."""
    return 1024 * _kilobytes(proc / "meminfo", "MemAvailable")


def used_by(pids: Iterable[int], proc: Path = PROC) -> int:
    """Bytes that these processes take, shared ones by share; one that has ended takes none."""
    total = 0
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            total += 1024 * _kilobytes(proc / str(pid) / "smaps_rollup", "Pss")
    return total


def see_room(pids: Iterable[int], proc: Path = PROC) -> None:
    """See whether another server like this one fits.

    Args:
        pids: all processes of the server that was started last.

    Raises:
        ServerError: it doesn't.
    """
    left, needed = available(proc), MARGIN * used_by(pids, proc)
    if left < needed:
        raise ServerError(
            f"no room for another server: it needs {needed / 1e9:.1f} GB of memory and {left / 1e9:.1f} GB are left;"
            " choose fewer with ARMS=, or a smaller POOL="
        )


def _kilobytes(path: Path, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", path.read_text(), re.MULTILINE)
    if found is None:
        raise ServerError(f"{path} doesn't say {name}")
    return int(found[1])
