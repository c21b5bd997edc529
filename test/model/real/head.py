"""Rank 0's executor: takes requests, names waves, results, aborts and flushes, and sends them to every rank."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

import msgspec
from model.real.rank import STOP, Rank
from model.real.world import World

from sglang_wavepp.admission.fits import clip_output, refusal
from sglang_wavepp.admission.messages import InstallRecord
from sglang_wavepp.admission.pools import PoolLimits
from sglang_wavepp.plane.messages import (
    AbortCommand,
    Command,
    DecodeWave,
    FlushCommand,
    PrefillWave,
    ResultCommand,
    Span,
)
from sglang_wavepp.planning.publisher import Publisher
from sglang_wavepp.planning.spans import PlannedSpan


class Phase(Enum):
    ADMISSION = auto()
    PREFILL = auto()
    DECODE = auto()


@dataclass
class Booking:
    """A request as rank 0 plans it."""

    record: InstallRecord
    next: int = 0
    in_flight: int = 0
    phase: Phase = Phase.ADMISSION
    aborting: bool = False

    @property
    def prompt(self) -> int:
        return len(self.record.token_ids)

    @property
    def planned(self) -> bool:
        return self.next >= self.prompt


class Head:
    """Decides for all ranks. Each method that returns an iterator applies its command on rank 0 section by section.

    Args:
        rank: rank 0.
        limits: of the smallest rank.
        send: to all other ranks.
        rng: source of every choice.
        publisher: says what every rank publishes.
    """

    def __init__(
        self,
        rank: Rank,
        *,
        world: World,
        limits: PoolLimits,
        send: Callable[[Command], None],
        rng: random.Random,
        publisher: Publisher,
    ) -> None:
        self.publisher = publisher
        self.rank, self.world, self.limits, self.rng = rank, world, limits, rng
        self._send = send
        self.bookings: dict[str, Booking] = {}
        self.texts: list[list[int]] = []
        self.order: list[str] = []
        self.ended: Counter[str] = Counter()
        self.stat: Counter[str] = Counter()
        self.seq = self.wave = 0
        self._launched: dict[int, tuple[int, list[Span]]] = {}
        length = (world.longest - 1) * world.page
        self.roots = [[rng.randrange(2) for _ in range(length)] for _ in range(world.roots)]

    # --- clients --------------------------------------------------------------------------------------------

    def prompt(self) -> list[int]:
        """The next turn of a text, or the start of one that others begin with too, or something new."""
        rng, page = self.rng, self.world.page
        longest = self.world.longest * page
        kind = rng.random()
        text: list[int] = []
        if kind < 0.45 and self.texts:
            text = rng.choice(self.texts)
            if rng.random() < 0.3:
                text = text[: rng.randint(len(text) // 2, len(text))]
        elif kind < 0.9:
            root = rng.choice(self.roots)
            text = root[: len(root) * rng.choice((1, 2, 2, 3, 3)) // 3]
        own = rng.randint(0, 2 * page) if text else rng.randint(1, longest)
        return (text[: longest - 1] + [rng.randrange(2) for _ in range(own)])[:longest] or [0]

    def arrive(self) -> str | None:
        """A client's request; None when no rank could ever run it."""
        rng, text = self.rng, self.prompt()
        return self.submit(
            text,
            rng.randint(1, self.world.output),
            limit=None if rng.random() < 0.95 else rng.randint(0, len(text) - 1),
            salt="tenant" if rng.random() < 0.04 else None,
        )

    def submit(
        self, text: list[int], output: int, *, limit: int | None = None, salt: str | None = None
    ) -> str | None:
        """Announce this prompt."""
        output = clip_output(prompt=len(text), max_new_tokens=output, limits=self.limits)
        if refusal(prompt=len(text), max_new_tokens=output, limits=self.limits) is not None:
            self.stat["refused"] += 1
            return None
        rid = f"r{len(self.order)}"
        record = InstallRecord(
            rid=rid,
            epoch=0,
            token_ids=array("q", text),
            max_new_tokens=output,
            cache_limit=len(text) - 1 if limit is None else limit,
            extra_key=None,
            cache_salt=salt,
            request={},
        )
        self.texts = [*self.texts[-7:], text]
        self.order.append(rid)
        self.bookings[rid] = Booking(record)
        self.rank.install(record)
        self.rank.handover.announce(record)
        return rid

    def abort_any(self) -> Iterator[None]:
        """A client leaves."""
        live = [rid for rid, booking in self.bookings.items() if not booking.aborting]
        if live:
            yield from self.abort(self.rng.choice(live))

    def abort(self, rid: str) -> Iterator[None]:
        """End a request wherever it is."""
        booking = self.bookings[rid]
        booking.aborting = True
        self.stat[f"abort in {booking.phase.name.lower()}"] += 1
        if booking.phase is Phase.ADMISSION:
            self.rank.handover.abort(rid)
        elif booking.phase is Phase.PREFILL and not booking.planned:
            self._stop_planning(booking)
            if not booking.in_flight:
                yield from self._release(booking)
        else:
            yield from self._do(
                AbortCommand(seq=self._number(), rid=rid, message=None, status=None, release=False)
            )

    # --- admission ------------------------------------------------------------------------------------------

    def take_admissions(self) -> Iterator[None]:
        """What the rounds brought."""
        handover = self.rank.handover
        for admitted in handover.pop_admitted():
            booking = self.bookings[admitted.rid]
            assert booking.phase is Phase.ADMISSION
            assert admitted.aborted == booking.aborting, "an abort was lost, or came from nowhere"
            self.stat["admitted with a prefix"] += admitted.endpoint > 0
            self.stat["reused"] += admitted.endpoint
            booking.phase, booking.next = Phase.PREFILL, admitted.endpoint
            self.publisher.admit(
                admitted.rid,
                prompt=booking.prompt,
                endpoint=booking.next,
                reach=self.rank.admission.reach(admitted.rid),
            )
            if booking.aborting:
                self.stat["aborted at admission"] += 1
                self._stop_planning(booking)
                yield from self._release(booking)
        for rid in handover.pop_withdrawn():
            booking = self.bookings[rid]
            assert booking.phase is Phase.ADMISSION and booking.aborting
            del self.rank.jobs[rid]
            self._end(rid, "withdrawn")

    # --- waves ----------------------------------------------------------------------------------------------

    def unplanned(self) -> list[Booking]:
        """Requests that wait for a span, earliest first."""
        return [
            b for b in self.bookings.values() if b.phase is Phase.PREFILL and not b.planned and not b.aborting
        ]

    def decoding(self) -> list[Booking]:
        """Requests that wait for their next token."""
        return [b for b in self.bookings.values() if b.phase is Phase.DECODE and not b.in_flight]

    def has_slot(self) -> bool:
        """Whether a wave may be launched."""
        return len(self.rank.flights) < 2 * self.world.ranks

    def launch_prefill(self) -> Iterator[None]:
        """A wave of spans, first come first served, of any budget."""
        left = self.rng.randint(self.world.grid, self.world.budget) * self.world.page
        spans: list[Span] = []
        for booking in self.unplanned():
            length = self._longest(booking, left)
            if length:
                left -= length
                spans.append(Span(rid=booking.record.rid, start=booking.next, length=length))
            if self.rng.random() < 0.3:
                break
        if not spans:
            first = self.unplanned()[0]
            length = self._longest(first, 2 * self.world.step)
            spans.append(Span(rid=first.record.rid, start=first.next, length=length))
        yield from self.launch(spans)

    def launch(self, spans: list[Span]) -> Iterator[None]:
        """A wave of these spans."""
        spans = [msgspec.structs.replace(span, publish=self._publishes(span)) for span in spans]
        for span in spans:
            booking = self.bookings[span.rid]
            booking.next += span.length
            booking.in_flight += 1
            self.rank.handover.settled(span.length)
        self.wave += 1
        self.stat["wave of several"] += len(spans) > 1
        command = PrefillWave(seq=self._number(), wave=self.wave, slot=0, spans=tuple(spans))
        self._launched[self.wave] = (command.seq, spans)
        yield from self._do(command)

    def _publishes(self, span: Span) -> int:
        position = self.publisher.position(PlannedSpan(span.rid, span.start, span.length))
        self.stat["published"] += position > 0
        self.stat["published inside"] += 0 < position < span.start + span.length
        self.stat["left unpublished"] += (
            not position and span.start + span.length < self.bookings[span.rid].prompt
        )
        return position

    def _longest(self, booking: Booking, budget: int) -> int:
        left = booking.prompt - booking.next
        if left <= budget:
            return left
        step = self.world.step
        return max(0, (booking.next + budget) // step * step - booking.next)

    def launch_decode(self) -> Iterator[None]:
        """One token of some of the requests that decode."""
        ready = self.decoding()
        chosen = self.rng.sample(ready, self.rng.randint(1, len(ready)))
        for booking in chosen:
            booking.in_flight += 1
        self.wave += 1
        rids = tuple(booking.record.rid for booking in chosen)
        yield from self._do(DecodeWave(seq=self._number(), wave=self.wave, slot=0, lane=0, rids=rids))

    def result(self, wave: int) -> Iterator[None]:
        """The last rank has sampled."""
        flight = self.rank.flights[wave]
        tokens = tuple(STOP if self.rng.random() < 0.15 else self.rng.randrange(2) for _ in flight.rids)
        before = {rid: self.rank.jobs[rid] for rid in flight.rids}
        command = ResultCommand(
            seq=self._number(), wave=wave, token_ids=tokens, lanes=(-1,) * len(tokens), logprobs=None
        )
        yield from self._do(command)
        launched_by, spans = self._launched.pop(wave, (0, []))
        for span in spans:
            self._computed(span, launched_by, command.seq, last=span.rid not in flight.middle)
        for rid in flight.rids:
            booking = self.bookings[rid]
            booking.in_flight -= 1
            if rid not in self.rank.jobs:
                req = before[rid].req
                self.texts.append([*booking.record.token_ids, *(t for t in req.output_ids if t != STOP)])
                self._end(rid, "cut short" if booking.aborting else "finished")
            elif rid not in flight.middle:
                booking.phase = Phase.DECODE
            elif booking.aborting and not booking.planned and not booking.in_flight:
                yield from self._release(booking)

    def _computed(self, span: Span, launched_by: int, landed_by: int, *, last: bool) -> None:
        if last:
            self.rank.handover.computed(span.rid, span.start + span.length, landed_by, last=True)
        elif span.publish:
            self.rank.handover.computed(span.rid, span.publish, launched_by, last=False)

    # --- ends -----------------------------------------------------------------------------------------------

    def is_idle(self) -> bool:
        """Whether no request is anywhere, as far as rank 0 knows."""
        return not self.bookings and not self.rank.flights and not self.rank.jobs

    def flush(self) -> Iterator[None]:
        """Drop all cached content; only when idle."""
        self.stat["flushes"] += 1
        command = FlushCommand(seq=self._number())
        self._send(command)
        self.rank.handover.fence(command.seq)
        yield from self.rank.apply(command)

    def _release(self, booking: Booking) -> Iterator[None]:
        command = AbortCommand(
            seq=self._number(), rid=booking.record.rid, message=None, status=None, release=True
        )
        yield from self._do(command)
        self.rank.handover.computed(booking.record.rid, booking.prompt, command.seq, last=True)
        self._end(booking.record.rid, "aborted")

    def _stop_planning(self, booking: Booking) -> None:
        self.rank.handover.settled(booking.prompt - booking.next)

    def _end(self, rid: str, how: str) -> None:
        self.publisher.forget(rid)
        del self.bookings[rid]
        self.ended[rid] += 1
        self.stat[how] += 1

    def _number(self) -> int:
        self.seq += 1
        return self.seq

    def _do(self, command: Command) -> Iterator[None]:
        self._send(command)
        yield from self.rank.apply(command)
