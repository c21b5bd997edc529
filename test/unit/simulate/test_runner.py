import json
from pathlib import Path

import pytest

from benchmark.sim import main


def test_records_charts_and_timelines_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cells", "reuse131:4 cold65:1", "--pp", "2 3", "--out", str(tmp_path)]) == 0
    assert "geometric mean of 2 cells" in capsys.readouterr().out
    for pp in (2, 3):
        records = json.loads((tmp_path / f"sim-pp{pp}.json").read_text())
        assert {record["pp"] for record in records} == {pp}
        assert {record["workload"] for record in records} == {"reuse131", "cold65"}
        assert sum(record["arm"].startswith("stock") for record in records) == 2 * 16
        assert all(0 < record["tok_s"] <= record["bound_tok_s"] for record in records)
        assert (tmp_path / f"sim-pp{pp}.svg").exists()
        assert (tmp_path / f"sim-pp{pp}-reuse131-c4.svg").exists()


def test_a_part_can_be_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--cells", "phases", "--arms", "stock-2p,wavepp", "--pp", "2", "--rounds", "1"]
    assert main([*asked, "--out", str(tmp_path)]) == 0
    assert "phases" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "sim-pp2-x1.json").read_text())) == 2
    assert not list(tmp_path.glob("*.svg"))


@pytest.mark.parametrize(
    "wrong", [["--cells", "cold7:1"], ["--arms", "vllm"], ["--pp", "0"], ["--pp", "x"], ["--rounds", "0"]]
)
def test_what_cannot_be_is_a_usage_error(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(wrong)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err
