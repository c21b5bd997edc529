"""One rank: SGLang's tree and pools, the product's admission on them, and a LOOP that treats them as a stage does.

Matches, allocations, checkpoints and releases are SGLang's own functions on SGLang's own requests; only the forward
pass is missing. Of a recurrent state it keeps one number, the tokens that the state has seen, and each span must find
as many as it starts at. A command is applied in sections: what other threads can't see half done is one section.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import sglang.srt.layers.attention.hybrid_linear_attn_backend as hybrid_backend
import torch
from model.pipeline import WatchedMember
from model.real.pools import pools_of
from model.real.world import World, hint_step
from sglang.srt.managers.schedule_batch import FINISH_ABORT, FINISH_LENGTH, Req, ScheduleBatch
from sglang.srt.mem_cache.allocation import alloc_for_decode_default, alloc_for_extend
from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.common import checkpoint_kv_cache, release_kv_cache
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.sampling.sampling_params import SamplingParams

from sgl_patches.schedule_batch import _bounded_prefix
from sglang_wavepp.admission.decision import Outcome, Verdict
from sglang_wavepp.admission.hint import HintProbe
from sglang_wavepp.admission.leader import UNLIMITED
from sglang_wavepp.admission.messages import Gather, InstallRecord
from sglang_wavepp.admission.pools import PoolLimits
from sglang_wavepp.cache.lease import LeaseAdmission
from sglang_wavepp.cache.publishing import publish, track
from sglang_wavepp.cache.radix_tree import IndexedRadixTree
from sglang_wavepp.plane.messages import (
    AbortCommand,
    Command,
    DecodeWave,
    FlushCommand,
    PrefillWave,
    ResultCommand,
    Span,
)
from sglang_wavepp.rank.handover import Handover, Signal

STOP = -1
"""Token that ends an answer."""


class CheckedMember(WatchedMember):
    """Sees to it that nothing is held for who waits, and that what goes on lower stays held."""

    def on_gather(self, gather: Gather) -> tuple[Outcome, ...]:
        outcomes = super().on_gather(gather)
        for outcome in outcomes:
            if (
                outcome.verdict is not Verdict.ADMITTED
            ):  # these are the LOOP's, which may be done with them already
                held = self._cache.holds(outcome.rid)
                assert held == (outcome.verdict is Verdict.LOWER), f"{outcome} and held is {held}"
        return outcomes


class BoundedReq(Req):
    """A request whose match is bounded as WavePP's hook on SGLang bounds it."""

    wavepp_endpoint: int | None = None

    def _compute_max_prefix_len(self, input_len: int) -> int:
        def own(req: Req, length: int) -> int:
            return Req._compute_max_prefix_len(req, length)

        return _bounded_prefix(own, self, input_len)


@dataclass
class Job:
    """A request as this rank's LOOP knows it."""

    record: InstallRecord
    req: BoundedReq
    materialised: bool = False

    @property
    def prompt(self) -> int:
        return len(self.record.token_ids)


@dataclass
class Flight:
    rids: tuple[str, ...]
    middle: frozenset[str] = frozenset()
    decode: bool = False


@dataclass
class Batch:
    """What SGLang's allocation functions read of a `ScheduleBatch`."""

    reqs: list[Any]
    req_to_token_pool: Any
    tree_cache: Any
    model_config: Any
    device: str = "cpu"
    hisparse_coordinator: None = None
    prefix_lens: list[int] = field(default_factory=list)
    extend_lens: list[int] = field(default_factory=list)
    extend_num_tokens: int = 0
    seq_lens: Any = None
    seq_lens_cpu: Any = None
    req_pool_indices: Any = None
    req_pool_indices_cpu: Any = None

    def maybe_evict_swa(self) -> None:
        """No sliding window here."""

    def is_dllm(self) -> bool:
        return False


