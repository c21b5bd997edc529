"""Puts one rank's executor together from SGLang's scheduler: pools, links, admission, LOOP."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psutil
import sglang
import torch
from sglang.srt.environ import envs
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.mem_cache.allocation_sizing import get_mamba_tracking_slots
from sglang.srt.runtime_context import get_exec, get_observability, get_parallel, mamba_checkpoint_grid

from sglang_wavepp import __version__
from sglang_wavepp.admission.hint import HintProbe
from sglang_wavepp.admission.leader import RoundsLeader
from sglang_wavepp.admission.member import RoundsMember
from sglang_wavepp.admission.messages import InstallRecord
from sglang_wavepp.admission.pools import PoolLimits, smallest
from sglang_wavepp.cache.cache_faults import CacheFaults, shrink_pool
from sglang_wavepp.cache.guarded_cache import GuardedRadixCache
from sglang_wavepp.cache.lease import LeaseAdmission
from sglang_wavepp.cache.radix_tree import IndexedRadixTree, RadixTree
from sglang_wavepp.cache.two_walk import TwoWalkAdmission
from sglang_wavepp.executor.admission_port import AdmissionPort, FollowingInline, LeadingInline, OffLoop
from sglang_wavepp.executor.follower import Follower
from sglang_wavepp.executor.grammar_faults import slow_down
from sglang_wavepp.executor.installer import Installer
from sglang_wavepp.executor.keys import key_of
from sglang_wavepp.executor.lane import Lane
from sglang_wavepp.executor.leader import Leader
from sglang_wavepp.executor.observer import AdmissionObserver
from sglang_wavepp.executor.readings import readings
from sglang_wavepp.executor.reporter import InlineReporter, Reporter, ThreadedReporter
from sglang_wavepp.executor.slots import Ring
from sglang_wavepp.executor.stage import Stage
from sglang_wavepp.executor.wave_clock import stopwatches
from sglang_wavepp.executor.wave_costs import WaveCosts
from sglang_wavepp.plane.messages import RankId
from sglang_wavepp.plane.request_record import has_grammar, record_from
from sglang_wavepp.plane.wake import Wake
from sglang_wavepp.planning.grid import SpanGrid
from sglang_wavepp.planning.mpu import MpuPlanner
from sglang_wavepp.planning.publisher import Publisher
from sglang_wavepp.planning.snapshots import PublishRule
from sglang_wavepp.planning.static import StaticPlanner
from sglang_wavepp.rank.admission_thread import (
    SWITCH_INTERVAL_S,
    AdmissionThread,
    InlineAdmission,
    LeaderLink,
    MemberLink,
    RoundsTimeout,
)
from sglang_wavepp.rank.handover import Handover
from sglang_wavepp.rank.heartbeat import Heartbeat
from sglang_wavepp.rank.rounds import FollowingRounds, LeadingRounds
from sglang_wavepp.rank.startup import DeviceGroup, HandshakeInfo, Links, PoolSizes, connect
from sglang_wavepp.settings.errors import SettingsError
from sglang_wavepp.settings.flags import WaveSettings
from sglang_wavepp.settings.of import settings_of
from sglang_wavepp.telemetry.metrics import Exporter, Readings
from sglang_wavepp.telemetry.trace import NullTimeline, Timeline

logger = logging.getLogger(__name__)

T = TypeVar("T")

WAVES_AHEAD = 4
"""Full waves of admitted requests that may wait to be planned: fewer hide short requests behind long ones from the
planner, more decide early and pin what others could use. A request counts as one at most."""
ROTATING_SLOTS = 2
"""Recurrent slots that a request's checkpoints rotate through: the one that the tree keeps and the one being filled."""
DEATH_GRACE_S = 3.0
"""How long the launcher has to end the server before a rank ends itself."""


