"""What admission asks of one rank's cache, and what the cache answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from sglang_wavepp.admission.hint import Hint
from sglang_wavepp.admission.messages import InstallRecord


class Shortage(Enum):
    """What a rank is short of; the values are metric labels."""

    TOKENS = "tokens"
    SLOTS = "recurrent_slots"
    ROWS = "rows"
    HEADROOM = "headroom"


@dataclass(frozen=True, slots=True)
class Hold:
    """A prefix of `endpoint` tokens is pinned and the room for the rest is reserved."""

    endpoint: int


class AdmissionCache(Protocol):
    """One rank's cache as admission sees it. No method waits for another rank or for the device."""

    def hint(self, record: InstallRecord) -> Hint:
        """What the request could reuse here and now, at most its cache limit; pins nothing and may be stale."""

    def hold(self, record: InstallRecord, limit: int) -> Hold | Shortage:
        """Pin the longest prefix of at most `limit` tokens and reserve the rest, in one step, or change nothing.

        While no other request holds anything here, a shorter endpoint (at last 0) is taken rather than
        failing: nobody would ever give back what the request waits for.
        """

    def trim(self, record: InstallRecord, limit: int) -> Hold | Shortage:
        """Pin at most `limit` tokens of what a request holds, and promise the rest; on a shortage nothing is held."""

    def holds(self, rid: str) -> bool:
        """Whether the request holds anything."""

    def release(self, rid: str) -> None:
        """Undo `hold`; nothing happens when the request holds nothing."""

    def forget(self, rid: str) -> None:
        """The request left admission without being admitted, and holds nothing."""

    def admitted(self, rid: str) -> None:
        """All ranks hold the request: it left admission."""

    @property
    def releases(self) -> int:
        """Grows whenever capacity came back since it was last read or since a `hold` failed."""
