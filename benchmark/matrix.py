"""``python -m benchmark.matrix``: the wide comparison with stock SGLang, one result file per cell, resumable.

Every cell asks its prompts three times (alone, concurrently, again) and compares tokens, logprobs and reuse with stock
at pp-size 1 and the same tp-size. Results stand in ``build/full``; a cell that was right with the present sources is
not run again.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmark.client import Answer, RequestFailed, ask_all, parse_answer, request_body
from benchmark.comparison import differences, implausible_reuse, reuse_differences
from benchmark.configuration import ServerConfig, reference
from benchmark.servers import CHECKOUT, Server, ServerError
from benchmark.workloads import Prompt, Workload, mixed_workload
from sglang_wavepp.cpu.models.configurations import ModelKind

RESULTS = CHECKOUT / "build" / "full"
_SOURCES = ("python/sglang_wavepp", "sgl_patches", "benchmark")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One server configuration and the workload that it is asked."""

    config: ServerConfig
    seed: int
    requests: int
    longest: int
    concurrency: int

    @property
    def name(self) -> str:
        """Unique file name."""
        return f"{self.config.name}-c{self.concurrency}-seed{self.seed}"

    @property
    def workload(self) -> Workload:
        """The prompts."""
        return mixed_workload(self.seed, requests=self.requests, longest=self.longest)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassResult:
    """How one pass over a cell's prompts went; ``wrong`` names every prompt whose answer was not right."""

    name: str
    requests: int
    wrong: tuple[str, ...]
    cached_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """A cell's passes; ``error`` is set when it could not be finished."""

    cell: str
    sources: str
    passes: tuple[PassResult, ...]
    error: str = ""

    @property
    def right(self) -> bool:
        """Whether everything was as it should be."""
        return not self.error and all(not one.wrong for one in self.passes)


def cells() -> tuple[Cell, ...]:
    """The matrix: models, pp 2, 3, 4 and 8, tp 1 and 2, wave budgets 64 to 1,024 (also odd ones), pages 1, 16, 64."""
    dense, hybrid, moe = (
        ServerConfig(model=kind, wavepp=True, trace=True)
        for kind in (ModelKind.DENSE, ModelKind.HYBRID, ModelKind.HYBRID_MOE)
    )
    shapes = [
        (hybrid.with_(chunk=256), 16, 4000),
        (hybrid.with_(chunk=64), 4, 1280),
        (hybrid.with_(chunk=128, wave_tokens=110), 8, 1280),
        (hybrid.with_(pp=4, chunk=192), 8, 2048),
        (hybrid.with_(pp=4, chunk=1024), 16, 4000),
        (hybrid.with_(chunk=256, page=1), 8, 1280),
        (hybrid.with_(chunk=256, wave_tokens=250, page=16), 8, 1280),
        (hybrid.with_(pp=8, chunk=256), 16, 1280),
        (hybrid.with_(pp=3, environment=(("SGLANG_PP_LAYER_PARTITION", "3,1,4"),)), 8, 1280),
        (hybrid.with_(tp=2, chunk=128), 8, 1280),
        (hybrid.with_(chunk=256, options=("--wavepp-admission", "inline")), 8, 1280),
        (dense.with_(chunk=64, page=16), 8, 1280),
        (dense.with_(chunk=128, wave_tokens=110, page=1), 8, 1280),
        (dense.with_(pp=4, chunk=1024), 16, 4000),
        (moe.with_(chunk=256), 8, 2048),
        (moe.with_(pp=4, chunk=128, wave_tokens=110), 16, 1280),
        (hybrid.with_(chunk=256, options=("--wavepp-admission", "two-walk")), 16, 4000),
        (dense.with_(pp=4, chunk=128, page=16, options=("--wavepp-admission", "two-walk")), 16, 1280),
    ]
    return tuple(
        Cell(config=config, seed=1000 + number, requests=40, longest=longest, concurrency=concurrency)
        for number, (config, concurrency, longest) in enumerate(shapes)
    )


