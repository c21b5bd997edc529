"""How long threads of a server waited for a core although they could run, from the kernel's own books."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of one thread or process since its start: on a core, and waiting for one."""

    running: float
    waiting: float

    def since(self, before: Spent) -> Spent:
        """What was added since an earlier reading."""
        return Spent(self.running - before.running, self.waiting - before.waiting)


def main_threads(pids: Sequence[int], proc: Path = Path("/proc")) -> list[Spent]:
    """Of the main thread of each process, which runs the LOOP."""
    return [_parse((proc / f"{pid}/task/{pid}/schedstat").read_text()) for pid in pids]


def processes(pids: Sequence[int], proc: Path = Path("/proc")) -> list[Spent]:
    """Of all threads of each process that live."""
    spent = []
    for pid in pids:
        threads = [_parse(path.read_text()) for path in (proc / f"{pid}/task").glob("*/schedstat")]
        spent.append(Spent(sum(t.running for t in threads), sum(t.waiting for t in threads)))
    return spent


def _parse(text: str) -> Spent:
    running, waiting, _ = text.split()
    return Spent(int(running) / 1e9, int(waiting) / 1e9)
