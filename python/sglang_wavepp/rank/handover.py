"""What the two threads of a rank tell each other; the only object besides the cache that both touch.

The LOOP asks and the admission thread answers. Each side fetches what the other left, and is woken for it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from sglang_wavepp.admission.leader import UNLIMITED, Admitted, Arriving
from sglang_wavepp.admission.messages import InstallRecord


class Signal(Protocol):
    """A file descriptor that becomes readable; safe in every thread."""

    def signal(self) -> None:
        """Make it readable."""

    def clear(self) -> None:
        """Make it unreadable again."""

    def fileno(self) -> int:
        """The descriptor."""


@dataclass(frozen=True, slots=True)
class AbortAsk:
    """Abort this request while it is in admission."""

    rid: str


@dataclass(frozen=True, slots=True)
class FenceAsk:
    """Hold nothing on a rank that hasn't applied this command."""

    command: int


@dataclass(frozen=True, slots=True)
class BuiltAsk:
    """This rank's LOOP has built a request that takes long."""

    rid: str


@dataclass(frozen=True, slots=True)
class CapacityAsk:
    """Capacity came back on this rank."""


@dataclass(frozen=True, slots=True)
class ComputedAsk:
    """A prompt is computed up to here on every rank that has applied this command, see `RoundsLeader.computed`."""

    rid: str
    upto: int
    command: int


Ask: TypeAlias = InstallRecord | AbortAsk | FenceAsk | BuiltAsk | CapacityAsk | ComputedAsk


class Handover:
    """Questions to the admission thread and its answers.

    Args:
        wave_wake: wakes the admission thread.
        loop_wake: wakes the LOOP.
        counted: tokens of one admitted request that count as unplanned, at most.
    """

    def __init__(self, *, wave_wake: Signal, loop_wake: Signal, counted: int = UNLIMITED) -> None:
        self.counted = counted
        self.wave_wake = wave_wake
        self.loop_wake = loop_wake
        self.arriving = Arriving()
        """Rank 0: what admission is likely to bring, as the admission thread last saw it."""
        self.holds_back = False
        """Rank 0: whether the admission thread holds requests back until others have computed their prefix."""
        self._lock = threading.Lock()
        self._asks: list[Ask] = []
        self._installed: list[InstallRecord] = []
        self._admitted: list[Admitted] = []
        self._withdrawn: list[str] = []
        self._applied_command = 0
        self._admitted_tokens = 0  # the admission thread's
        self._settled_tokens = 0  # the LOOP's
        self._sated = False
        self._aborting: set[str] = set()  # the LOOP's

    # --- LOOP -----------------------------------------------------------------------------------------------

    def announce(self, record: InstallRecord) -> None:
        """Rank 0: a request arrived."""
        self._ask(record)

    def abort(self, rid: str) -> None:
        """Rank 0: end a request that was announced and not yet returned by `pop_admitted`.

        It comes back once, from `pop_withdrawn` or from `pop_admitted` with `aborted` set. In the second case
        the LOOP's first command for it must be the abort.
        """
        self._aborting.add(rid)
        self._ask(AbortAsk(rid))

    def fence(self, command: int) -> None:
        """Rank 0: from now on a rank must have applied this command before it holds anything."""
        self._ask(FenceAsk(command))

    def capacity_changed(self) -> None:
        """Capacity came back on this rank; only rank 0 needs to hear of it."""
        self._ask(CapacityAsk())

    def built(self, rid: str) -> None:
        """Followers: a request that takes long to build is built, so this rank can judge it."""
        self._ask(BuiltAsk(rid))

    def settled(self, tokens: int) -> None:
        """Rank 0: so many more tokens of admitted requests need no planning: planned, or their request ends.

        Of each request only the last `counted` tokens count.
        """
        self._settled_tokens += tokens
        if self._sated or (self.holds_back and not self.unplanned_tokens):
            self._sated = False
            self.wave_wake.signal()

    def computed(self, rid: str, upto: int, command: int, *, last: bool) -> None:
        """Rank 0: an admitted request's prompt is computed up to here, or no more of it will be.

        Args:
            rid: of the request.
            upto: tokens.
            command: a rank that has applied it holds what was computed.
            last: nothing more of the prompt will come; before that only what somebody waits for is passed on.
        """
        if last or self.holds_back:
            self._ask(ComputedAsk(rid, upto, command))

    def applied_command(self, seq: int) -> None:
        """The LOOP has applied this command and all before it."""
        self._applied_command = seq

    def pop_changes(self) -> tuple[list[InstallRecord], list[str]]:
        """Followers: requests that rank 0 announced, and ids of those that were withdrawn since.

        Both in one step: a withdrawn request is in this call's list of the announced ones or in an earlier call's.
        """
        with self._lock:
            records, self._installed = self._installed, []
            withdrawn, self._withdrawn = self._withdrawn, []
        return records, withdrawn

    @property
    def has_changes(self) -> bool:
        """Followers: whether `pop_changes` would return anything."""
        with self._lock:
            return bool(self._installed or self._withdrawn)

    def pop_admitted(self) -> list[Admitted]:
        """Rank 0: requests that all ranks hold, in the order of admission."""
        with self._lock:
            admitted, self._admitted = self._admitted, []
        marked = [replace(a, aborted=True) if a.rid in self._aborting else a for a in admitted]
        self._aborting.difference_update(a.rid for a in admitted)
        return marked

    def pop_withdrawn(self) -> list[str]:
        """Rank 0: ids of requests whose abort ended inside admission."""
        with self._lock:
            withdrawn, self._withdrawn = self._withdrawn, []
        self._aborting.difference_update(withdrawn)
        return withdrawn

    # --- admission thread -----------------------------------------------------------------------------------

    @property
    def last_applied_command(self) -> int:
        """Number of the last command that the LOOP has applied."""
        return self._applied_command

    @property
    def unplanned_tokens(self) -> int:
        """Tokens of admitted requests that no wave carries yet, at most `counted` of each."""
        return self._admitted_tokens - self._settled_tokens

    def unplanned(self, *, sated_at: int) -> int:
        """Tokens of admitted requests that no wave carries yet, at most `counted` of each.

        At `sated_at` tokens or more, the LOOP wakes the admission thread when it has planned some.
        """
        # Said before it is read: either this reading has the LOOP's last tokens, or the LOOP sees that it must wake.
        self._sated = True
        unplanned = self.unplanned_tokens
        self._sated = unplanned >= sated_at
        return unplanned

    def pop_asks(self) -> list[Ask]:
        """What the LOOP asked since the last call, in its order."""
        with self._lock:
            asks, self._asks = self._asks, []
        return asks

    def answer(
        self,
        *,
        installed: tuple[InstallRecord, ...] = (),
        admitted: tuple[Admitted, ...] = (),
        withdrawn: tuple[str, ...] = (),
    ) -> None:
        """Give the LOOP what happened, and wake it if anything did."""
        if not (installed or admitted or withdrawn):
            return
        self._admitted_tokens += sum(min(each.suffix, self.counted) for each in admitted)
        with self._lock:
            self._installed.extend(installed)
            self._admitted.extend(admitted)
            self._withdrawn.extend(withdrawn)
        self.loop_wake.signal()

    def _ask(self, ask: Ask) -> None:
        with self._lock:
            first = not self._asks
            self._asks.append(ask)
        if first:
            self.wave_wake.signal()