def run_cell(cell: Cell, folder: Path = RESULTS, progress: Callable[[str], None] = print) -> CellResult:
    """Run a cell, or return its kept result when that was made from the present sources.

    Servers that don't start and requests that fail end up in ``CellResult.error``.
    """
    kept = _load_result(folder / f"{cell.name}.json")
    sources = source_fingerprint()
    if kept is not None and kept.sources == sources and kept.right:
        progress(f"{cell.name}: kept")
        return kept
    passes: list[PassResult] = []
    error = ""
    try:
        prompts, expected = expected_answers(cell, folder, progress)
        server = Server(cell.config, folder / "logs")
        try:
            progress(f"{cell.name}: start")
            server.start()
            for name, concurrency, flush in (
                ("alone", 1, True),
                ("concurrent", cell.concurrency, True),
                ("again", cell.concurrency, False),
            ):
                if flush:
                    server.client.flush_cache()
                passes.append(_run_pass(cell, server, name, concurrency, prompts, expected))
                progress(f"{cell.name}: {name}: {len(passes[-1].wrong)} of {len(prompts)} wrong")
        finally:
            server.stop()
    except (ServerError, RequestFailed, TimeoutError) as failure:
        error = str(failure)
        progress(f"{cell.name}: {error.splitlines()[0]}")
    result = CellResult(cell=cell.name, sources=sources, passes=tuple(passes), error=error)
    store(folder / f"{cell.name}.json", asdict(result))
    return result


def expected_answers(
    cell: Cell, folder: Path, progress: Callable[[str], None]
) -> tuple[list[Prompt], list[Answer]]:
    """The cell's prompts, second turns behind the first ones, and the reference answers, kept in ``folder``.

    All references that the matrix still needs from the same server are made at once.
    """
    if not _reference_file(cell, folder).exists():
        of = _reference_config(cell)
        missing = [
            one
            for one in dict.fromkeys((cell, *cells()))
            if _reference_config(one) == of and not _reference_file(one, folder).exists()
        ]
        progress(f"references of {of.name} for {len(missing)} cells")
        with Server(of, folder / "logs") as server:
            for one in missing:
                _make_reference(one, server, folder)
                progress(f"reference of {one.name} made")
    stored = json.loads(_reference_file(cell, folder).read_text())
    workload = cell.workload
    firsts = [parse_answer(answer, 0.0) for answer in stored["firsts"]]
    seconds = [parse_answer(answer, 0.0) for answer in stored["seconds"]]
    return [*workload.prompts, *_second_turns(workload, firsts)], firsts + seconds


def store(path: Path, content: Any) -> None:
    """Written in one step, so that an interrupted run leaves no half result."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(json.dumps(content, indent=1))
    draft.replace(path)


def source_fingerprint() -> str:
    """Names the sources that a result depends on."""
    digest = hashlib.sha256()
    for path in sorted(itertools.chain.from_iterable((CHECKOUT / root).rglob("*.py") for root in _SOURCES)):
        if "telemetry" not in path.parts:
            digest.update(path.relative_to(CHECKOUT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def summary(results: Iterable[CellResult]) -> str:
    """A Markdown table, one row per cell."""
    lines = [
        "| cell | requests | alone | concurrent | again | reused tokens (again) |",
        "|---|---|---|---|---|---|",
    ]
    for result in results:
        if result.error:
            lines.append(f"| {result.cell} | - | error: {result.error.splitlines()[0][:80]} | | | |")
            continue
        verdicts = ["same" if not one.wrong else f"{len(one.wrong)} wrong" for one in result.passes]
        requests, reused = result.passes[0].requests, result.passes[-1].cached_tokens
        lines.append(f"| {result.cell} | {requests} | {' | '.join(verdicts)} | {reused:,} |")
    return "\n".join(lines)


def kept_summary(chosen: Sequence[Cell] | None = None) -> str:
    """The table of the results that are kept, of all cells when None."""
    return summary(_kept_results(cells() if chosen is None else chosen))


def main(arguments: list[str] | None = None) -> int:
    """Command line; exit status 1 when a cell is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.matrix", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="cells whose name holds this text")
    parser.add_argument("--list", action="store_true", help="print the cells and end")
    parser.add_argument("--summary", action="store_true", help="print the table of the kept results and end")
    parsed = parser.parse_args(arguments)
    chosen = [cell for cell in cells() if parsed.only in cell.name]
    if parsed.list:
        print("\n".join(cell.name for cell in chosen))
        return 0
    if parsed.summary:
        print(kept_summary(chosen))
        return 0
    results = []
    for number, cell in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {cell.name} ({time.strftime('%H:%M:%S')})", flush=True)
        results.append(run_cell(cell, progress=lambda text: print(f"  {text}", flush=True)))
    (RESULTS / "summary.md").write_text(kept_summary() + "\n")
    print(summary(results))
    return 0 if all(result.right for result in results) else 1


