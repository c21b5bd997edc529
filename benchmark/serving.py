"""Runs ``python -m sglang.bench_serving`` against a server and reads its result."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmark.models import model_folder
from benchmark.servers import CHECKOUT, Server, server_environment


class BenchError(RuntimeError):
    """bench_serving failed, took too long, or not every request was answered; the text holds the end of its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefixLoad:
    """bench_serving's generated-shared-prefix workload; lengths in tokens, drawn from 90% to 100% of what is given."""

    groups: int = 4
    prompts_per_group: int = 8
    prefix_tokens: int = 1024
    question_tokens: int = 256
    output_tokens: int = 8
    concurrency: int = 8
    seed: int = 1

    @property
    def requests(self) -> int:
        """How many requests are sent."""
        return self.groups * self.prompts_per_group

    def arguments(self) -> list[str]:
        """The command-line options of bench_serving."""
        return [
            *("--dataset-name", "generated-shared-prefix", "--tokenize-prompt", "--seed", str(self.seed)),
            *("--gsp-num-groups", str(self.groups), "--gsp-prompts-per-group", str(self.prompts_per_group)),
            *(
                "--gsp-system-prompt-len",
                str(self.prefix_tokens),
                "--gsp-question-len",
                str(self.question_tokens),
            ),
            *("--gsp-output-len", str(self.output_tokens), "--gsp-range-ratio", "0.9"),
            *("--num-prompts", str(self.requests), "--max-concurrency", str(self.concurrency)),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedLengthLoad:
    """Prompts of one length that share no prefix, as token ids, in a closed loop. Lengths in tokens."""

    prompt_tokens: int
    requests: int
    concurrency: int
    output_tokens: int = 1
    seed: int = 1

    def arguments(self) -> list[str]:
        """The command-line options of bench_serving."""
        return [
            *("--dataset-name", "random-ids", "--tokenize-prompt", "--seed", str(self.seed)),
            *("--random-input-len", str(self.prompt_tokens), "--random-output-len", str(self.output_tokens)),
            *("--random-range-ratio", "1", "--num-prompts", str(self.requests)),
            *("--max-concurrency", str(self.concurrency)),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """What bench_serving measured. Completion: from sending a request to its last token."""

    completed: int
    seconds: float
    input_tokens_per_second: float
    output_tokens_per_second: float
    completion_p50_ms: float
    completion_p95_ms: float
    input_tokens: int
    cached_tokens: int


def run_bench(
    server: Server,
    load: SharedPrefixLoad | FixedLengthLoad,
    folder: Path,
    *,
    name: str = "bench",
    timeout_seconds: float = 240.0,
    progress: Callable[[str], None] | None = None,
) -> BenchResult:
    """Send the load and return what was measured; output and result are kept in ``folder``, called ``name``.

    Raises:
        BenchError: see there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    result_file, log_file = folder / f"{name}.jsonl", folder / f"{name}.log"
    result_file.unlink(missing_ok=True)
    model = str(model_folder(server.config.model))
    command = [
        *(sys.executable, "-m", "sglang.bench_serving", "--backend", "sglang"),
        *("--base-url", server.client.base_url, "--model", model, "--tokenizer", model),
        *("--disable-tqdm", "--warmup-requests", "0", "--cache-report", "--output-file", str(result_file)),
        *load.arguments(),
    ]
    with log_file.open("w") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=CHECKOUT,
            env=server_environment(server.config, os.environ),
        )
        try:
            _wait(process, timeout_seconds, progress)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode != 0 or not result_file.exists():
        tail = "\n".join(log_file.read_text(errors="replace").splitlines()[-30:])
        killed = f" (stopped after {timeout_seconds:.0f} s)" if process.returncode == -signal.SIGKILL else ""
        raise BenchError(f"bench_serving ended with status {process.returncode}{killed}:\n{tail}")
    result = read_result(result_file.read_text())
    if result.completed != load.requests:
        raise BenchError(f"only {result.completed} of {load.requests} requests were answered, see {log_file}")
    return result


def read_result(text: str) -> BenchResult:
    """The last line of bench_serving's output file."""
    data = json.loads(text.strip().splitlines()[-1])
    return BenchResult(
        completed=int(data["completed"]),
        seconds=float(data["duration"]),
        input_tokens_per_second=float(data["input_throughput"]),
        output_tokens_per_second=float(data["output_throughput"]),
        completion_p50_ms=float(data["median_e2e_latency_ms"]),
        completion_p95_ms=float(data["p95_e2e_latency_ms"]),
        input_tokens=int(data["total_input_tokens"]),
        cached_tokens=int(data["cache_report"]["total_cached_tokens"]),
    )


def _wait(
    process: subprocess.Popen[bytes], timeout_seconds: float, progress: Callable[[str], None] | None
) -> None:
    started = time.monotonic()
    while process.poll() is None and time.monotonic() - started < timeout_seconds:
        time.sleep(0.2)
        if progress is not None:
            progress(f"{time.monotonic() - started:.0f} s")
