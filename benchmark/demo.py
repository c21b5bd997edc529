"""``python -m benchmark.demo``: stock SGLang and WavePP serve the same workload on a tiny hybrid model.

Both answer a sample of prompts, which must agree token for token, and then, in turn and several times,
sglang.bench_serving's shared-prefix load. Prints one table and draws WavePP's waves. Exit status: 0; 1 something
failed; 3 the tokens differ; 130 interrupted.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from benchmark.client import Answer, RequestFailed, ask_all
from benchmark.comparison import Difference, differences
from benchmark.configuration import ServerConfig
from benchmark.interleaved import Spread, frozen, in_turn, ratio
from benchmark.models import model_folder
from benchmark.progress import Progress
from benchmark.servers import CHECKOUT, Server, ServerError
from benchmark.serving import BenchError, BenchResult, SharedPrefixLoad, run_bench
from benchmark.workloads import Prompt, mixed_workload
from sglang_wavepp.cpu.models.configurations import ModelKind
from sglang_wavepp.cpu.models.directory import ModelDirectoryError
from sglang_wavepp.telemetry.merge import merge

TOKENS_DIFFER = 3
_SAMPLE_SEED, _SAMPLE_REQUESTS, _SAMPLE_LONGEST = 5, 24, 1280


STOCK, WAVEPP = "stock SGLang", "WavePP"


@dataclass(frozen=True, slots=True)
class Arm:
    """How fast one server was, in every round, and how long it took to start."""

    name: str
    results: Sequence[BenchResult]
    start_seconds: float


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.demo", description=(__doc__ or "").split("\n\n")[1]
    )
    parser.add_argument("--model", choices=[kind.value for kind in ModelKind], default=ModelKind.HYBRID.value)
    parser.add_argument(
        "--pp-size", type=int, default=2, metavar="P", help="pipeline stages, 2 to 8 (default 2)"
    )
    parser.add_argument(
        "--repeats", type=int, default=3, metavar="N", help="rounds per server, in turn (default 3)"
    )
    parser.add_argument("--output", type=Path, default=CHECKOUT / "build" / "demo", metavar="DIR")
    parsed = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _end_as_interrupted)
    try:
        return run(ModelKind(parsed.model), parsed.pp_size, parsed.repeats, parsed.output)
    except KeyboardInterrupt:
        print("\ninterrupted; every server was stopped", file=sys.stderr)
        return 130
    except (ServerError, BenchError, RequestFailed, ModelDirectoryError) as error:
        print(f"\nerror: {error}", file=sys.stderr)
        return 1


def run(kind: ModelKind, pp: int, repeats: int, folder: Path) -> int:
    """The whole demo; the exit status."""
    progress = Progress(steps=6 + 2 * repeats)
    progress.step(f"tiny {kind.value} model")
    path = model_folder(kind)
    progress.done(str(path))
    logs = folder / "servers"
    shutil.rmtree(logs, ignore_errors=True)  # logs and traces of the demo before
    config = ServerConfig(model=kind, pp=pp, wavepp=True, trace=True)
    servers = {STOCK: Server(config.stock(), logs), WAVEPP: Server(config, logs)}
    sample = mixed_workload(
        _SAMPLE_SEED, requests=_SAMPLE_REQUESTS, longest=_SAMPLE_LONGEST, follow_up_share=0
    )
    prompts, load = sample.prompts, SharedPrefixLoad()
    windows: list[tuple[int, int]] = []

    def answer(name: str, server: Server, number: int) -> Sequence[Answer]:
        progress.step(f"{name}: {len(prompts)} sample prompts")
        answers = ask_all(server.client, prompts, 4, lambda done, of: progress.detail(f"{done} of {of}"))
        progress.done()
        return answers

    def bench(name: str, server: Server, number: int) -> BenchResult:
        progress.step(f"{name}: sglang.bench_serving, {load.requests} requests, round {number + 1}")
        server.client.flush_cache()
        begun = time.monotonic_ns()
        stem = f"bench-{'wavepp' if server.config.wavepp else 'stock'}-{number + 1}"
        result = run_bench(server, load, logs, name=stem, progress=progress.detail)
        if name == WAVEPP:
            windows.append((begun, time.monotonic_ns()))
        progress.done(f"{result.input_tokens_per_second:,.0f} input tokens/s")
        return result

    with ExitStack() as running:
        starts = {}
        for name, server in servers.items():
            running.callback(server.stop)
            progress.step(f"{name}: start at pp-size {pp}")
            started = time.monotonic()
            # One that waits would slow down the start of the other.
            with frozen([other for other in servers.values() if other.running]):
                server.start(progress.detail)
            starts[name] = time.monotonic() - started
            progress.done("ready")
        answers = {name: rounds[0] for name, rounds in in_turn(servers, 1, answer).items()}
        results = in_turn(servers, repeats, bench)
    wrong = differences(prompts, answers[WAVEPP], answers[STOCK])

    print()
    print(f"sglang.bench_serving, shared prefixes, {kind.value} model, pp-size {pp}:")
    print(
        f"{load.requests} requests, {load.concurrency} at a time; both servers in turn, {repeats} rounds each"
    )
    print("median (smallest-largest)")
    print()
    print(table([Arm(name, results[name], starts[name]) for name in servers]))
    print()
    print("A tiny model on the CPU: this shows that WavePP serves, not how fast it would be on GPUs.")
    print()
    _report_sample(prompts, wrong)
    progress.step("picture of the waves")
    trace_folder = servers[WAVEPP].trace_folder
    assert trace_folder is not None
    title = f"WavePP, {kind.value} model, pp-size {pp}"
    merged = merge(trace_folder, title, window_ns=windows[0], output=folder)
    progress.done()
    print(f"  {merged.figure}  (a picture)")
    print(f"  {merged.page}  (open in a browser)")
    print(f"  {merged.trace}  (open in https://ui.perfetto.dev)")
    return TOKENS_DIFFER if wrong else 0


def table(arms: Sequence[Arm]) -> str:
    """A row per figure, a column per arm, and how they compare round by round."""

    def row(
        name: str, value: Callable[[BenchResult], float], digits: int = 0, scale: float = 1.0
    ) -> list[str]:
        measured = [[value(result) for result in arm.results] for arm in arms]
        compared = ratio(measured[-1], measured[0]).text(2)
        return [name, *(Spread.of(values).text(digits, scale) for values in measured), compared]

    rows = [
        ["", *(arm.name for arm in arms), f"{arms[-1].name} / {arms[0].name}"],
        row("input tokens/s", lambda result: result.input_tokens_per_second),
        row("output tokens/s", lambda result: result.output_tokens_per_second, 1),
        row("p50 completion, s", lambda result: result.completion_p50_ms, 2, 0.001),
        row("p95 completion, s", lambda result: result.completion_p95_ms, 2, 0.001),
        row("cached prompt tokens", lambda result: result.cached_tokens),
        ["all prompt tokens", *(f"{arm.results[0].input_tokens:,}" for arm in arms), ""],
        ["ready after, s", *(f"{arm.start_seconds:.0f}" for arm in arms), ""],
    ]
    widths = [max(len(cells[column]) for cells in rows) for column in range(len(rows[0]))]

    def line(cells: Sequence[str]) -> str:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        return "  ".join(["  " + cells[0].ljust(widths[0]), *padded[1:]])

    head, *others = map(line, rows)
    return "\n".join([head, "  " + "-" * (len(head) - 2), *others])


def _report_sample(prompts: Sequence[Prompt], wrong: Sequence[Difference]) -> None:
    lengths = [len(prompt.token_ids) for prompt in prompts]
    sample = f"{len(prompts)} sample prompts of {min(lengths)} to {max(lengths)} tokens"
    if not wrong:
        print(f"Same tokens: {sample}, all equal, logprobs too.")
        return
    print(f"TOKENS DIFFER: {len(wrong)} of {sample}:")
    for difference in wrong[:10]:
        print(f"  {difference}")


def _end_as_interrupted(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
