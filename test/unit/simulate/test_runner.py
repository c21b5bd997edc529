import json
from pathlib import Path

import pytest

from benchmark import sim
from benchmark.sim import main
from sglang_wavepp.simulate import command_line
from sglang_wavepp.simulate.arms import ARMS, DEFAULT_CHUNK


def test_records_charts_and_timelines_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cells", "reuse131:4 cold65:1", "--pp", "2 3", "--out", str(tmp_path)]) == 0
    assert "geometric mean of 2 cells" in capsys.readouterr().out
    for pp in (2, 3):
        records = json.loads((tmp_path / f"sim-pp{pp}-subset.json").read_text())
        assert {record["pp"] for record in records} == {pp}
        assert {record["workload"] for record in records} == {"reuse131", "cold65"}
        assert sum(record["arm"].startswith("stock") for record in records) == 2 * 16
        assert all(0 < record["tok_s"] <= record["bound_tok_s"] for record in records)
        assert (tmp_path / f"sim-pp{pp}-subset.svg").exists()
        assert (tmp_path / f"sim-pp{pp}-subset-reuse131-c4.svg").exists()


def test_a_part_can_be_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--cells", "phases", "--arms", "stock-2p,wavepp", "--pp", "2", "--rounds", "1"]
    assert main([*asked, "--out", str(tmp_path)]) == 0
    assert "phases" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "sim-pp2-x1-subset.json").read_text())) == 2
    assert not list(tmp_path.glob("*.svg"))


def test_only_the_whole_grid_writes_the_grids_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [("reuse131", 4), ("cold65", 1)]
    for module in (sim, command_line):
        monkeypatch.setattr(module, "GRID", cells[:1])
        monkeypatch.setattr(module, "OTHERS", cells[1:])
    asked = ["--pp", "2", "--rounds", "1", "--out", str(tmp_path)]
    assert main(asked) == 0
    whole = (tmp_path / "sim-pp2-x1.json").read_bytes()
    pairs = [(record["workload"], record["concurrency"], record["arm"]) for record in json.loads(whole)]
    assert pairs == [(*cell, arm) for cell in cells for arm in ARMS]
    assert main([*asked, "--arms", "wavepp"]) == 0
    assert main([*asked, "--cells", "cold65:1"]) == 0
    assert (tmp_path / "sim-pp2-x1.json").read_bytes() == whole
    assert len(json.loads((tmp_path / "sim-pp2-x1-subset.json").read_text())) == len(ARMS)


@pytest.mark.parametrize("rounds", [2, 3])
def test_a_timeline_shows_the_run_whose_best_arm_it_compares(rounds: int, tmp_path: Path) -> None:
    asked = ["--cells", "reuse131:4", "--pp", "2", "--rounds", str(rounds), "--out", str(tmp_path)]
    assert main(asked) == 0
    stem = "sim-pp2-subset" if rounds == 2 else f"sim-pp2-x{rounds}-subset"
    best = max(
        record["tok_s"]
        for record in json.loads((tmp_path / f"{stem}.json").read_text())
        if record["arm"] in {arm.name for arm in DEFAULT_CHUNK}
    )
    drawn = (tmp_path / f"{stem}-reuse131-c4.svg").read_text()
    assert f": {best:,.0f} tok/s" in drawn
    assert f"request {4 * rounds - 1} " in drawn and f"request {4 * rounds} " not in drawn


@pytest.mark.parametrize(
    "wrong",
    [
        ["--cells", "cold7:1"],
        ["--cells", "cold65:0"],
        ["--cells", ","],
        ["--arms", "vllm"],
        ["--arms", ","],
        ["--pp", "0"],
        ["--pp", "x"],
        ["--pp", ""],
        ["--rounds", "0"],
        ["--rounds", "x"],
        ["--out", "/dev/null/bench"],
    ],
)
def test_what_cannot_be_is_one_line_and_status_2(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(wrong)
    assert ended.value.code == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert line.startswith("error: ")
    assert printed.out == ""