class Rank:
    """One rank of a world."""

    def __init__(
        self,
        index: int,
        world: World,
        *,
        wave_wake: Signal,
        loop_wake: Signal,
        hashed: Callable[[str, Sequence[int]], None] | None = None,
    ) -> None:
        self.index, self.world = index, world
        self.pools = pools_of(world, index)
        self.cache = self.pools.cache
        self.limits = PoolLimits(
            tokens=int(self.pools.tokens.available_size()),
            page_size=world.page,
            rows=world.rows,
            context=1 << 20,
            recurrent_slots=None if world.slots is None else int(self.pools.slots.available_size()),
            slots_per_request=world.slots_per_request,
        )
        self.tree = IndexedRadixTree(self.cache, grid=world.step)
        probe = HintProbe(self.pools.core.index, block=world.block, step=hint_step(world))
        self.admission = LeaseAdmission(
            tree=self.tree,
            limits=self.limits,
            probe=probe,
            block=world.block,
            headroom=world.headroom,
            wanted=self.pools.core.wanted,
            hashed=hashed,
        )
        self.pools.core.holder = self.admission.escrows
        self.member = CheckedMember(rank=index, cache=self.admission)
        self.handover = Handover(wave_wake=wave_wake, loop_wake=loop_wake)
        self.jobs: dict[str, Job] = {}
        self.flights: dict[int, Flight] = {}
        self.launched = 0
        self._config = SimpleNamespace(
            is_encoder_decoder=False, hf_text_config=SimpleNamespace(mamba_chunk_size=world.step)
        )

    def gain_to_wait_for(self) -> int:
        """Rank 0: tokens for which a request is held back."""
        gain = self.world.gain
        if gain is None:
            return UNLIMITED
        return gain[0] if self.handover.unplanned_tokens else gain[1]

    def warm(self, text: list[int], ends: list[int]) -> None:
        """Content from before the history, up to the last end that there is room for; a snapshot at each end."""
        start = 0
        for end in sorted(ends):
            slot = None
            if self.tree.free() < end - start:
                return
            if self.world.slots is not None:
                slot = self.pools.slots.alloc(1)
                if slot is None:
                    return
                self._seen()[slot] = end
            known = self.cache.match_prefix(MatchPrefixParams(key=RadixKey(array("q", text[:start]))))
            fresh = self.pools.tokens.alloc(end - start)
            value = torch.cat((self.cache.path_device_indices(known.last_device_node), fresh))
            params = InsertParams(
                key=RadixKey(array("q", text[:end])), value=value, prev_prefix_len=start, mamba_value=slot
            )
            if self.cache.insert(params).mamba_exist:
                self.pools.slots.free(slot)
            start = end

    # --- requests -------------------------------------------------------------------------------------------

    def install(self, record: InstallRecord) -> None:
        """A request was announced."""
        assert record.rid not in self.jobs
        req = BoundedReq(
            rid=record.rid,
            origin_input_text="",
            origin_input_ids=array("q", record.token_ids),
            sampling_params=SamplingParams(max_new_tokens=record.max_new_tokens),
            cache_salt=record.cache_salt,
        )
        self.jobs[record.rid] = Job(record, req)

    def take_changes(self) -> None:
        """Follower: what the rounds brought."""
        installed, withdrawn = self.handover.pop_changes()
        for record in installed:
            self.install(record)
        for rid in withdrawn:
            assert not self.jobs.pop(rid).materialised

    # --- commands -------------------------------------------------------------------------------------------

    def apply(self, command: Command) -> Iterator[None]:
        """Apply a command, one section a step."""
        match command:
            case PrefillWave():
                yield from self._prefill(command)
            case DecodeWave():
                with self.cache.mutex:
                    self._decode(command)
            case ResultCommand():
                yield from self._result(command)
            case AbortCommand():
                self._abort(command)
            case FlushCommand():
                with self.cache.mutex:
                    assert self.holds_nothing(), f"rank {self.index} is flushed while it holds something"
                    self.pools.clear()
        self.handover.applied_command(command.seq)

    def holds_nothing(self) -> bool:
        """Whether nothing uses this rank's pools."""
        busy = self.flights or any(job.materialised for job in self.jobs.values())
        return not busy and self.admission.idle()

    def _prefill(self, command: PrefillWave) -> Iterator[None]:
        with self.cache.mutex:
            batch, middle = self._prepare(command)
        self.flights[command.wave] = Flight(tuple(span.rid for span in command.spans), middle)
        self.launched = command.wave
        spans = {span.rid: span for span in command.spans}
        for req in batch.reqs:
            if req.rid in middle:
                yield
                publish(req, spans[req.rid], self.cache)
                self.check_published(req, spans[req.rid])

    def _prepare(self, command: PrefillWave) -> tuple[Batch, frozenset[str]]:
        reqs, middle = [], set()
        for span in command.spans:
            job = self.jobs[span.rid]
            if job.materialised:
                job.req.init_next_round_input()
            else:
                self._materialise(job, span)
            assert job.req.prefix_len == span.start, (
                f"rank {self.index} can resume {span.rid} at {job.req.prefix_len}, not at {span.start}"
            )
            job.req.extend_end = span.start + span.length
            track(job.req, span)
            if job.req.extend_end < job.prompt:
                middle.add(span.rid)
            reqs.append(job.req)
        self.admission.draw_all({span.rid: span.start + span.length for span in command.spans})
        batch = self._batch(reqs)
        batch.prefix_lens = [req.prefix_len for req in reqs]
        batch.extend_lens = [req.extend_len for req in reqs]
        batch.extend_num_tokens = sum(batch.extend_lens)
        batch.seq_lens = torch.tensor([req.extend_end for req in reqs])
        batch.seq_lens_cpu = batch.seq_lens
        alloc_for_extend(batch)
        for req in reqs if self.world.slots is not None else ():
            self._run(req, batch)
        return batch, frozenset(middle)

    def check_published(self, req: Any, span: Span) -> None:
        """The tree has the request up to the position, and the request resumes behind the span."""
        assert req.prefix_len == req.extend_end == span.start + span.length
        found = len(self.cache.path_device_indices(req.last_node))
        if span.publish:
            assert found == span.publish, f"{req.rid} is filed up to {found}, not where rank 0 says: {span}"
        else:
            assert found <= span.start, f"{req.rid} is filed up to {found}, and {span} publishes nothing"

    def _seen(self) -> torch.Tensor:
        """Tokens that the state in each recurrent slot has seen, in every element of the state."""
        states: torch.Tensor = self.pools.rows.mamba_pool.mamba_cache.temporal[0]
        return states

    def seen(self, slot: Any) -> int:
        """Tokens that the state in a slot has seen."""
        return int(self._seen()[slot].flatten()[0])

    def _run(self, req: Any, batch: Batch) -> None:
        """What a forward does to the recurrent states of a request."""
        kv, states = req.kv, self._seen()
        if kv.mamba_cow_src_index is not None:
            states[kv.mamba_pool_idx] = states[kv.mamba_cow_src_index][0]
        elif kv.mamba_needs_clear:
            states[kv.mamba_pool_idx] = 0
        kv.mamba_cow_src_index, kv.mamba_needs_clear = None, False
        found = self.seen(kv.mamba_pool_idx)
        assert found == req.prefix_len, (
            f"rank {self.index} would compute {req.rid} from {req.prefix_len} with the state of {found} tokens"
        )
        if self.world.extra_buffer:
            entry = ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend(batch, req)
            if entry.track_mask:
                plan = hybrid_backend.build_prefill_track_plan(
                    [True],
                    [entry.track_seqlen],
                    [req.extend_len],
                    [req.prefix_len],
                    self.world.step,
                    mamba2=False,
                )
                chunk = next(iter(plan.chunk_indices))
                depth = req.extend_len if chunk < 0 else self.world.step * chunk
                states[kv.mamba_ping_pong_track_buffer[entry.track_position]] = req.prefix_len + depth
        states[kv.mamba_pool_idx] = req.extend_end

    def _materialise(self, job: Job, span: Span) -> None:
        lease = self.admission.take(job.record.rid)
        assert lease.endpoint == span.start, (
            f"rank {self.index} leased {lease.endpoint} of {job.record.rid}, its first span is at {span.start}"
        )
        job.req.wavepp_endpoint = span.start
        job.req.init_next_round_input(self.cache)
        job.req.lock = self.cache.lock(job.req.last_node)
        job.req.wavepp_chain = self.admission.chain(job.record.rid)
        job.materialised = True
        self.admission.hand_over(job.record.rid)

    def _decode(self, command: DecodeWave) -> None:
        reqs = [self.jobs[rid].req for rid in command.rids]
        lengths = [req.kv.kv_committed_len for req in reqs]
        self.admission.draw_all({rid: length + 1 for rid, length in zip(command.rids, lengths, strict=True)})
        page = self.world.page
        fresh = sum(length % page == 0 for length in lengths) * page
        enough = self.pools.tokens.check_decode_capacity(num_tokens=fresh, tree_cache=self.cache)
        assert enough, f"rank {self.index} would have to retract: {fresh} tokens asked"
        batch = self._batch(reqs)
        batch.seq_lens = torch.tensor(lengths)
        batch.seq_lens_cpu = batch.seq_lens
        batch.req_pool_indices = torch.tensor([req.kv.req_pool_idx for req in reqs])
        batch.req_pool_indices_cpu = batch.req_pool_indices
        alloc_for_decode_default(batch, 1)
        for req in reqs if self.world.slots is not None else ():
            self._seen()[req.kv.mamba_pool_idx] += 1
        self.flights[command.wave] = Flight(command.rids, decode=True)
        self.launched = command.wave

    def _batch(self, reqs: list[Any]) -> Batch:
        return Batch(reqs, self.pools.rows, self.cache, self._config)

    def _result(self, command: ResultCommand) -> Iterator[None]:
        flight = self.flights.pop(command.wave)
        ended: list[str] = []
        # SGLang defers what the requests of a batch free until all of them are done.
        self.pools.tokens.free_group_begin()
        for rid, token in zip(flight.rids, command.token_ids, strict=True):
            job = self.jobs[rid]
            if rid in flight.middle:
                continue
            job.req.output_ids.append(token)
            if job.req.to_finish is not None:
                job.req.finished_reason = job.req.to_finish
            elif token == STOP or len(job.req.output_ids) >= job.record.max_new_tokens:
                job.req.finished_reason = FINISH_LENGTH(length=len(job.req.output_ids))
            yield
            if job.req.finished():
                release_kv_cache(job.req, self.cache, checkpoint=True)
                ended.append(rid)
            elif not flight.decode:
                checkpoint_kv_cache(job.req, self.cache)
        yield
        self.pools.tokens.free_group_end()
        for rid in ended:
            yield
            self.admission.end(rid)
            del self.jobs[rid]
        if ended:
            self.handover.capacity_changed()

    def _abort(self, command: AbortCommand) -> None:
        job = self.jobs[command.rid]
        if not command.release:
            job.req.to_finish = FINISH_ABORT()
            return
        if job.materialised:
            job.req.finished_reason = FINISH_ABORT()
            with self.cache.mutex:
                release_kv_cache(job.req, self.cache, checkpoint=False)
                self.admission.end(command.rid)
        else:
            self.admission.end(command.rid)
        del self.jobs[command.rid]
        self.handover.capacity_changed()
