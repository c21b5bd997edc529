"""What is played on a server: a cell of the grid, an open loop on a small cache, or a trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from benchmark.paced.clients import Served
from benchmark.paced.prompts import Script
from sglang_wavepp.simulate.workload import Workload


class Load(Protocol):
    """Requests, when they are sent, and what each of them could reuse."""

    @property
    def kind(self) -> str:
        """The workload's name in records."""

    @property
    def concurrency(self) -> int:
        """Most requests outstanding; 0 in an open loop."""

    @property
    def name(self) -> str:
        """For people."""

    @property
    def scale(self) -> float:
        """Speed of the device that lets the hosts of all stages share a small machine."""

    @property
    def bounded(self) -> bool:
        """Whether the workload says how much of each request is cached, so that a bound can be computed."""

    def workload(self, *, shorten: int) -> Workload:
        """Lengths and arrivals, each request that many times shorter than it is described."""

    def script(self, *, shorten: int, tag: str, seed: int) -> Script:
        """The requests; ids begin with `tag`."""

    def settled(self, served: Sequence[Served]) -> list[Served]:
        """The answers, each with what it could have reused."""
