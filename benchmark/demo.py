"""``python -m benchmark.demo``: stock SGLang and WavePP serve the same workload on a tiny hybrid model.

Both answer a sample of prompts, which must agree token for token, and then sglang.bench_serving's shared-prefix load.
Prints one table and draws WavePP's waves. Exit status: 0; 1 something failed; 3 the tokens differ; 130 interrupted.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from benchmark.client import Answer, RequestFailed, ask_all
from benchmark.comparison import Difference, differences
from benchmark.configuration import ServerConfig
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


@dataclass(frozen=True, slots=True)
class Arm:
    """What one server answered and how fast."""

    name: str
    answers: Sequence[Answer]
    result: BenchResult
    start_seconds: float
    window_ns: tuple[int, int]
    trace_folder: Path | None


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.demo", description=(__doc__ or "").split("\n\n")[1]
    )
    parser.add_argument("--model", choices=[kind.value for kind in ModelKind], default=ModelKind.HYBRID.value)
    parser.add_argument(
        "--pp-size", type=int, default=2, metavar="P", help="pipeline stages, 2 to 8 (default 2)"
    )
    parser.add_argument("--output", type=Path, default=CHECKOUT / "build" / "demo", metavar="DIR")
    parsed = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _end_as_interrupted)
    try:
        return run(ModelKind(parsed.model), parsed.pp_size, parsed.output)
    except KeyboardInterrupt:
        print("\ninterrupted; every server was stopped", file=sys.stderr)
        return 130
    except (ServerError, BenchError, RequestFailed, ModelDirectoryError) as error:
        print(f"\nerror: {error}", file=sys.stderr)
        return 1


def run(kind: ModelKind, pp: int, folder: Path) -> int:
    """The whole demo; the exit status."""
    progress = Progress(steps=8)
    progress.step(f"tiny {kind.value} model")
    path = model_folder(kind)
    progress.done(str(path))
    servers = folder / "servers"
    shutil.rmtree(servers, ignore_errors=True)  # logs and traces of the demo before
    wavepp = ServerConfig(model=kind, pp=pp, wavepp=True, trace=True)
    sample = mixed_workload(
        _SAMPLE_SEED, requests=_SAMPLE_REQUESTS, longest=_SAMPLE_LONGEST, follow_up_share=0
    )
    prompts, load = sample.prompts, SharedPrefixLoad()
    stock = _serve("stock SGLang", wavepp.stock(), prompts, load, servers, progress)
    ours = _serve("WavePP", wavepp, prompts, load, servers, progress)
    wrong = differences(prompts, ours.answers, stock.answers)

    print()
    print(f"sglang.bench_serving, shared prefixes, {kind.value} model, pp-size {pp}:")
    print(f"{load.requests} requests, {load.concurrency} at a time")
    print()
    print(table([stock, ours]))
    print()
    print("A tiny model on the CPU: this shows that WavePP serves, not how fast it would be on GPUs.")
    print()
    _report_sample(prompts, wrong)
    progress.step("picture of the waves")
    assert ours.trace_folder is not None
    title = f"WavePP, {kind.value} model, pp-size {pp}"
    trace_path, html_path = merge(ours.trace_folder, title, window_ns=ours.window_ns, output=folder)
    progress.done()
    print(f"  {html_path}  (open in a browser)")
    print(f"  {trace_path}  (open in https://ui.perfetto.dev)")
    return TOKENS_DIFFER if wrong else 0


def table(arms: Sequence[Arm]) -> str:
    """One row per arm."""
    head = [
        "",
        "input tok/s",
        "output tok/s",
        "p50 completion",
        "p95 completion",
        "cached tokens",
        "ready after",
    ]
    rows = [
        [
            arm.name,
            f"{arm.result.input_tokens_per_second:,.0f}",
            f"{arm.result.output_tokens_per_second:,.1f}",
            f"{arm.result.completion_p50_ms / 1000:.2f} s",
            f"{arm.result.completion_p95_ms / 1000:.2f} s",
            f"{arm.result.cached_tokens:,} of {arm.result.input_tokens:,}",
            f"{arm.start_seconds:.0f} s",
        ]
        for arm in arms
    ]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        return "  ".join(["  " + cells[0].ljust(widths[0]), *padded[1:]])

    return "\n".join([line(head), "  " + "-" * (len(line(head)) - 2), *map(line, rows)])


def _serve(
    name: str,
    config: ServerConfig,
    prompts: Sequence[Prompt],
    load: SharedPrefixLoad,
    folder: Path,
    progress: Progress,
) -> Arm:
    server = Server(config, folder)
    try:
        progress.step(f"{name}: start at pp-size {config.pp}")
        started = time.monotonic()
        server.start(progress.detail)
        start_seconds = time.monotonic() - started
        progress.done("ready")
        progress.step(f"{name}: {len(prompts)} sample prompts")
        answers = ask_all(server.client, prompts, 4, lambda done, of: progress.detail(f"{done} of {of}"))
        progress.done()
        server.client.flush_cache()
        progress.step(f"{name}: sglang.bench_serving, {load.requests} requests")
        begun = time.monotonic_ns()
        result = run_bench(server, load, folder, progress=progress.detail)
        window = (begun, time.monotonic_ns())
        progress.done(f"{result.input_tokens_per_second:,.0f} input tokens/s")
    finally:
        server.stop()
    return Arm(name, answers, result, start_seconds, window, server.trace_folder)


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
