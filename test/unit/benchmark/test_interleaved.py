"""Servers measured in turn; sleeping processes in the place of servers."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmark.interleaved import Spread, in_turn, ratio
from benchmark.servers import Server

pytestmark = pytest.mark.unit


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


class Sleeper(Server):
    """A server of one process."""

    def __init__(self) -> None:
        self.child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])

    def processes(self) -> dict[int, str]:
        return {self.child.pid: "sleeper"}

    def is_frozen(self, expected: bool) -> bool:
        """Whether it is as expected, soon: a signal takes a moment to arrive."""
        deadline = time.monotonic() + 5
        while (state(self.child.pid) == "T") is not expected and time.monotonic() < deadline:
            time.sleep(0.001)
        return state(self.child.pid) == "T"


@pytest.fixture
def sleepers() -> Iterator[dict[str, Any]]:
    made = {name: Sleeper() for name in ("a", "b")}
    yield made
    for sleeper in made.values():
        sleeper.child.kill()
        sleeper.child.wait()


def test_one_runs_at_a_time_and_the_order_turns_round(sleepers: dict[str, Any]) -> None:
    played = []

    def play(name: str, server: Server, number: int) -> int:
        for other, sleeper in sleepers.items():
            assert sleeper.is_frozen(other != name) is (other != name)
        played.append((name, number))
        return number

    assert in_turn(sleepers, 2, play) == {"a": [0, 1], "b": [0, 1]}
    assert played == [("a", 0), ("b", 0), ("b", 1), ("a", 1)]
    assert not any(sleeper.is_frozen(False) for sleeper in sleepers.values())


def test_nobody_stays_frozen_when_a_round_fails(sleepers: dict[str, Any]) -> None:
    def fail(name: str, server: Server, number: int) -> None:
        raise ValueError(name)

    with pytest.raises(ValueError, match="a"):
        in_turn(sleepers, 2, fail)
    assert not any(sleeper.is_frozen(False) for sleeper in sleepers.values())


def test_figures() -> None:
    assert Spread.of([5222.4, 5100.0, 5400.0]).text() == "5,222 (5,100-5,400)"
    assert Spread.of([900.0, 1500.0]).text(2, 0.001) == "1.20 (0.90-1.50)"
    assert ratio([2.0, 6.0, 5.0], [1.0, 2.0, 2.0]) == Spread(2.5, 2.0, 3.0)
