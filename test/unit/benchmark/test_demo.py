from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmark import matrix
from benchmark.demo import Arm, table
from benchmark.matrix import CellResult, PassResult, cells, summary
from benchmark.progress import Progress
from benchmark.serving import BenchResult, SharedPrefixLoad, read_result

RESULT = BenchResult(
    completed=32,
    seconds=10.0,
    input_tokens_per_second=12345.6,
    output_tokens_per_second=25.04,
    completion_p50_ms=1234.0,
    completion_p95_ms=2500.0,
    input_tokens=40_000,
    cached_tokens=30_000,
)


def test_the_table_lines_up_and_compares_round_by_round() -> None:
    faster = [replace(RESULT, input_tokens_per_second=RESULT.input_tokens_per_second * f) for f in (1, 2, 3)]
    arms = [Arm("stock SGLang", [RESULT] * 3, 31.4), Arm("WavePP", faster, 28.0)]
    head, _, *rows = table(arms).splitlines()
    assert len({len(line) for line in (head, *rows)}) == 1
    assert rows[0].split() == [
        "input",
        "tokens/s",
        "12,346",
        "(12,346-12,346)",
        "24,691",
        "(12,346-37,037)",
        "2.00",
        "(1.00-3.00)",
    ]
    assert rows[2].split()[:5] == ["p50", "completion,", "s", "1.23", "(1.23-1.23)"]


def test_the_last_result_of_bench_serving_is_read() -> None:
    line = {
        "completed": 32,
        "duration": 10.0,
        "input_throughput": 12345.6,
        "output_throughput": 25.04,
        "median_e2e_latency_ms": 1234.0,
        "p95_e2e_latency_ms": 2500.0,
        "total_input_tokens": 40_000,
        "cache_report": {"total_cached_tokens": 30_000},
    }
    assert read_result('{"completed": 0}\n' + json.dumps(line) + "\n") == RESULT


def test_the_load_counts_its_requests() -> None:
    load = SharedPrefixLoad(groups=3, prompts_per_group=5)
    assert load.requests == 15
    assert "--gsp-num-groups 3 --gsp-prompts-per-group 5" in " ".join(load.arguments())


def test_progress_is_plain_lines_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    progress = Progress(2, stream)
    progress.step("one")
    for _ in range(1000):
        progress.detail("busy")
    progress.done()
    progress.step("two")
    assert stream.getvalue() == "[1/2] one ...\n[1/2] one: done (0 s)\n[2/2] two ...\n"


def test_progress_renews_its_line_on_a_terminal() -> None:
    stream = io.StringIO()
    stream.isatty = lambda: True  # type: ignore[method-assign]
    progress = Progress(1, stream)
    progress.step("one")
    progress.detail("1 of 2")
    progress.done()
    assert stream.getvalue().count("\n") == 1 and "\r\x1b[2K[1/1] one: 1 of 2" in stream.getvalue()


def test_progress_says_how_long_a_long_run_will_take(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("benchmark.progress.time.monotonic", lambda: clock[0])
    stream = io.StringIO()
    progress = Progress(4, stream)
    progress.step("one")
    assert progress.left() is None
    clock[0] = 60.0
    progress.done("5 tok/s")
    assert progress.left() == pytest.approx(180.0)
    progress.step("two")
    assert stream.getvalue().splitlines()[1:] == [
        "[1/4, 3 min left] one: 5 tok/s (60 s)",
        "[2/4, 3 min left] two ...",
    ]


def test_the_matrix_is_wide() -> None:
    all_cells = cells()
    assert len({cell.name for cell in all_cells}) == len(all_cells)
    assert sum(cell.requests for cell in all_cells) >= 300
    assert {cell.config.pp for cell in all_cells} >= {2, 4} and {cell.config.page for cell in all_cells} == {
        1,
        16,
        64,
    }
    assert {cell.config.wave_budget for cell in all_cells} >= {64, 110, 192, 1024}
    assert len({cell.config.model for cell in all_cells}) == 3
    assert (
        min(cell.concurrency for cell in all_cells) >= 1 and max(cell.longest for cell in all_cells) == 4000
    )


def test_a_right_result_of_the_present_sources_is_kept(tmp_path: Path) -> None:
    cell = cells()[0]
    one = PassResult(name="alone", requests=40, wrong=(), cached_tokens=10, seconds=1.0)
    result = CellResult(cell=cell.name, sources=matrix.source_fingerprint(), passes=(one,))
    matrix.store(tmp_path / f"{cell.name}.json", matrix.asdict(result))
    said: list[str] = []
    assert matrix.run_cell(cell, tmp_path, said.append) == result
    assert said == [f"{cell.name}: kept"]


def test_the_summary_shows_what_is_wrong() -> None:
    one = PassResult(name="alone", requests=40, wrong=(), cached_tokens=10, seconds=1.0)
    bad = PassResult(
        name="again", requests=40, wrong=("p: token 0 differs",), cached_tokens=1234, seconds=1.0
    )
    text = summary(
        [
            CellResult(cell="a", sources="", passes=(one, one, bad)),
            CellResult(cell="b", sources="", passes=(), error="did not start\nmore"),
        ]
    )
    assert "| a | 40 | same | same | 1 wrong | 1,234 |" in text and "| b | - | error: did not start |" in text
