"""Rank 0's book of requests: how far each has been planned, and what is still in flight.

Only rank 0 keeps it. Positions advance by what was launched, never by what was hoped for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from sglang_wavepp.admission.leader import UNLIMITED
from sglang_wavepp.executor.keys import key_of
from sglang_wavepp.planning.spans import PlannedSpan, Remainder


class Phase(Enum):
    """Where a request is on rank 0."""

    ADMISSION = auto()
    PREFILL = auto()
    DECODE = auto()


@dataclass(frozen=True, slots=True)
class AbortReason:
    """What the client of an aborted request is told.

    Attributes:
        message: None lets the tokenizer choose its own words.
        status: HTTP status, None for the default.
        finished_reason: SGLang's finish reason as a dictionary, None for the default.
    """

    message: str | None = None
    status: int | None = None
    finished_reason: dict[str, Any] | None = None


@dataclass(slots=True)
class Booking:
    """One request.

    Attributes:
        req: SGLang's `Req`.
        prompt: tokens of the prompt.
        next: first position that no launched span covers.
        in_flight: spans of the request between launch and result.
        queued: whether it stands in SGLang's waiting queue.
        phase: where it is.
        abort: why it is to end, None while it isn't.
    """

    req: Any
    prompt: int
    next: int = 0
    in_flight: int = 0
    queued: bool = True
    phase: Phase = Phase.ADMISSION
    abort: AbortReason | None = None

    @property
    def key(self) -> str:
        """The request's key."""
        return key_of(self.req)

    @property
    def planned(self) -> bool:
        """Whether every token of the prompt has been launched."""
        return self.next >= self.prompt


@dataclass(slots=True)
class Bookings:
    """All requests of rank 0, and those that wait for their next span in the order of their admission."""

    settled: Callable[[int], None]
    """Called with the tokens of admitted requests that need no planning any more, as far as they count."""
    counted: int = UNLIMITED
    """Tokens of one request that count, at most: the others of a long one keep nobody out."""
    _all: dict[str, Booking] = field(default_factory=dict)
    _unplanned: dict[str, Booking] = field(default_factory=dict)
    _flying: dict[int, tuple[tuple[PlannedSpan, ...], int]] = field(default_factory=dict)
    unplanned_tokens: int = 0
    """Tokens of admitted requests that no wave carries yet."""
    in_admission: int = 0
    """Requests that are announced and not admitted."""

    def arrive(self, req: Any) -> Booking:
        """A request that goes into admission."""
        booking = Booking(req=req, prompt=len(req.origin_input_ids))
        self._all[booking.key] = booking
        self.in_admission += 1
        return booking

    def admit(self, key: str, endpoint: int) -> Booking:
        """All ranks hold the request's prefix up to `endpoint`; its spans may be planned."""
        booking = self._all[key]
        booking.phase = Phase.PREFILL
        booking.next = endpoint
        self._unplanned[key] = booking
        self.unplanned_tokens += booking.prompt - endpoint
        self.in_admission -= 1
        return booking

    def get(self, key: str) -> Booking | None:
        """The booking, None when the request has ended."""
        return self._all.get(key)

    def remainders(self) -> Iterator[Remainder]:
        """What is left to plan, earliest admission first."""
        for booking in self._unplanned.values():
            yield Remainder(rid=booking.key, start=booking.next, prompt=booking.prompt)

    def has_unplanned(self) -> bool:
        """Whether any request waits for a span."""
        return bool(self._unplanned)

    def flying(self) -> Sequence[tuple[PlannedSpan, ...]]:
        """Spans of each prefill wave between launch and result, oldest wave first."""
        return tuple(spans for spans, _ in self._flying.values())

    def launch(self, wave: int, spans: tuple[PlannedSpan, ...], *, command: int) -> list[Booking]:
        """A prefill wave is launched by a command; the requests of its spans.

        Raises:
            RuntimeError: a span doesn't start where its request is, or its request isn't known.
        """
        launched = [self._launch(span) for span in spans]
        self._flying[wave] = (spans, command)
        return launched

    def land(self, wave: int) -> tuple[tuple[PlannedSpan, ...], int]:
        """The result of a prefill wave has come; its spans, and the command that launched it."""
        return self._flying.pop(wave)

    def _launch(self, span: PlannedSpan) -> Booking:
        booking = self._all.get(span.rid)
        if booking is None or booking.next != span.start or span.end > booking.prompt:
            where = "isn't known" if booking is None else f"is at {booking.next} of {booking.prompt}"
            raise RuntimeError(f"span [{span.start}, {span.end}) of request {span.rid}, which {where}")
        before, booking.next = booking.next, span.end
        booking.in_flight += 1
        if booking.planned:
            self._unplanned.pop(span.rid, None)
        self._settle(booking.prompt - before, booking.prompt - span.end)
        return booking

    def _settle(self, before: int, left: int) -> None:
        self.unplanned_tokens -= before - left
        counted = min(before, self.counted) - min(left, self.counted)
        if counted:
            self.settled(counted)

    def stop_planning(self, key: str) -> None:
        """Plan no more spans of a request that is to end."""
        booking = self._unplanned.pop(key, None)
        if booking is not None:
            self._settle(booking.prompt - booking.next, 0)

    def end(self, key: str) -> None:
        """The request has ended."""
        self.stop_planning(key)
        booking = self._all.pop(key, None)
        if booking is not None and booking.phase is Phase.ADMISSION:
            self.in_admission -= 1

    def matching(self, prefix: str, everything: bool) -> list[Booking]:
        """Requests whose client's id starts with `prefix` (SGLang's rule for aborts), or all."""
        return [b for b in self._all.values() if everything or str(b.req.rid).startswith(prefix)]

    def __len__(self) -> int:
        return len(self._all)
