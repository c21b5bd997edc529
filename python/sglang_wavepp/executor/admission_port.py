"""How a LOOP takes part in admission: not at all when the admission thread does it, or between two of its own steps."""

from __future__ import annotations

import math
import time
from typing import Any, Protocol

from sglang_wavepp.rank.admission_thread import InlineAdmission


class AdmissionPort(Protocol):
    """What a LOOP needs to know of admission."""

    def sources(self) -> list[Any]:
        """Sockets and descriptors that wake the LOOP on admission's behalf."""

    def patience_ms(self) -> int | None:
        """How long the LOOP may sleep at most before it calls `serve` again, None for ever."""

    def serve(self) -> bool:
        """Do what is due now; whether anything was."""


class OffLoop:
    """Admission runs on a thread of its own and needs nothing from the LOOP."""

    def sources(self) -> list[Any]:
        """None."""
        return []

    def patience_ms(self) -> int | None:
        """For ever."""
        return None

    def serve(self) -> bool:
        """Nothing."""
        return False


class LeadingInline:
    """Rank 0's LOOP runs the rounds itself and waits for the votes of each."""

    def __init__(self, admission: InlineAdmission) -> None:
        self._admission = admission

    def sources(self) -> list[Any]:
        """None: votes are awaited where the round is run."""
        return []

    def patience_ms(self) -> int | None:
        """Until the next round is due."""
        due = self._admission.next_due(time.monotonic())
        return None if due is None else max(0, math.ceil((due - time.monotonic()) * 1000))

    def serve(self) -> bool:
        """Run a round to its end, if one is due."""
        return self._admission.run_round()


class FollowingInline:
    """A follower's LOOP votes between two of its own steps."""

    def __init__(self, admission: InlineAdmission) -> None:
        self._admission = admission

    def sources(self) -> list[Any]:
        """The rounds link."""
        return [self._admission.socket]

    def patience_ms(self) -> int | None:
        """For ever: rank 0 opens the rounds."""
        return None

    def serve(self) -> bool:
        """Answer what has arrived. What it brings is found in the hand-over."""
        self._admission.serve()
        return False
