"""How a LOOP takes part in admission: not at all when the admission thread does it, or between two of its own steps."""

from __future__ import annotations

from typing import Any, Protocol


class AdmissionPort(Protocol):
    """What a LOOP needs to know of admission."""

    def sources(self) -> list[Any]:
        """Sockets and descriptors that wake the LOOP on admission's behalf."""

    def patience_ms(self) -> float | None:
        """How long the LOOP may sleep at most before it calls `serve` again, None for ever."""

    def serve(self) -> bool:
        """Do what is due now; whether anything was."""


class OffLoop:
    """Admission runs on a thread of its own and needs nothing from the LOOP."""

    def sources(self) -> list[Any]:
        """None."""
        return []

    def patience_ms(self) -> float | None:
        """For ever."""
        return None

    def serve(self) -> bool:
        """Nothing."""
        return False
