"""One entry of the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, Flag, auto


class NeededBy(Flag):
    """Which processes apply a hook."""

    ALWAYS = auto()
    """Every process: parsing of arguments only."""
    WAVEPP = auto()
    """Processes of a server that was started with ``--wavepp``."""
    CPU = auto()
    """Processes on the CPU reference platform, with or without ``--wavepp``."""

    @property
    def label(self) -> str:
        """Lower-case names, joined by commas."""
        return ",".join(member.name.lower() for member in NeededBy if member in self and member.name)


class Kind(Enum):
    """How the hook changes its target."""

    AFTER = "after"
    BEFORE = "before"
    AROUND = "around"
    REPLACE = "replace"
    SUBCLASS = "subclass"
    """Replaced by a subclass that calls ``super()``."""
    OVERRIDE = "override"
    """A method that this subclass overrides."""
    ATTRIBUTE = "attribute"
    """A class attribute that SGLang documents as an override point."""
    REGISTER = "register"
    """A registration with one of SGLang's registries: the target itself stays as it is."""
    CALLED = "called"
    """Not hooked: relied on so closely that a change of it must be noticed."""


@dataclass(frozen=True, kw_only=True)
class Patch:
    """A hook: what it touches, why, and the upstream source that it was written against.

    ``target`` is the dotted name that is hooked. ``source`` is the dotted name whose text the fingerprint covers,
    when that is not the target itself (a C function has no text; a large class is covered method by method).
    ``fingerprint`` is the value of ``fingerprint_of(source or target)`` in the pinned release.
    """

    target: str
    kind: Kind
    why: str
    breaks_without: str
    fingerprint: str
    needed_by: NeededBy
    source: str | None = None

    @property
    def covered(self) -> str:
        """The dotted name whose text the fingerprint covers."""
        return self.source or self.target
