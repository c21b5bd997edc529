"""What the ranks of the model tell each other: rounds, votes and commands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

# --- rounds -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """Installs a request: its prompt and how many tokens it will make."""

    rid: int
    tokens: tuple[int, ...]
    output: int


@dataclass(frozen=True)
class Attempt:
    """Hold at most `candidate` tokens of prefix and the room for the rest; `trims` a hold that is there already."""

    rid: int
    epoch: int
    trims: bool
    candidate: int


@dataclass(frozen=True)
class Extension:
    """Reserve room up to the absolute position `target`."""

    rid: int
    epoch: int
    target: int


@dataclass(frozen=True)
class Broadcast:
    """A rank applies records, aborts, extensions, attempts and hints in this order and then votes once."""

    number: int
    records: tuple[Record, ...]
    aborts: tuple[tuple[int, int], ...]
    extensions: tuple[Extension, ...]
    attempts: tuple[Attempt, ...]
    hints: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Held:
    """`committed`: the prefix is exactly the candidate."""

    endpoint: int
    committed: bool


@dataclass(frozen=True)
class NoCapacity:
    """`releases`: the rank's counter at that moment; it has more room only when the counter has grown."""

    releases: int


@dataclass(frozen=True)
class Pending:
    """The rank can't judge the request yet."""


Answer: TypeAlias = Held | NoCapacity | Pending


@dataclass(frozen=True)
class Grant:
    """Answer to an extension, by a rank that had applied this command."""

    granted: bool
    applied_command: int


@dataclass
class Vote:
    """One rank's answers to one round, by request; a hint is None when pending."""

    attempts: dict[int, Answer] = field(default_factory=dict)
    extensions: dict[int, Grant] = field(default_factory=dict)
    hints: dict[int, int | None] = field(default_factory=dict)
    releases: int = 0


# --- commands -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Span:
    """Tokens `[start, start + length)`; `snapshot` keeps the recurrent state at the end."""

    rid: int
    epoch: int
    start: int
    length: int
    snapshot: bool


@dataclass(frozen=True)
class Token:
    """A sampled token; `last` ends the request."""

    rid: int
    epoch: int
    token: int
    last: bool


@dataclass(frozen=True)
class Command:
    """`number` counts commands; `after_round` is the last round that rank 0 had applied."""

    number: int
    after_round: int


@dataclass(frozen=True)
class Wave(Command):
    wave: int
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Results(Command):
    tokens: tuple[Token, ...]


@dataclass(frozen=True)
class Abort(Command):
    rid: int


@dataclass(frozen=True)
class Retract(Command):
    """Take back what the request holds; it queues again with a higher epoch."""

    rid: int