@dataclass(slots=True)
class Executor:
    """One rank's executor and everything that lives as long as it does."""

    rank: RankId
    stage: Stage
    loop: Leader | Follower
    links: Links
    thread: AdmissionThread | None
    heartbeat: Heartbeat
    _closed: bool = False

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return isinstance(self.loop, Leader)

    @property
    def leader(self) -> Leader:
        """Rank 0's loop.

        Raises:
            RuntimeError: this isn't rank 0.
        """
        if not isinstance(self.loop, Leader):
            raise RuntimeError(f"{self.rank.name} decides nothing")
        return self.loop

    def run(self) -> None:
        """Serve until the server ends."""
        self.heartbeat.start()
        if self.thread is not None:
            sys.setswitchinterval(SWITCH_INTERVAL_S)
            self.thread.start()
        logger.info("WavePP serves on %s", self.rank.name)
        self.loop.run()

    def installed(self, req: Any) -> None:
        """A follower has built a request from its record.

        Raises:
            RuntimeError: SGLang refuses here what rank 0 has accepted.
        """
        refused = req.to_finish or req.finished_reason
        if refused is not None:
            raise RuntimeError(f"{self.rank.name} can't build request {req.rid}: {refused.to_json()}")
        self.stage.entries.add(req)

    def batches(self) -> list[Any]:
        """Every batch with requests that are in flight or decode."""
        flying = [flight.batch for flight in self.stage.ring.flights()]
        return flying + [part for lane in self.stage.lanes for part in (lane.batch, *lane.joining)]

    def decoding(self) -> list[Any]:
        """Requests of all lanes that still want tokens."""
        return [req for lane in self.stage.lanes for req in lane.requests()]

    def is_idle(self) -> bool:
        """Whether nothing is in admission, in flight or decoding, as far as this rank knows."""
        return self.loop.is_idle()

    def close(self, *, failed: bool = False) -> None:
        """End the threads and close the links; may be called twice.

        Args:
            failed: this rank ends although the server should go on, so the others must take it for dead.
        """
        if self._closed:
            return
        self._closed = True
        self.heartbeat.close(farewell=not failed)
        if self.thread is not None:
            self.thread.stop(timeout=5.0)
        if self.stage.reporter is not None:
            self.stage.reporter.close()
        self.links.close()
        self.stage.timeline.close()


