"""What a planner sees, and what it answers: the same in the server, the simulator and the tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sglang_wavepp.planning.spans import PlannedSpan, Remainder


@dataclass(frozen=True, slots=True)
class Supply:
    """The work that rank 0 knows of when a slot of its ring is free.

    Attributes:
        queue: admitted requests with tokens that no wave carries yet, earliest admission first.
        unplanned: tokens of `queue`, in all.
        flying: spans of each prefill wave between launch and result, oldest wave first.
        arriving_tokens: tokens that requests in admission are expected to compute; those that wait for capacity
            don't count.
        arriving_requests: how many those are.
        now: clock, in seconds.
    """

    queue: Iterable[Remainder]
    unplanned: int
    flying: Sequence[tuple[PlannedSpan, ...]] = ()
    arriving_tokens: int = 0
    arriving_requests: int = 0
    now: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The next wave, or a wait.

    Attributes:
        spans: earliest request first, at most one a request; empty when nothing is to be launched now.
        ask_again: with no spans although there is work: when to ask again, in the seconds of `Supply.now`, if nothing
            happens before; None when only an event (arrival, admission, result) can change the answer.
    """

    spans: tuple[PlannedSpan, ...] = ()
    ask_again: float | None = None


class WavePlanner(Protocol):
    """Sizes and packs prefill waves. A plan that is returned is launched as it is, or the server ends."""

    def plan(self, supply: Supply) -> Plan:
        """The wave to launch now."""