def _run_pass(
    cell: Cell,
    server: Server,
    name: str,
    concurrency: int,
    prompts: Sequence[Prompt],
    expected: Sequence[Answer],
) -> PassResult:
    started = time.monotonic()
    answers = ask_all(server.client, prompts, concurrency, rid_prefix=f"{name}-")
    wrong = differences(prompts, answers, expected) + implausible_reuse(
        prompts, answers, page=cell.config.page
    )
    if server.trace_folder is not None:
        wrong += reuse_differences(answers, server.trace_folder)
    return PassResult(
        name=name,
        requests=len(prompts),
        wrong=tuple(map(str, wrong)),
        cached_tokens=sum(answer.cached_tokens for answer in answers),
        seconds=round(time.monotonic() - started, 1),
    )


def _make_reference(cell: Cell, server: Server, folder: Path) -> None:
    workload = cell.workload

    def ask(prompts: Sequence[Prompt]) -> list[Any]:
        return [server.client.post("/generate", request_body(p.token_ids, p.output_tokens)) for p in prompts]

    firsts = ask(workload.prompts)
    seconds = ask(_second_turns(workload, [parse_answer(answer, 0.0) for answer in firsts]))
    store(_reference_file(cell, folder), {"firsts": firsts, "seconds": seconds})


def _second_turns(workload: Workload, firsts: Sequence[Answer]) -> tuple[Prompt, ...]:
    outputs = {prompt.name: answer.token_ids for prompt, answer in zip(workload.prompts, firsts, strict=True)}
    return workload.second_turns(outputs)


def _reference_config(cell: Cell) -> ServerConfig:
    return reference(cell.config.model, tp=cell.config.tp)


def _reference_file(cell: Cell, folder: Path) -> Path:
    workload = f"seed{cell.seed}-n{cell.requests}-longest{cell.longest}"
    return folder / "references" / f"{_reference_config(cell).name}-{workload}-{_platform_fingerprint()}.json"


def _platform_fingerprint() -> str:
    """Names the sources that stock's own answers depend on: the CPU platform and its models, and the workloads."""
    digest = hashlib.sha256()
    for path in sorted(
        [*(CHECKOUT / "python/sglang_wavepp/cpu").rglob("*.py"), CHECKOUT / "benchmark/workloads.py"]
    ):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _kept_results(chosen: Iterable[Cell]) -> list[CellResult]:
    kept = (_load_result(RESULTS / f"{cell.name}.json") for cell in chosen)
    return [result for result in kept if result is not None]


def _load_result(path: Path) -> CellResult | None:
    if not path.exists():
        return None
    data = json.loads(path.read_text())
    passes = tuple(PassResult(**(one | {"wrong": tuple(one["wrong"])})) for one in data.pop("passes"))
    return CellResult(passes=passes, **data)


if __name__ == "__main__":
    sys.exit(main())
