"""The same lengths played by ``sglang.bench_serving`` and by our client, on the same servers in turn.

Whoever doubts our client finds here what SGLang's own says. Every server first plays the first cell once, so that its
planner has learnt. Nothing is rejected here, but every play says how long stages waited for a core.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace as changed
from functools import partial
from pathlib import Path

import msgspec

from benchmark.interleaved import frozen, in_turn
from benchmark.paced import recorder, run_queue
from benchmark.paced.arms import Arm
from benchmark.paced.clock import now
from benchmark.paced.load import Load
from benchmark.paced.measure import Setting, play
from benchmark.paced.paced_server import PacedServer, start_another
from benchmark.paced.played import BENCH, OURS, Played, played_table
from benchmark.progress import Progress
from benchmark.servers import Server
from benchmark.serving import FixedLengthLoad, run_bench
from sglang_wavepp.simulate.outcome import percentile

TIMEOUT_SECONDS = 1800.0
Client = Callable[[PacedServer, Load, Setting, int, Callable[[str], None]], Played]
"""Plays a load on a server; gets the repeat, and where to say how far it is."""
WARM_UP = 1000
"""Repeat of the play that nobody measures: no other has its tokens."""


def compare_clients(
    arms: Sequence[Arm], loads: Sequence[Load], setting: Setting, out: Path, *, pool: int, repeats: int
) -> str:
    """Play every load with both clients on every arm; a table for people.

    Args:
        loads: of prompts of one length that reuse nothing.
        out: the JSON, a list of `Played`; logs go beside it.

    Raises:
        BenchError, RequestFailed: a request wasn't answered.
        ServerError: a server didn't start.
    """
    folder = out.parent / "paced-serving"
    progress = Progress(len(arms) * (1 + len(loads) * repeats * 2))
    played: list[Played] = []
    servers: dict[str, PacedServer] = {}
    clients: tuple[tuple[str, Client], ...] = ((OURS, _ours), (BENCH, partial(_bench, folder)))

    def turn(load: Load, name: str, _: Server, repeat: int) -> None:
        server = servers[name]
        for label, client in clients[:: 1 if repeat % 2 == 0 else -1]:
            progress.step(f"{load.name} {name} ({repeat + 1} of {repeats}), {label}")
            begun, before = now(), run_queue.main_threads(server.ranks())
            figures = client(server, load, setting, repeat, progress.detail)
            played.append(msgspec.structs.replace(figures, waited=_waited(server, begun, before)))
            progress.done(f"{played[-1].tok_s:,.0f} tok/s")

    with ExitStack() as ending:
        for arm in arms:
            config = setting.config_of(arm, pool=pool)
            progress.step(f"starting {arm.name}")
            started = list(servers.values())
            with frozen(started):
                server = start_another(config, folder, started, ending, progress.detail)
                _ours(server, loads[0], setting, WARM_UP, progress.detail)
            servers[arm.name] = server
            progress.done()
        for load in loads:
            in_turn(servers, repeats, partial(turn, load))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(msgspec.json.format(msgspec.json.encode(played), indent=1) + b"\n")
    return played_table(played)


def _waited(server: PacedServer, begun: float, before: Sequence[run_queue.Spent]) -> float:
    stages = [[f for f in stage if f.start >= begun] for stage in recorder.read(server.traces)]
    busy = [sum(forward.end - forward.start for forward in stage) for stage in stages]
    waits = [
        after.since(earlier).waiting
        for after, earlier in zip(run_queue.main_threads(server.ranks()), before, strict=True)
    ]
    # A stage that has computed nothing has no share.
    return max((wait / seconds for wait, seconds in zip(waits, busy, strict=True) if seconds), default=0.0)


def _ours(
    server: PacedServer,
    load: Load,
    setting: Setting,
    repeat: int,
    progress: Callable[[str], None],
) -> Played:
    workload, scale = load.workload(shorten=setting.shorten), setting.scale or load.scale
    tag = f"{load.name.replace(':', '.')}-{repeat}-0"
    script = changed(load.script(shorten=setting.shorten, tag=tag, seed=repeat), fresh=True)
    served, _, _ = play(server, script, workload, scale, progress)
    times = sorted(each.seconds for each in served)
    return Played(
        cell=load.name,
        arm=server.paced.name,
        client=OURS,
        repeat=repeat,
        requests=len(served),
        tok_s=workload.tokens / (max(each.answered for each in served) - min(each.due for each in served)),
        p50_s=percentile(times, 0.5),
        p95_s=percentile(times, 0.95),
        cached_tokens=sum(each.cached for each in served),
        scale=scale,
    )


def _bench(
    folder: Path,
    server: PacedServer,
    load: Load,
    setting: Setting,
    repeat: int,
    progress: Callable[[str], None],
) -> Played:
    jobs, scale = load.workload(shorten=setting.shorten).jobs, setting.scale or load.scale
    server.set_scale(scale)
    server.client.flush_cache()
    bench = FixedLengthLoad(
        prompt_tokens=jobs[0].prompt, requests=len(jobs), concurrency=load.concurrency, seed=repeat + 1
    )
    stem = f"{server.paced.name}-{load.name.replace(':', '-c')}-{repeat + 1}"
    found = run_bench(server, bench, folder, name=stem, timeout_seconds=TIMEOUT_SECONDS, progress=progress)
    # With one token to generate, the first is there when the request is complete.
    return Played(
        cell=load.name,
        arm=server.paced.name,
        client=BENCH,
        repeat=repeat,
        requests=found.completed,
        tok_s=found.input_tokens_per_second,
        p50_s=found.completion_p50_ms / 1e3,
        p95_s=found.completion_p95_ms / 1e3,
        cached_tokens=found.cached_tokens,
        scale=scale,
    )
