"""One cell on one server: prime the cache, play the workload, and say what the stages did."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmark.paced import analysis, recorder, run_queue
from benchmark.paced.arms import Arm
from benchmark.paced.cells import PAGE
from benchmark.paced.clients import Clients, Served
from benchmark.paced.device_model import DeviceModel
from benchmark.paced.load import Load
from benchmark.paced.paced_server import PacedConfig, PacedServer
from benchmark.paced.prompts import Script
from benchmark.paced.records import Record, StageRecord
from benchmark.paced.replay import ideal_seconds
from sglang_wavepp.planning.cost import WaveCost
from sglang_wavepp.simulate.bound import bound_tok_s
from sglang_wavepp.simulate.machine import Machine
from sglang_wavepp.simulate.outcome import percentile
from sglang_wavepp.simulate.workload import Phase, Workload

MOST_RUN_QUEUE = 0.05
"""Share of a wave's time that a stage's LOOP may wait for a core: beyond that the machine was measured."""
MOST_FILLED = 0.5
"""Share of a stage's cache that may be in use before a play; beyond that it is emptied, so that nothing is evicted."""
GOOD = 0.8
"""Share of the reusable prefix that a good hit reuses."""
HOTTEST = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all arms of a run share.

    Attributes:
        pp: stages.
        wave_tokens: M, after shortening.
        shorten: prompts and waves are that many times shorter than their names say.
        model: of the device, after shortening, at scale 1.
        scale: of the device; None: each load's own.
        digest: of everything that makes figures comparable.
    """

    pp: int
    wave_tokens: int
    shorten: int
    model: DeviceModel
    scale: float | None
    digest: str

    def config_of(self, arm: Arm, *, pool: int) -> PacedConfig:
        """The server of an arm, with so many cache tokens a stage."""
        return arm.config(
            pp=self.pp, wave_tokens=self.wave_tokens, device=self.model, pool=pool, shorten=self.shorten
        )


def play(
    server: PacedServer,
    script: Script,
    workload: Workload,
    scale: float,
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[list[Served], list[run_queue.Spent], list[run_queue.Spent]]:
    """Bring the prefixes into the cache where they aren't, and play a workload.

    The device keeps its speed meanwhile: planners learn from it.

    Args:
        scale: of the device, while the workload is played.

    Returns:
        The answers, and what the LOOPs' threads and the ranks' processes spent meanwhile.

    Raises:
        RequestFailed: a request wasn't answered.
    """
    url = server.client.base_url
    progress("priming")
    server.set_scale(scale)
    if script.fresh or server.filled + script.added(server.primed) > MOST_FILLED * server.paced.pool:
        server.client.flush_cache()
        server.primed.clear()
        server.filled = 0
    server.filled += script.added(server.primed)
    for length in sorted(script.priming.keys() - server.primed):
        Clients(url, 2).closed_loop(script.priming[length], [Phase(2, len(script.priming[length]))])
        server.primed.add(length)
    pids = server.ranks()
    threads, processes = run_queue.main_threads(pids), run_queue.processes(pids)
    count = len(script.measured)
    clients = Clients(url, max(workload.concurrency, 64), lambda done: progress(f"{done} of {count}"))
    if workload.times:
        served = clients.open_loop(script.measured, workload.times)
    else:
        served = clients.closed_loop(script.measured, workload.phases)
    spent = [after.since(before) for before, after in zip(threads, run_queue.main_threads(pids), strict=True)]
    wholly = [after.since(before) for before, after in zip(processes, run_queue.processes(pids), strict=True)]
    return served, spent, wholly


def measure(
    server: PacedServer,
    load: Load,
    setting: Setting,
    *,
    arm: str,
    repeat: int,
    attempt: int = 0,
    progress: Callable[[str], None] = lambda text: None,
) -> Record:
    """One attempt at one repeat of a load on an arm.

    Raises:
        RequestFailed: a request wasn't answered.
    """
    workload = load.workload(shorten=setting.shorten)
    scale = setting.scale or load.scale
    # No two plays on a server share an id; all arms get the same tokens.
    tag = f"{load.name.replace(':', '.')}-{repeat}-{attempt}"
    script = load.script(shorten=setting.shorten, tag=tag, seed=repeat)
    busy = os.getloadavg()[0]
    served, threads, processes = play(server, script, workload, scale, progress)
    return record_of(
        load,
        workload,
        setting,
        scale=scale,
        arm=arm,
        repeat=repeat,
        busy=busy,
        served=load.settled(served),
        forwards=analysis.of_requests(recorder.read(server.traces), [each.rid for each in served]),
        threads=threads,
        processes=processes,
    )


def record_of(
    load: Load,
    workload: Workload,
    setting: Setting,
    *,
    scale: float,
    arm: str,
    repeat: int,
    busy: float,
    served: Sequence[Served],
    forwards: Sequence[Sequence[recorder.Forward]],
    threads: Sequence[run_queue.Spent],
    processes: Sequence[run_queue.Spent],
) -> Record:
    """The figures of a measurement; rejected when the hosts of the stages had to wait for this machine's cores."""
    stages = [analysis.figures(stage) for stage in forwards]
    waits = [spent.waiting / stage.waves for spent, stage in zip(threads, stages, strict=True)]
    shares = [wait / stage.wave_s for wait, stage in zip(waits, stages, strict=True)]
    worst = max(range(len(stages)), key=shares.__getitem__)
    reason = None
    if shares[worst] > MOST_RUN_QUEUE:
        reason = f"stage {worst} waited for a core {shares[worst]:.0%} of a wave's time"
    seconds = max(each.answered for each in served) - min(each.due for each in served)
    model = setting.model.at_scale(scale)
    plan = None
    if not workload.times:
        rids = [each.rid for each in served]
        plan = workload.tokens / ideal_seconds(forwards[0], rids, workload, model, stages=setting.pp)
    chances = [each for each in served if each.reusable]
    times = sorted(each.seconds for each in served)
    return Record(
        workload=load.kind,
        concurrency=load.concurrency,
        arm=arm,
        repeat=repeat,
        tok_s=workload.tokens / seconds,
        p50_s=percentile(times, 0.5),
        p95_s=percentile(times, 0.95),
        idle=statistics.fmean(stage.idle for stage in stages),
        plan_tok_s=plan,
        bound_tok_s=bound_tok_s(machine(setting, model), workload) if load.bounded else None,
        good_hits=sum(each.cached >= GOOD * each.reusable for each in chances) / len(chances)
        if chances
        else None,
        scale=scale,
        shorten=setting.shorten,
        pp=setting.pp,
        wave_tokens=setting.wave_tokens,
        rejected=reason is not None,
        reason=reason,
        settings=setting.digest,
        load=busy,
        hosts=sum(spent.running for spent in processes) / seconds,
        requests=len(served),
        stages=[
            StageRecord(
                waves=stage.waves,
                tokens=stage.tokens,
                wave_ms=stage.wave_s * 1e3,
                idle=stage.idle,
                late_s=stage.late_s,
                upstream_s=stage.upstream_s,
                host_ms=stage.main_s * 1e3,
                process_ms=stage.process_s * 1e3,
                run_queue_ms=wait * 1e3,
                hot=_hottest(stage),
            )
            for stage, wait in zip(stages, waits, strict=True)
        ],
        model=setting.model,
    )


def machine(setting: Setting, model: DeviceModel) -> Machine:
    """The device as the simulator takes it."""
    factors = (*model.factors, *(1.0 for _ in range(setting.pp)))[: setting.pp]
    return Machine(
        stages=factors,
        cost=WaveCost(
            per_wave=model.per_wave / model.scale,
            per_token=model.per_token / model.scale,
            per_pair=model.per_pair / model.scale,
        ),
        max_tokens=setting.wave_tokens,
        page=PAGE,
    )


def _hottest(stage: analysis.StageFigures) -> dict[str, float]:
    """CPU milliseconds a wave of the functions that take most, by name."""
    by_cpu = sorted(stage.timers.items(), key=lambda item: -item[1][2])[:HOTTEST]
    return {name: round(cpu * 1e3, 3) for name, (_, _, cpu) in by_cpu}
