"""The LOOP of rank 0: takes requests, plans waves, and tells every rank what to do.

Everything that must happen in the same order on all ranks becomes a command: waves, results, aborts, flushes. Rank 0
sends a command before it applies it itself, so that the others prepare while it launches.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import zmq
from sglang.srt.managers.io_struct import AbortReq
from sglang.srt.managers.scheduler import _make_abort_req

from sglang_wavepp.admission import fits
from sglang_wavepp.admission.messages import InstallRecord
from sglang_wavepp.admission.pools import PoolLimits
from sglang_wavepp.executor import grammars, vetting
from sglang_wavepp.executor.admission_port import AdmissionPort
from sglang_wavepp.executor.bookings import AbortReason, Booking, Bookings, Phase
from sglang_wavepp.executor.grammars import Grammars
from sglang_wavepp.executor.keys import give_key, key_of, make_key
from sglang_wavepp.executor.slots import Flight
from sglang_wavepp.executor.stage import Stage
from sglang_wavepp.executor.wave_costs import WaveCosts
from sglang_wavepp.plane.command_link import CommandLeaderLink
from sglang_wavepp.plane.messages import (
    NO_LANE,
    AbortCommand,
    DecodeWave,
    FlushCommand,
    PrefillWave,
    ResultCommand,
    Span,
    StopCommand,
)
from sglang_wavepp.plane.result_link import ResultReceiver
from sglang_wavepp.planning.lanes import choose_lanes
from sglang_wavepp.planning.publisher import Publisher
from sglang_wavepp.planning.spans import PlannedSpan
from sglang_wavepp.planning.supply import Supply, WavePlanner
from sglang_wavepp.planning.turns import Turns, WaveKind
from sglang_wavepp.rank.handover import Handover
from sglang_wavepp.telemetry.trace import ADMISSION

logger = logging.getLogger(__name__)

TIMEOUT_CHECK_MS = 100
"""How often request timeouts are looked at while a request is alive and the operator has set one."""
FLUSH_CHECK_MS = 20
"""How often a flush that waits for an idle server is looked at."""


class Leader:
    """Rank 0's executor.

    Args:
        scheduler: SGLang's scheduler of rank 0.
        stage: applies commands on this rank.
        commands: link to the other ranks.
        results: link from the last stage.
        handover: meeting point with the admission thread.
        admission: how this LOOP takes part in admission.
        planner: sizes and packs prefill waves.
        costs: tells the planner what waves cost, None where it doesn't ask.
        publisher: says which positions of a prompt every rank publishes.
        limits: pool sizes of the smallest rank: what exceeds them is refused at arrival.
        record: makes the installation record of a request.
        timeouts: whether the operator limits how long requests wait or run.
    """

    def __init__(
        self,
        *,
        scheduler: Any,
        stage: Stage,
        commands: CommandLeaderLink,
        results: ResultReceiver,
        handover: Handover,
        admission: AdmissionPort,
        planner: WavePlanner,
        costs: WaveCosts | None,
        publisher: Publisher,
        limits: PoolLimits,
        record: Callable[[Any], InstallRecord],
        timeouts: bool,
    ) -> None:
        self._scheduler = scheduler
        self._stage = stage
        self._commands = commands
        self._results = results
        self._handover = handover
        self._admission = admission
        self._planner = planner
        self._costs = costs
        self._publisher = publisher
        self._limits = limits
        self._record = record
        self._timeouts = timeouts
        self._bookings = Bookings(settled=handover.settled, counted=handover.counted)
        self._grammars = Grammars(scheduler.grammar_manager, wake=handover.loop_wake.signal)
        self._turns = Turns()
        self._command_number = 0
        self._arrivals = 0
        self._wave = 0
        self._plan_again: float | None = None
        self._next_lane = 0
        self._was_busy = True
        self._stopped = False

    # --- the loop -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the server shuts down."""
        poller = zmq.Poller()
        for source in self._sources():
            poller.register(source, zmq.POLLIN)
        while not self._stopped:
            progressed = self._take_input()
            progressed |= self._take_admissions()
            progressed |= self._take_results()
            if self._scheduler.gracefully_exit:
                self._stop("shutdown")
                return
            if self._launch() or progressed:
                self._was_busy = True
                continue
            self._when_idle()
            poller.poll(self._patience_ms())

    def _sources(self) -> list[Any]:
        receiver = self._scheduler.request_receiver
        sources = [receiver.recv_from_tokenizer, receiver.recv_from_rpc, self._results.socket]
        sources += [self._handover.loop_wake.fileno(), *self._admission.sources()]
        return [source for source in sources if source is not None]

    def _patience_ms(self) -> int | None:
        s = self._scheduler
        waits = [wait for wait in (self._admission.patience_ms(),) if wait is not None]
        if self._grammars.waiting:
            waits.append(grammars.CHECK_MS)
        if s.flush_wrapper._pending is not None:
            waits.append(FLUSH_CHECK_MS)
        if self._timeouts and len(self._bookings):
            waits.append(TIMEOUT_CHECK_MS)
        if self._plan_again is not None:
            waits.append(max(0, math.ceil((self._plan_again - time.monotonic()) * 1000)))
        return min(waits) if waits else None

    def _when_idle(self) -> None:
        if not self._was_busy or not self.is_idle():
            return
        self._was_busy = False
        with self._stage.mutex:
            self._scheduler.on_idle()
            self._stage.leases.check_idle()
        self._stage.when_idle()

    def is_idle(self) -> bool:
        """Whether no request is anywhere on this server, admission included."""
        return not len(self._bookings) and self._stage.is_idle()

    # --- input --------------------------------------------------------------------------------------------------

    def _take_input(self) -> bool:
        s = self._scheduler
        requests: list[Any] = s._poll_timeout_aborts() if self._timeouts else []
        pulled = s.request_receiver._pull_raw_reqs()
        s.request_receiver.unwrap_pickle_wrapper(pulled)
        requests += pulled
        s.process_input_requests(requests)
        compiled = self._grammars.take()
        for req in compiled:
            s._add_request_to_queue(req)
        return bool(requests or compiled)

    def clip_output(self, req: Any, *, asked: int, at_least: int) -> None:
        """Let a request make as many tokens as it asked for, or as many as every rank can hold.

        SGLang's own clipping keeps a page free that its planning needs and this one doesn't.
        """
        params = req.sampling_params
        params.max_new_tokens = fits.clip_output(
            prompt=len(req.origin_input_ids), max_new_tokens=max(0, asked), limits=self._limits
        )
        params.min_new_tokens = min(at_least, params.max_new_tokens)

    def arrive(self, req: Any) -> None:
        """A request that SGLang has put into its waiting queue: refuse it, or announce it to all ranks."""
        refused = req.to_finish or req.finished_reason
        if refused is None:
            message = fits.refusal(
                prompt=len(req.origin_input_ids),
                max_new_tokens=req.sampling_params.max_new_tokens,
                limits=self._limits,
            ) or vetting.complaint(req, vocabulary=self._scheduler.model_config.vocab_size)
            if message is not None:
                req.set_finish_with_abort(message, HTTPStatus.BAD_REQUEST)
                refused = req.to_finish
        record = None
        if refused is None:
            self._arrivals += 1
            give_key(req, make_key(self._arrivals, str(req.rid)))
            try:
                record = self._record(req)
            except ValueError as error:
                req.set_finish_with_abort(str(error), HTTPStatus.BAD_REQUEST)
                refused = req.to_finish
        if refused is not None:
            self._scheduler.waiting_queue.remove(req)
            req.finished_reason = refused
            self._scheduler._release_aborted_request(req)
            self._scheduler.output_streamer.mid_prompt = frozenset()
            self._scheduler.output_streamer.stream_output([req], req.return_logprob)
            return
        assert record is not None
        self._bookings.arrive(req)
        self._stage.entries.add(req)
        self._stage.timeline.instant("announced", ADMISSION, rid=record.rid)
        self._handover.announce(record)

    # --- admission ----------------------------------------------------------------------------------------------

    def _take_admissions(self) -> bool:
        self._handover.loop_wake.clear()
        progressed = self._admission.serve()
        for admitted in self._handover.pop_admitted():
            progressed = True
            booking = self._bookings.admit(admitted.rid, admitted.endpoint)
            self._publisher.admit(
                booking.key,
                prompt=booking.prompt,
                endpoint=booking.next,
                reach=self._stage.leases.reach(booking.key),
            )
            if booking.abort is not None:
                self._release(booking)
        for rid in self._handover.pop_withdrawn():
            progressed = True
            ended = self._bookings.get(rid)
            if ended is None:
                raise RuntimeError(f"request {rid} was withdrawn, but isn't known")
            self._stage.timeline.instant("withdrawn", ADMISSION, rid=rid)
            self._end_queued(ended)
        return progressed

    def _end_queued(self, booking: Booking) -> None:
        """Tell the client that a request ended before its first span."""
        s = self._scheduler
        if booking.queued:
            s.waiting_queue.remove(booking.req)
        s._release_aborted_request(booking.req)
        reason = booking.abort or AbortReason()
        s.send_abort_output(_make_abort_req(booking.req, finished_reason=reason.finished_reason), booking.req)
        self._stage.entries.remove(booking.key)
        self._publisher.forget(booking.key)
        self._bookings.end(booking.key)

    # --- waves --------------------------------------------------------------------------------------------------

    def _launch(self) -> bool:
        started = time.thread_time()
        self._plan_again = None
        slot = self._stage.ring.free_slot()
        if slot is None or self._scheduler._engine_paused:
            return False
        lane = self._ready_lane()
        kind = self._turns.choose(prefill_ready=self._bookings.has_unplanned(), decode_ready=lane is not None)
        if kind is WaveKind.PREFILL:
            plan = self._planner.plan(self._supply())
            if not plan.spans:
                self._plan_again = plan.ask_again
                kind = None if lane is None else WaveKind.DECODE
        if kind is None:
            return False
        self._wave += 1
        self._turns.launched(kind)
        if kind is WaveKind.PREFILL:
            self._launch_prefill(slot, plan.spans)
            if self._costs is not None:
                self._costs.launched(self._wave, time.thread_time() - started)
        else:
            assert lane is not None
            self._launch_decode(slot, lane)
        return True

    def _supply(self) -> Supply:
        arriving = self._handover.arriving
        return Supply(
            queue=self._bookings.remainders(),
            unplanned=self._bookings.unplanned_tokens,
            flying=self._bookings.flying(),
            arriving_tokens=arriving.tokens,
            arriving_requests=max(0, self._bookings.in_admission - arriving.blocked),
            now=time.monotonic(),
        )

    def _launch_prefill(self, slot: int, planned: tuple[PlannedSpan, ...]) -> None:
        planned = tuple(replace(span, publish=self._publisher.position(span)) for span in planned)
        spans = tuple(
            Span(rid=span.rid, start=span.start, length=span.length, publish=span.publish) for span in planned
        )
        command = PrefillWave(seq=self._number(), wave=self._wave, slot=slot, spans=spans)
        self._commands.send(command)
        for booking in self._bookings.launch(self._wave, planned, command=command.seq):
            if booking.queued:
                booking.queued = False
                self._scheduler.waiting_queue.remove(booking.req)
        self._stage.launch_prefill(command, None)
        self._applied(command.seq)

    def _launch_decode(self, slot: int, lane: int) -> None:
        rids = tuple(key_of(req) for req in self._stage.lanes[lane].requests())
        command = DecodeWave(seq=self._number(), wave=self._wave, slot=slot, lane=lane, rids=rids)
        self._commands.send(command)
        self._next_lane = (lane + 1) % len(self._stage.lanes)
        self._stage.launch_decode(command, None)
        self._applied(command.seq)

    def _ready_lane(self) -> int | None:
        """The next lane, in turn, that has requests and no wave in flight."""
        lanes = self._stage.lanes
        order = (*range(self._next_lane, len(lanes)), *range(self._next_lane))
        return next((i for i in order if not lanes[i].in_flight and lanes[i].requests()), None)

    # --- results ------------------------------------------------------------------------------------------------

    def _take_results(self) -> bool:
        progressed = False
        started = time.thread_time()
        while (result := self._results.receive()) is not None:
            progressed = True
            flight = self._stage.ring.flight(result.wave)
            command = ResultCommand(
                seq=self._number(),
                wave=result.wave,
                token_ids=result.token_ids,
                lanes=self._lanes_of(flight),
                logprobs=result.logprobs,
            )
            self._commands.send(command)
            ended = {key_of(req) for req in self._stage.apply_result(command)}
            self._applied(command.seq)
            spans = self._landed(flight, command.seq) if flight.lane is None else ()
            self._account(flight, ended)
            now = time.thread_time()
            if self._costs is not None and flight.lane is None:
                self._costs.landed(flight.wave, spans, flight.stopwatch, now - started)
            started = now
        return progressed

    def _lanes_of(self, flight: Flight) -> tuple[int, ...]:
        """The lane that each request of a wave decodes in from now on."""
        if flight.lane is not None:
            return (flight.lane,) * len(flight.batch.reqs)
        joining = [self._will_decode(req, flight) for req in flight.batch.reqs]
        chosen = iter(choose_lanes([len(lane.requests()) for lane in self._stage.lanes], sum(joining)))
        return tuple(next(chosen) if joins else NO_LANE for joins in joining)

    @staticmethod
    def _will_decode(req: Any, flight: Flight) -> bool:
        return (
            key_of(req) not in flight.middle
            and req.sampling_params.max_new_tokens > 1
            and req.to_finish is None
        )

    def _account(self, flight: Flight, ended: set[str]) -> None:
        for key in flight.keys:
            booking = self._bookings.get(key)
            if booking is None:
                raise RuntimeError(f"wave {flight.wave} had request {key}, which isn't known")
            if flight.lane is None:
                booking.in_flight -= 1
            if key in ended:
                self._bookings.end(key)
            elif key not in flight.middle:
                booking.phase = Phase.DECODE
            elif booking.abort is not None and not booking.planned and not booking.in_flight:
                self._release(booking)

    def _landed(self, flight: Flight, command: int) -> Sequence[PlannedSpan]:
        """Tell admission what of the prompts is computed now: the spans of the wave.

        A rank files what a span publishes when it launches it, and the end of a prompt when its result is applied.
        """
        spans, launched_by = self._bookings.land(flight.wave)
        for span in spans:
            if span.rid not in flight.middle:
                self._handover.computed(span.rid, span.end, command, last=True)
            elif span.publish:
                self._handover.computed(span.rid, span.publish, launched_by, last=False)
        return spans

    # --- aborts, flush, stop ------------------------------------------------------------------------------------

    def abort(self, request: AbortReq) -> None:
        """End the requests that an abort names, wherever they are."""
        reason = AbortReason(
            message=request.abort_message or None,
            status=int(HTTPStatus.SERVICE_UNAVAILABLE) if request.abort_message else None,
            finished_reason=request.finished_reason,
        )
        for booking in self._bookings.matching(request.rid, request.abort_all):
            if booking.abort is not None:
                continue
            booking.abort = reason
            if booking.phase is Phase.ADMISSION:
                self._handover.abort(booking.key)
            elif booking.phase is Phase.PREFILL and not booking.planned:
                self._bookings.stop_planning(booking.key)
                if not booking.in_flight:
                    self._release(booking)
            else:
                self._send_abort(booking, release=False)

    def _release(self, booking: Booking) -> None:
        """End a request that has no span in flight, on every rank."""
        self._bookings.stop_planning(booking.key)
        self._send_abort(booking, release=True)
        self._handover.computed(booking.key, booking.prompt, self._command_number, last=True)
        self._end_queued(booking)

    def _send_abort(self, booking: Booking, *, release: bool) -> None:
        reason = booking.abort or AbortReason()
        command = AbortCommand(
            seq=self._number(), rid=booking.key, message=reason.message, status=reason.status, release=release
        )
        self._commands.send(command)
        self._stage.apply_abort(command)
        self._applied(command.seq)

    def flush(self, drop: Callable[[], bool]) -> bool:
        """Drop all cached content on every rank; the caller has seen that the server is idle.

        Args:
            drop: drops this rank's.
        """
        command = FlushCommand(seq=self._number())
        self._commands.send(command)
        self._handover.fence(command.seq)
        with self._stage.mutex:
            done = drop()
        self._applied(command.seq)
        return done

    def _stop(self, reason: str) -> None:
        command = StopCommand(seq=self._number(), reason=reason)
        self._commands.send(command)
        self._stopped = True

    def _number(self) -> int:
        self._command_number += 1
        return self._command_number

    def _applied(self, seq: int) -> None:
        self._handover.applied_command(seq)