def assemble(scheduler: Any, fingerprints: Mapping[str, str]) -> Executor:
    """Build this rank's executor. All ranks call it together: it contains the start-up handshake.

    Raises:
        HandshakeError: the ranks don't fit together.
        SettingsError: a setting doesn't fit the model.
    """
    settings = settings_of(scheduler.server_args)
    if settings is None:
        raise RuntimeError("this server was started without --wavepp")
    parallel = get_parallel()
    rank = RankId.of(pp_rank=parallel.pp_rank, tp_rank=parallel.tp_rank, tp_size=parallel.tp_size)
    cache = scheduler.tree_cache
    if not isinstance(cache, GuardedRadixCache):
        raise RuntimeError(f"--wavepp needs its own cache, but this server has {type(cache).__name__}")
    grid = SpanGrid(page=scheduler.page_size, recurrent=_recurrent_grid(scheduler))
    shrink_pool(scheduler, rank.index)
    slow_down(scheduler.grammar_manager, rank.index)
    limits = pool_limits(scheduler)
    wave_tokens = settings.wave_tokens(scheduler.chunked_prefill_size)
    planner = _planner(settings, scheduler.chunked_prefill_size, grid, limits, parallel.pp_size)
    links = connect(
        _handshake(scheduler, settings, rank, limits, fingerprints),
        group=scheduler.world_group.cpu_group,
        dist_init_addr=scheduler.server_args.dist_init_addr,
        device_group=_device_group(scheduler),
    )
    everywhere = smallest(_limits_of(info, like=limits) for info in links.infos)
    timeline = NullTimeline() if settings.trace is None else Timeline(Path(settings.trace), rank)
    fail = Fatal(rank)
    handover = Handover(wave_wake=Wake(), loop_wake=Wake(), counted=wave_tokens)
    # A quarter of the pool at most: where waves are large against it, two rings of them would leave room for one
    # request at a time.
    headroom = min(2 * parallel.pp_size * wave_tokens, limits.usable_tokens // 4)
    publisher = Publisher(
        publish_rule(
            settings, scheduler.chunked_prefill_size, grid, hybrid=limits.recurrent_slots is not None
        ),
        block=settings.hint_block_size,
    )
    hashed = publisher.announce if rank.index == 0 else None
    admission = _admission(settings, cache, grid, limits, headroom=headroom, hashed=hashed)
    rounds = _rounds(
        rank, links, admission, handover, everywhere, timeline, settings, planner, wave_tokens, grid
    )
    thread, port = _drive(rounds, links, handover, settings, rank, fail)
    observer = _observer(scheduler, rank, partial(readings, admission, rounds, planner), timeline)
    rounds.on_round = observer.after_round
    costs = wave_costs(settings, planner) if rank.index == 0 else None
    stage = Stage(
        scheduler=scheduler,
        rank=rank,
        leases=admission,
        mutex=cache.mutex,
        grid=grid,
        ring=Ring(2 * parallel.pp_size),
        lanes=[Lane() for _ in range(parallel.pp_size)],
        activations=links.activation_sender,
        reporter=_reporter(scheduler, links, fail),
        timeline=timeline,
        release=handover.capacity_changed,
        is_last_stage=scheduler.pp_group.is_last_rank,
        faults=CacheFaults.of(cache, rank.index),
        when_idle=observer.when_idle,
        stopwatch=None if costs is None else stopwatches(scheduler.device_module),
    )
    loop: Leader | Follower
    if rank.index == 0:
        loop = Leader(
            scheduler=scheduler,
            stage=stage,
            commands=_present(links.command_leader),
            results=_present(links.result_receiver),
            handover=handover,
            admission=port,
            planner=planner,
            costs=costs,
            publisher=publisher,
            limits=everywhere,
            record=_record,
            timeouts=envs.SGLANG_REQ_WAITING_TIMEOUT.get() > 0 or envs.SGLANG_REQ_RUNNING_TIMEOUT.get() > 0,
        )
    else:
        loop = Follower(
            scheduler=scheduler,
            stage=stage,
            commands=_present(links.command_member),
            activations=links.activation_receiver,
            handover=handover,
            admission=port,
            installer=Installer(scheduler, stage, handover),
            drop=lambda: bool(scheduler.flush_cache()),
        )
    heartbeat = Heartbeat(links.heartbeat, names=links.watched, timeout=settings.rounds_timeout, on_dead=fail)
    return Executor(rank=rank, stage=stage, loop=loop, links=links, thread=thread, heartbeat=heartbeat)


def _admission(
    settings: WaveSettings,
    cache: GuardedRadixCache,
    grid: SpanGrid,
    limits: PoolLimits,
    *,
    headroom: int,
    hashed: Callable[[str, Sequence[int]], None] | None,
) -> TwoWalkAdmission | LeaseAdmission:
    if settings.admission != "lease":
        return TwoWalkAdmission(tree=RadixTree(cache, grid=grid.step), limits=limits)
    tree = IndexedRadixTree(cache, grid=grid.step)
    block = settings.hint_block_size
    probe = HintProbe(tree.core.index, block=block, step=math.lcm(block, grid.step))
    lease = LeaseAdmission(
        tree=tree,
        limits=limits,
        probe=probe,
        block=block,
        headroom=headroom,
        wanted=tree.core.wanted,
        hashed=hashed,
    )
    tree.core.holder = lease.escrows
    return lease


def _observer(
    scheduler: Any, rank: RankId, read: Callable[[], Readings], timeline: Timeline
) -> AdmissionObserver:
    exporter = None
    if get_observability().enable_metrics:
        labels = {
            "model_name": str(scheduler.server_args.served_model_name),
            "pp_rank": str(rank.pp_rank),
            "tp_rank": str(rank.tp_rank),
        }
        exporter = Exporter(labels, read)
    return AdmissionObserver(read, exporter, timeline)


def _planner(
    settings: WaveSettings, chunked_prefill_size: int | None, grid: SpanGrid, limits: PoolLimits, stages: int
) -> StaticPlanner | MpuPlanner:
    budget = settings.wave_tokens(chunked_prefill_size)
    try:
        static = StaticPlanner(budget=budget, grid=grid, max_requests=limits.rows)
    except ValueError as error:
        raise SettingsError(
            f"{error}; set --wavepp-max-wave-tokens or --chunked-prefill-size accordingly"
        ) from error
    if settings.planner == "static":
        return static
    smallest = settings.smallest_wave_tokens(budget, grid.step)
    if smallest > budget:
        raise SettingsError(
            f"--wavepp-min-wave-tokens {smallest} is more than a wave of {budget} tokens; set it to less, or "
            "--wavepp-max-wave-tokens to more"
        )
    return MpuPlanner(
        max_tokens=budget,
        min_tokens=smallest,
        grid=grid,
        max_requests=limits.rows,
        stages=stages,
        fills=settings.pipeline_fills,
        progress_deadline=settings.progress_deadline_ms / 1e3,
    )


def wave_costs(settings: WaveSettings, planner: StaticPlanner | MpuPlanner) -> WaveCosts | None:
    """Measures what waves cost for a planner that sizes them by time; None for one that looks at tokens alone."""
    if settings.planner != "mpu":
        return None
    assert isinstance(planner, MpuPlanner)
    return WaveCosts(planner)


def publish_rule(
    settings: WaveSettings, chunked_prefill_size: int | None, grid: SpanGrid, *, hybrid: bool
) -> PublishRule:
    """Which positions of a prompt are published while it is computed."""
    period = settings.snapshot_period or settings.wave_tokens(chunked_prefill_size)
    if not hybrid:
        # A position costs no slot, but the LOOP walks the whole prompt in its tree for it, through a node for each
        # position before: with small waves that would be most of its time.
        return PublishRule.dense(grid=grid.step, period=period)
    # Without tracking there is only the running state, which is at the span's end.
    return PublishRule.sparse(grid=grid.step, period=period, inside=grid.recurrent > 1)


def pool_limits(scheduler: Any) -> PoolLimits:
    """Sizes of this rank's pools, which are empty now."""
    rows = scheduler.req_to_token_pool
    slots: int | None = None
    each = 0
    if scheduler.tree_cache.supports_mamba():
        slots = int(rows.mamba_allocator.available_size())
        mamba = get_exec().mamba
        tracking = get_mamba_tracking_slots(
            extra_buffer=mamba.enable_mamba_extra_buffer,
            overlap=scheduler.enable_overlap,
            lazy=mamba.enable_mamba_extra_buffer_lazy,
        )
        each = 1 + tracking + ROTATING_SLOTS
    return PoolLimits(
        tokens=int(scheduler.token_to_kv_pool_allocator.available_size()),
        page_size=scheduler.page_size,
        rows=min(int(rows.available_size()), scheduler.max_running_requests),
        context=scheduler.model_config.context_len,
        recurrent_slots=slots,
        slots_per_request=each,
    )


class Fatal:
    """Ends the server: says why, asks the launcher to end all processes, and ends this one if it doesn't."""

    def __init__(self, rank: RankId) -> None:
        self._rank = rank
        self._once = threading.Lock()

    def __call__(self, reason: BaseException | str) -> None:
        """End the server. Called from any thread; returns."""
        if not self._once.acquire(blocking=False):
            return
        if isinstance(reason, BaseException) and not isinstance(reason, RoundsTimeout):
            logger.critical("WavePP ends the server: %s failed", self._rank.name, exc_info=reason)
        else:
            logger.critical("WavePP ends the server: %s", reason)
        parent = psutil.Process().parent()
        if parent is not None:
            parent.send_signal(signal.SIGQUIT)
        last_resort = threading.Timer(DEATH_GRACE_S, os._exit, args=(1,))
        last_resort.daemon = True
        last_resort.start()


def _recurrent_grid(scheduler: Any) -> int:
    if not scheduler.tree_cache.supports_mamba() or not get_exec().mamba.enable_mamba_extra_buffer:
        return 1
    return int(mamba_checkpoint_grid(scheduler.tree_cache.page_size))


def _handshake(
    scheduler: Any, settings: WaveSettings, rank: RankId, limits: PoolLimits, fingerprints: Mapping[str, str]
) -> HandshakeInfo:
    parallel = get_parallel()
    components = ("FULL", "MAMBA") if scheduler.tree_cache.supports_mamba() else ("FULL",)
    return HandshakeInfo(
        rank=rank,
        pp_size=parallel.pp_size,
        tp_size=parallel.tp_size,
        version=__version__,
        sglang_version=sglang.__version__,
        settings=settings.as_flags(),
        page_size=scheduler.page_size,
        components=components,
        hook_fingerprints=dict(fingerprints),
        pools=PoolSizes(tokens=limits.tokens, recurrent_slots=limits.recurrent_slots or 0, rows=limits.rows),
    )


def _device_group(scheduler: Any) -> DeviceGroup | None:
    """How activations travel from device to device, None when they lie on the CPU."""
    device = torch.device(scheduler.device)
    if device.type == "cpu":
        return None
    return DeviceGroup(
        group=scheduler.pp_group.device_group, device=device, forward_stream=scheduler.forward_stream
    )


def _limits_of(info: HandshakeInfo, *, like: PoolLimits) -> PoolLimits:
    """Pool limits of another rank, which differ from this rank's in the sizes only."""
    slots = None if like.recurrent_slots is None else info.pools.recurrent_slots
    return replace(like, tokens=info.pools.tokens, rows=info.pools.rows, recurrent_slots=slots)


def _present(end: T | None) -> T:
    """A link's end that this rank must have."""
    if end is None:
        raise RuntimeError("this rank lacks an end of a link")
    return end


def _rounds(
    rank: RankId,
    links: Links,
    admission: TwoWalkAdmission | LeaseAdmission,
    handover: Handover,
    everywhere: PoolLimits,
    timeline: Timeline,
    settings: WaveSettings,
    planner: StaticPlanner | MpuPlanner,
    wave_tokens: int,
    grid: SpanGrid,
) -> LeadingRounds | FollowingRounds:
    if rank.index:
        member = RoundsMember(rank=rank.index, cache=admission, takes_long=has_grammar)
        sender = _present(links.rounds_member)
        return FollowingRounds(member=member, sender=sender, handover=handover, timeline=timeline)
    member = RoundsMember(rank=0, cache=admission)  # announces a request when its grammar is compiled here
    ranks = len(links.infos)
    stages = get_parallel().pp_size
    least_gain = math.lcm(settings.hint_block_size, grid.step)

    def patience() -> int:
        # A request that is held back starts when the other's wave has passed all stages. Where nothing else is left
        # to plan, those stages would idle, so what is gained must be worth more.
        return least_gain if handover.unplanned_tokens else max(least_gain, (stages - 1) * planner.budget)

    return LeadingRounds(
        leader=RoundsLeader(
            ranks=ranks,
            max_batch=everywhere.rows,
            chain=admission.chain,
            block=settings.hint_block_size,
            counted=wave_tokens,
        ),
        member=member,
        sender=_present(links.rounds_leader),
        handover=handover,
        ranks=ranks,
        free_rows=lambda: admission.free_rows,
        timeline=timeline,
        ahead=WAVES_AHEAD * wave_tokens,
        patience=patience,
        looks_ahead=4 * stages * wave_tokens,
    )


def _drive(
    rounds: LeadingRounds | FollowingRounds,
    links: Links,
    handover: Handover,
    settings: WaveSettings,
    rank: RankId,
    fail: Fatal,
) -> tuple[AdmissionThread | None, AdmissionPort]:
    link: LeaderLink | MemberLink
    link = _present(links.rounds_member) if rank.index else _present(links.rounds_leader)
    names = {info.rank.index: info.label for info in links.infos}
    if settings.admission != "inline":
        thread = AdmissionThread(
            rounds=rounds,
            link=link,
            handover=handover,
            on_failure=fail,
            timeout=settings.rounds_timeout,
            names=names,
        )
        return thread, OffLoop()
    inline = InlineAdmission(rounds=rounds, link=link, timeout=settings.rounds_timeout, names=names)
    return None, FollowingInline(inline) if rank.index else LeadingInline(inline)


def _reporter(scheduler: Any, links: Links, fail: Fatal) -> Reporter | None:
    if links.result_sender is None:
        return None
    if str(scheduler.device).startswith("cpu"):
        return InlineReporter(links.result_sender)
    return ThreadedReporter(links.result_sender, fail)


def _record(req: Req) -> InstallRecord:
    record = record_from(req.wavepp_source, req)
    return msgspec.structs.replace(record, rid=key_of(req))
