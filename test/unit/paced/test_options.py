"""The command line: what it chooses, what it refuses, and what figures depend on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmark.paced import __main__ as command
from benchmark.paced import options
from benchmark.paced.arms import arms_named
from benchmark.paced.cells import TEN, cells_named
from benchmark.paced.checks import see_prompts_fit
from benchmark.paced.device_model import DeviceModel
from benchmark.paced.paced_server import CONTEXT
from benchmark.paced.survival import working_set
from sglang_wavepp.simulate.workload import Job

VARIABLES = (
    *("CELLS", "ARMS", "PP", "REPEATS", "ROUNDS", "SCALE", "SHORTEN", "DEVICE", "POOL", "SHARE"),
    *("TOGETHER", "RATES", "REQUESTS", "FILE", "CONCURRENCY", "OUT"),
)


@pytest.fixture(autouse=True)
def _no_variables_and_no_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)

    def started(*_: Any, **__: Any) -> Any:
        raise AssertionError("servers would have been started")

    monkeypatch.setattr(command, "Run", started)
    monkeypatch.setattr(command, "compare_clients", started)


def asked_of(*words: str, **given: str) -> Any:
    return options.parser(given).parse_args(words)


def trace(folder: Path, lines: int = 1, length: int = 512) -> Path:
    path = folder / "trace.jsonl"
    blocks = list(range(-(-length // 512)))
    path.write_text((json.dumps({"input_length": length, "hash_ids": blocks}) + "\n") * lines)
    return path


# --- what is chosen -------------------------------------------------------------------------------------------------


def test_variables_choose_what_runs() -> None:
    asked = asked_of(CELLS="cold65:1", ARMS="stock", PP="2", REPEATS="1", SCALE="0.5")
    assert [load.name for load in options.loads_of(asked)] == ["cold65:1"]
    assert (asked.pp, asked.repeats, asked.scale) == (2, 1, 0.5)
    assert [load.name for load in options.loads_of(asked_of())] == list(TEN)
    assert [load.name for load in options.loads_of(asked_of("scout"))] == ["reuse131:4", "cold131:8"]
    asked = asked_of("scout", CELLS="cold65:1")
    assert [load.name for load in options.loads_of(asked)] == ["cold65:1"]
    asked = asked_of("survival", "--rates", "0.5 1", "--shorten", "4")
    assert [load.name for load in options.loads_of(asked)] == ["survival@0.5", "survival@1"]
    assert options.pool_of(asked) < working_set(4)


def test_what_is_named_twice_is_played_once(tmp_path: Path) -> None:
    assert [arm.name for arm in arms_named("wavepp stock,wavepp stock")] == ["wavepp", "stock"]
    loads = options.loads_of(asked_of(CELLS="reuse131:4 cold65:1 reuse131:4"))
    assert [load.name for load in loads] == ["reuse131:4", "cold65:1"]
    loads = options.loads_of(asked_of("survival", RATES="1 0.5 1.0"))
    assert [load.name for load in loads] == ["survival@1", "survival@0.5"]
    loads = options.loads_of(asked_of("trace", FILE=str(trace(tmp_path)), CONCURRENCY="8,1 8"))
    assert [load.concurrency for load in loads] == [8, 1]


def test_the_cache_of_survival_is_a_share_of_all_documents_in_pages() -> None:
    pools = [
        options.pool_of(asked_of("survival", **given)) for given in ({}, {"SHARE": "0.6"}, {"SHARE": "1.5"})
    ]
    assert pools[0] == pools[1] < working_set(4) < pools[2]
    assert all(pool % 64 == 0 for pool in pools)
    assert pools[2] == pytest.approx(1.5 * working_set(4), rel=0.001)
    assert options.pool_of(asked_of("survival", POOL="640000")) == 640_000


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "name", "text"),
    [
        *(("grid", "pp", text) for text in ("1", "9", "some", "0", "-2", "2.5")),
        *(("grid", "scale", text) for text in ("-1", "nan", "inf", "fast")),
        *(("grid", "rounds", text) for text in ("0", "-1", "x")),
        *(("grid", "shorten", text) for text in ("0", "-4", "3", "512", "x")),
        *(("grid", "pool", text) for text in ("-1", "32768", "x")),
        *(("survival", "rates", text) for text in ("0", "0.5 -1", "x", "nan", "inf", ",")),
        *(("survival", "requests", text) for text in ("0", "-3", "x")),
        *(("survival", "share", text) for text in ("0", "-1", "0.01", "x")),
        *(("grid", "repeats", text) for text in ("-1", "x")),
        *(("trace", "concurrency", text) for text in ("0", "8 0", "-1", "x", ",")),
        *(("grid", "device", text) for text in ("cuda", "Even")),
        *(("grid", "together", text) for text in ("0", "some")),
        *(("grid", "arms", text) for text in ("fast", ",")),
        *(("grid", "cells", text) for text in ("warm:1", "reuse131:0", ",")),
        ("serving", "cells", "cold65:1 reuse131:1"),
        *((what, "file", "/nowhere") for what in options.ARMS),
    ],
)
@pytest.mark.parametrize("variable", [False, True])
def test_what_cannot_be_run_is_one_line_before_anything_is_started_or_forgotten(
    what: str,
    name: str,
    text: str,
    variable: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out.json"
    out.write_text("[]")
    words = [what, "--fresh", "--out", str(out)]
    if what == "trace" and name != "file":
        words += ["--file", str(trace(tmp_path))]
    if variable:
        monkeypatch.setenv(name.upper(), text)
    else:
        words.append(f"--{name}={text}")
    assert command.main(words) == 2
    said = capsys.readouterr()
    assert said.err.startswith("error: ") and said.err.count("\n") == 1 and not said.out
    assert out.read_text() == "[]"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trace"], "say which: FILE=trace.jsonl"),
        (["survival", "--share", "1", "--pool", "640000"], "give one of them"),
        (["--shorten", "64", "--arms", "stock-m8"], "stock-m8 divides M of 256 tokens"),
        (["--shorten", "3"], "M of 16,384 tokens divided by 3"),
        (["--pool", "32768", "--cells", "cold131:1"], "prompts of 32,768: they need 32,896"),
        (["--device", "cuda"], "there are even light uneven"),
        (["--pp", "1"], "'1' is no whole number from 2 to 8"),
        (["everything"], "invalid choice"),
        (["--fast"], "unrecognized arguments: --fast"),
    ],
)
def test_the_line_says_what_is_wrong(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(words) == 2
    line = capsys.readouterr().err
    assert line.startswith("error: ") and line.count("\n") == 1 and said in line


def test_figures_of_another_version_are_named_and_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    out.write_text('[{"arm": "stock"}]')
    assert command.main(["--out", str(out)]) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"error: {out} ") and line.endswith("; --fresh forgets it\n")
    assert out.exists()


class Began(Exception):
    """A run would measure now."""


@pytest.mark.parametrize("what", ["grid", "serving"])
def test_what_was_measured_is_forgotten_when_everything_else_is_right(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(*_: Any, **__: Any) -> Any:
        raise Began

    monkeypatch.setattr(command, "Run", begin)
    monkeypatch.setattr(command, "compare_clients", begin)
    out = tmp_path / "out.json"
    out.write_text('[{"arm": "stock"}]')
    with pytest.raises(Began):
        command.main([what, "--fresh", "--out", str(out)])
    assert not out.exists()


# --- what figures depend on -----------------------------------------------------------------------------------------


def digest(*words: str) -> str:
    return options.setting_of(asked_of(*words)).digest


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("PRESETS", {"even": DeviceModel(per_wave=1.0)}),
        ("WAVE_TOKENS", 8192),
        ("POOL", 1 << 20),
    ],
)
def test_figures_depend_on_what_the_options_were_made_into(
    name: str, other: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = digest()
    assert digest() == before
    monkeypatch.setattr(options, name, other)
    assert digest() != before


@pytest.mark.parametrize(
    ("what", "option", "text", "counts"),
    [
        ("grid", "scale", "0.5", True),
        ("grid", "pp", "4", True),
        ("grid", "shorten", "2", True),
        ("grid", "device", "light", True),
        *((what, "rounds", "3", True) for what in ("grid", "scout", "ladder", "serving")),
        *((what, "requests", "9", False) for what in ("grid", "scout", "ladder", "serving")),
        *((what, "rounds", "3", False) for what in ("survival", "trace")),
        *((what, "requests", "9", True) for what in ("survival", "trace")),
        ("survival", "share", "1.5", True),
        *((what, "rates", "0.5", False) for what in options.ARMS),
        *((what, "repeats", "5", False) for what in options.ARMS),
    ],
)
def test_figures_depend_on_what_was_asked_for_where_it_is_used(
    what: str, option: str, text: str, counts: bool, tmp_path: Path
) -> None:
    words = [what, *(["--file", str(trace(tmp_path))] if what == "trace" else [])]
    assert (digest(*words, f"--{option}", text) != digest(*words)) is counts


def test_figures_of_a_trace_depend_on_what_the_file_holds(tmp_path: Path) -> None:
    digests = [digest("trace", "--file", str(trace(tmp_path, lines=lines))) for lines in (1, 2)]
    assert digests[0] != digests[1]
    # Where it isn't played it doesn't count.
    assert digest("--file", str(trace(tmp_path))) == digest()


def test_a_prompt_that_is_longer_than_the_servers_context_is_refused() -> None:
    """However large the cache is: a trace may hold such a one."""
    (cell,) = cells_named("cold262:1")
    see_prompts_fit([cell], shorten=1, pool=1 << 30)
    whole = cell.workload()
    long = replace(whole, jobs=(Job(cached=0, prompt=CONTEXT),) * len(whole.jobs))
    with pytest.raises(ValueError, match="don't fit into the servers' context of 600,000"):
        see_prompts_fit([SimpleNamespace(workload=lambda shorten: long)], shorten=1, pool=1 << 30)  # type: ignore[list-item]
