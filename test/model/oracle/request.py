"""One request as one rank knows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

Path = tuple[int, ...]
"""A tree node is named by all tokens from the root to it."""


class Stage(Enum):
    QUEUED = "queued"
    """Holds nothing."""
    HELD = "held"
    """Lease and escrow, no span computed yet."""
    RUNNING = "running"


@dataclass
class Holding:
    """What a request holds of one rank.

    Attributes:
        endpoint: of the lease.
        locked: it has references to the first `locked` nodes of its path.
        need: tokens reserved and not drawn; with concrete victims, free `credit` plus one per victim.
        granted: absolute position up to which room was reserved.
        slots_due: recurrent slots that it is entitled to and has not taken.
        active_slots: recurrent slots with its running state.
        position: tokens computed.
        private: tokens that it owns outside the tree.
        leased_snapshot: node whose recurrent snapshot the request resumes from; `pays` while its lease pays for it.
        own_snapshot: node with the last snapshot that it made or met itself.
    """

    endpoint: int = 0
    locked: int = 0
    committed: bool = False
    need: int = 0
    credit: int = 0
    victims: list[Path] = field(default_factory=list)
    granted: int = 0
    slots_due: int = 0
    active_slots: int = 0
    position: int = 0
    private: int = 0
    leased_snapshot: Path | None = None
    pays: bool = False
    own_snapshot: Path | None = None


class Request:
    """Known to a rank from its record until its end.

    Attributes:
        tokens: the prompt, then the output so far.
        prefill: tokens to compute before the next output token: the prompt, after a retraction with its output.
        doomed: aborted, but a retraction of it is still in the command stream.
    """

    def __init__(self, rid: int, prompt: tuple[int, ...], output: int) -> None:
        self.rid = rid
        self.tokens = list(prompt)
        self.prompt = self.prefill = len(prompt)
        self.output = output
        self.epoch = 0
        self.doomed = False
        self.stage = Stage.QUEUED
        self.holding = Holding()

    def path(self, end: int) -> Path:
        """Name of the node that ends at position `end`."""
        return tuple(self.tokens[:end])

    @property
    def remaining(self) -> int:
        """Output tokens still to make."""
        return self.output - (len(self.tokens) - self.prompt)
