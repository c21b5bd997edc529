"""One rank's part of the pipeline: applies commands to SGLang's scheduler, batches and caches.

Rank 0 and its followers run the same code here. A command has the same effect on every rank because nothing in this
file decides: what to run, where spans start and end, which lane a request joins and when a request is dropped all
stand in the command. What a rank finds in its own cache can only confirm that, or end the server.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from sglang.srt.disaggregation.utils import prepare_abort
from sglang.srt.managers.overlap_utils import RelayPayload
from sglang.srt.managers.schedule_batch import FINISH_ABORT, ScheduleBatch
from sglang.srt.managers.scheduler_components.metrics_reporter import PrefillStats
from sglang.srt.managers.utils import (
    GenerationBatchResult,
    get_logprob_dict_from_result,
    get_logprob_from_pp_outputs,
)
from sglang.srt.mem_cache.common import release_kv_cache
from sglang.srt.model_executor.forward_batch_info import PPProxyTensors
from sglang.srt.observability.metrics_collector import QueueCount
from sglang.srt.observability.req_time_stats import set_time_batch

from sglang_wavepp.cache.cache_faults import CacheFaults
from sglang_wavepp.cache.holdings import Holdings
from sglang_wavepp.cache.publishing import publish, track
from sglang_wavepp.executor.entries import Entries, Entry
from sglang_wavepp.executor.keys import key_of
from sglang_wavepp.executor.lane import Lane, split_by_lane
from sglang_wavepp.executor.reporter import Reporter, Sampled
from sglang_wavepp.executor.slots import Flight, Ring
from sglang_wavepp.executor.wave_clock import Stopwatch
from sglang_wavepp.plane import logprobs
from sglang_wavepp.plane.activation_link import Activation, ActivationSender
from sglang_wavepp.plane.messages import AbortCommand, DecodeWave, PrefillWave, RankId, ResultCommand, Span
from sglang_wavepp.planning.grid import SpanGrid
from sglang_wavepp.rank.rounds import nothing
from sglang_wavepp.telemetry.trace import ADMISSION, WAVES, Timeline


class SpanMismatch(RuntimeError):
    """This rank can't compute a span of rank 0's as it is. It must not compute anything else instead."""


@dataclass(slots=True)
class Stage:
    """Executes commands on one rank.

    Attributes:
        scheduler: SGLang's scheduler of this rank.
        rank: who this rank is.
        leases: this rank's admission.
        mutex: guards the tree and the allocator against the admission thread.
        grid: where spans may start and end.
        ring: waves in flight.
        lanes: decode lanes.
        activations: link to the next stage, None on the last.
        reporter: result link, on the last stage's first rank only.
        timeline: trace of this rank.
        release: tells others that capacity came back.
        faults: what a test breaks in this rank's cache, None outside tests.
        when_idle: called when the rank has become idle.
        stopwatch: starts a stopwatch for a prefill wave's forward, None where nobody asks how long it takes.
    """

    scheduler: Any
    rank: RankId
    leases: Holdings
    mutex: Any
    grid: SpanGrid
    ring: Ring
    lanes: list[Lane]
    activations: ActivationSender | None
    reporter: Reporter | None
    timeline: Timeline
    release: Callable[[], None]
    entries: Entries = field(default_factory=Entries)
    is_last_stage: bool = False
    faults: CacheFaults | None = None
    when_idle: Callable[[], None] = nothing
    stopwatch: Callable[[], Stopwatch] | None = None

    # --- waves --------------------------------------------------------------------------------------------------

    def launch_prefill(self, command: PrefillWave, activation: Activation | None) -> None:
        """Run the spans of a wave.

        Args:
            command: the wave.
            activation: from the stage before, None on the first stage; it may still be on its way.

        Raises:
            SpanMismatch: a span doesn't start where this rank can resume, or doesn't end on the grid.
        """
        entered = time.monotonic_ns()
        with self.mutex:
            batch, middle = self._prepare(command)
        flight = Flight(wave=command.wave, slot=command.slot, batch=batch, middle=middle)
        self.ring.take(flight)
        waited = self._forward(flight, activation)
        for req, span in zip(batch.reqs, command.spans, strict=True):
            # Before any of these requests is prepared again, and only after its forward is enqueued: the recurrent
            # state of a checkpoint is written by that forward.
            if span.rid in middle:
                publish(req, span, self.scheduler.tree_cache)
        self.timeline.complete(
            f"wave {command.wave}",
            entered + waited,
            self.timeline.now_ns(),
            WAVES,
            wave=command.wave,
            slot=command.slot,
            kind="prefill",
            tokens=sum(span.length for span in command.spans),
            spans=[(span.rid, span.start, span.length) for span in command.spans],
            published=[span.publish for span in command.spans],
        )

    def launch_decode(self, command: DecodeWave, activation: Activation | None) -> None:
        """Run one token of each request of a lane.

        Raises:
            SpanMismatch: the lane's requests aren't those of the command, or there is no room for a token each.
        """
        entered = time.monotonic_ns()
        lane = self.lanes[command.lane]
        if lane.in_flight:
            raise SpanMismatch(f"lane {command.lane} decodes already")
        with self.mutex:
            gathered = lane.gather()
            lengths = zip(gathered.reqs, gathered.seq_lens_cpu.tolist(), strict=True)
            self.leases.draw_all({key_of(req): length + 1 for req, length in lengths})
            batch = self.scheduler.update_running_batch(gathered)
            found = () if batch is None else tuple(key_of(req) for req in batch.reqs)
            if found != command.rids:
                raise SpanMismatch(
                    f"decode wave {command.wave} of lane {command.lane} on {self.rank.name}: rank 0 says"
                    f" {list(command.rids)}, here are {list(found)}"
                )
        lane.in_flight = True
        flight = Flight(wave=command.wave, slot=command.slot, batch=batch, lane=command.lane)
        self.ring.take(flight)
        waited = self._forward(flight, activation)
        self.timeline.complete(
            f"decode {command.wave}",
            entered + waited,
            self.timeline.now_ns(),
            WAVES,
            wave=command.wave,
            slot=command.slot,
            kind="decode",
            lane=command.lane,
            tokens=len(command.rids),
            rids=list(command.rids),
        )

    def _prepare(self, command: PrefillWave) -> tuple[ScheduleBatch, frozenset[str]]:
        reqs: list[Any] = []
        first: set[str] = set()
        middle: set[str] = set()
        for span in command.spans:
            entry = self.entries.get(span.rid)
            complaint = self.grid.complaint(
                start=span.start, length=span.length, prompt=entry.prompt, publish=span.publish
            )
            if complaint is not None:
                raise SpanMismatch(
                    f"{self.rank.name} refuses wave {command.wave}: request {span.rid}: {complaint}"
                )
            if entry.materialised:
                entry.req.init_next_round_input()
            else:
                self._materialise(entry, span)
                first.add(span.rid)
            if entry.req.prefix_len != span.start:
                raise SpanMismatch(
                    f"{self.rank.name} refuses wave {command.wave}: the span of request {span.rid} starts at"
                    f" {span.start}, this rank can resume at {entry.req.prefix_len}"
                )
            entry.req.extend_end = span.start + span.length
            track(entry.req, span)
            if entry.req.extend_end < entry.prompt:
                entry.req.inflight_middle_chunks += 1
                middle.add(span.rid)
            reqs.append(entry.req)
        s = self.scheduler
        set_time_batch(reqs, "set_forward_entry_time")
        batch = ScheduleBatch.init_new(
            reqs,
            s.req_to_token_pool,
            s.token_to_kv_pool_allocator,
            s.tree_cache,
            s.model_config,
            s.enable_overlap,
            s.spec_algorithm,
            chunked_req=None,
        )
        batch.contains_last_prefill_chunk = len(middle) < len(reqs)
        # Before the allocation, which finds free what all of them draw.
        self.leases.draw_all({span.rid: span.start + span.length for span in command.spans})
        batch.prepare_for_extend()
        batch.decoding_reqs = None
        batch.prefill_stats = self._prefill_stats(command, first)
        return batch, frozenset(middle)

    def _prefill_stats(self, command: PrefillWave, first: set[str]) -> PrefillStats:
        """What SGLang's log line and metrics say about a wave."""
        s = self.scheduler
        return PrefillStats(
            log_input_tokens=sum(span.length for span in command.spans),
            log_hit_tokens=sum(span.start for span in command.spans if span.rid in first),
            new_token_ratio=s.new_token_ratio_tracker.current,
            num_running_reqs=QueueCount.from_reqs(s.running_batch.reqs, s.enable_priority_scheduling),
            num_new_seqs=len(first),
        )

    def _materialise(self, entry: Entry, span: Span) -> None:
        """Take this rank's own references to the prefix, up to the agreed endpoint and no further."""
        req = entry.req
        req.wavepp_endpoint = span.start
        req.init_next_round_input(self.scheduler.tree_cache)
        req.lock = self.scheduler.tree_cache.lock(req.last_node)
        req.wavepp_chain = self.leases.chain(entry.key)
        entry.materialised = True
        self.leases.hand_over(entry.key)
        self.timeline.instant(
            "materialise", ADMISSION, rid=entry.key, endpoint=span.start, found=req.prefix_len
        )

    def _forward(self, flight: Flight, activation: Activation | None) -> int:
        """Enqueue the forward and send what it makes; the nanoseconds that this rank waited for its input."""
        s = self.scheduler
        s.cur_batch_for_debug = flight.batch
        waiting = time.monotonic_ns()
        if activation is not None:
            # Not earlier: what the host has to prepare for a wave is done while its input is on its way.
            activation.wait()
        waited = time.monotonic_ns() - waiting
        with s.forward_stream_ctx:
            s._pp_wait_forward_dependencies()
            if self.stopwatch is not None and flight.lane is None:
                flight.stopwatch = self.stopwatch()
            result = s.run_batch(
                flight.batch, None if activation is None else PPProxyTensors(activation.tensors)
            )
            if flight.stopwatch is not None:
                flight.stopwatch.stop()
            outgoing = self._outgoing(result)
            launched = s.device_module.Event()
            launched.record(s.device_module.current_stream())
        s.cur_batch_for_debug = None
        if outgoing is not None:
            if self.activations is None:
                raise RuntimeError(f"{self.rank.name} has no link to the next stage")
            self.activations.send(flight.wave, outgoing, launched=launched)
        elif self.reporter is not None:
            self.reporter.report(self._sampled(flight, result, launched))
        return waited

    def _outgoing(self, result: GenerationBatchResult) -> dict[str, torch.Tensor] | None:
        """Tensors for the next stage, None on the last."""
        if self.is_last_stage:
            return None
        tensors: dict[str, torch.Tensor] = result.pp_hidden_states_proxy_tensors.tensors
        if result.can_run_cuda_graph:
            # A graph's outputs are views of buffers that its next replay overwrites, maybe before they are sent.
            return {name: tensor.clone() for name, tensor in tensors.items()}
        return tensors

    def _sampled(self, flight: Flight, result: GenerationBatchResult, launched: Any) -> Sampled:
        s = self.scheduler
        token_ids = result.next_token_ids
        copied = None
        if token_ids.device.type != "cpu":
            with s.copy_stream_ctx:
                s.copy_stream.wait_event(launched)
                on_host = torch.empty(token_ids.shape, dtype=token_ids.dtype, device="cpu", pin_memory=True)
                on_host.copy_(token_ids, non_blocking=True)
                token_ids.record_stream(s.copy_stream)
                copied = s.device_module.Event()
                copied.record(s.copy_stream)
            token_ids = on_host
        fields = get_logprob_dict_from_result(result) if flight.batch.return_logprob else None
        return Sampled(wave=flight.wave, token_ids=token_ids, logprobs=fields, copied=copied)

    # --- results ------------------------------------------------------------------------------------------------

    def apply_result(self, command: ResultCommand) -> list[Any]:
        """Give the sampled tokens to the requests of a wave.

        Returns:
            The requests of the wave that ended with it.
        """
        self.timeline.instant("result", WAVES, wave=command.wave)
        flight = self.ring.give_back(command.wave)
        batch, s = flight.batch, self.scheduler
        token_ids = torch.tensor(command.token_ids, dtype=torch.int64)
        if not self.is_last_stage:
            # The last stage has stashed what it sampled; here the next decode step would find nothing.
            s.future_map.stash(
                batch.req_pool_indices, RelayPayload(bonus_tokens=token_ids.to(s.device, non_blocking=True))
            )
            batch.input_ids = None
        result = GenerationBatchResult(
            logits_output=None,
            pp_hidden_states_proxy_tensors=None,
            next_token_ids=token_ids,
            can_run_cuda_graph=False,
        )
        if command.logprobs is not None:
            (
                result.logits_output,
                result.extend_input_len_per_req,
                result.extend_logprob_start_len_per_req,
            ) = get_logprob_from_pp_outputs(PPProxyTensors(logprobs.unpack(command.logprobs)))
        s.output_streamer.mid_prompt = flight.middle
        s.process_batch_result(batch, result)
        ended = [req for req in batch.reqs if req.finished()]
        for req in ended:
            self._forget(key_of(req))
        if flight.lane is None:
            for lane, part in split_by_lane(batch, command.lanes).items():
                self.lanes[lane].joining.append(part)
        else:
            self.lanes[flight.lane].in_flight = False
        if ended:
            self.release()
        if self.faults is not None:
            self.faults.after_result()
        return ended

    # --- ends ---------------------------------------------------------------------------------------------------

    def apply_abort(self, command: AbortCommand) -> Any:
        """End a request, or mark it so that its next result ends it.

        Returns:
            SGLang's `Req`.
        """
        entry = self.entries.get(command.rid)
        req = entry.req
        if not command.release:
            req.to_finish = (
                FINISH_ABORT() if command.message is None else FINISH_ABORT(command.message, command.status)
            )
            return req
        if not entry.materialised:
            self.leases.end(entry.key)
            req.finished_reason = FINISH_ABORT()
        else:
            prepare_abort(req, command.message or "Aborted", command.status)
            req.to_finish = None
            self.scheduler._release_aborted_request(req)
            with self.mutex:
                release_kv_cache(req, self.scheduler.tree_cache, checkpoint=False)
                self.leases.end(entry.key)
        self.entries.remove(entry.key)
        self.release()
        return req

    def _forget(self, key: str) -> None:
        self.leases.end(key)
        self.entries.remove(key)

    def is_idle(self) -> bool:
        """Whether this rank knows no request and no wave."""
        return not len(self.ring) and not len(self.entries)

    def holds_nothing(self) -> bool:
        """Whether no wave, no request and no lease uses the pools of this rank."""
        with self.mutex:
            return not len(self.ring) and not self.entries.any_materialised() and self.leases.idle()
