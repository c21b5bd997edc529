"""Two or more servers measured in turn, in one run: what disturbs the machine disturbs them alike.

Servers that aren't measured at the moment are frozen, since stock SGLang's idle ranks would take processor time.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from benchmark.servers import Server

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, smallest and largest of some measurements."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values))

    def text(self, digits: int = 0, scale: float = 1.0) -> str:
        """Such as ``5,222 (5,100-5,400)``."""
        median, low, high = (f"{value * scale:,.{digits}f}" for value in (self.median, self.low, self.high))
        return f"{median} ({low}-{high})"


def in_turn(
    servers: Mapping[str, Server], repeats: int, play: Callable[[str, Server, int], T]
) -> dict[str, list[T]]:
    """Play ``repeats`` rounds on every server, the order turned round each time, the others frozen meanwhile.

    Args:
        play: gets the server's name, the server and the number of the round.

    Returns:
        Per name what ``play`` returned, in the order of the rounds.
    """
    results: dict[str, list[T]] = {name: [] for name in servers}
    for number in range(repeats):
        order = list(servers)[:: 1 if number % 2 == 0 else -1]
        for name in order:
            with frozen([server for other, server in servers.items() if other != name]):
                results[name].append(play(name, servers[name], number))
    return results


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Of ours and theirs, round by round."""
    return Spread.of([mine / other for mine, other in zip(ours, theirs, strict=True)])


@contextmanager
def frozen(servers: Sequence[Server]) -> Iterator[None]:
    """Stop all processes of these servers, and let them go on afterwards."""
    with ExitStack() as thawing:
        for server in servers:
            thawing.callback(server.thaw)
            server.freeze()
        yield
