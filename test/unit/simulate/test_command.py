import json
from pathlib import Path

import pytest

from sglang_wavepp.simulate.__main__ import main


def test_one_cell_prints_a_row_for_each_arm(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    records, picture = tmp_path / "deep" / "records.json", tmp_path / "picture.svg"
    status = main(
        [
            *("--cells", "reuse131:1", "--arms", "stock-2p,wavepp", "--pp", "4", "--timeline"),
            *("--json", str(records), "--picture", str(picture)),
        ]
    )
    printed = capsys.readouterr().out
    assert status == 0
    assert "stock-2p" in printed and "stage 3 |" in printed
    written = json.loads(records.read_text())
    assert [(each["arm"], each["pp"], each["scale"], each["rejected"]) for each in written] == [
        ("stock-2p", 4, 1.0, False),
        ("wavepp", 4, 1.0, False),
    ]
    keys = {"workload", "concurrency", "tok_s", "p50_s", "p95_s", "idle", "bound_tok_s"}
    assert all(keys <= set(each) for each in written)
    assert written[1]["tok_s"] > 2 * written[0]["tok_s"]
    assert picture.read_text().count("<rect") > 8


def test_all_arms_in_several_cells_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cells", "reuse131:1 cold65:1", "--pp", "2"]) == 0
    printed = capsys.readouterr().out
    assert "geometric mean of 2 cells" in printed and "at most" in printed


def test_settings_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--choose", "--cells", "reuse131:1", "--min-wave-tokens", "512,4096,32768", "--pp", "4"]
    assert main([*asked, "--max-wave-tokens", "8192,16384"]) == 0
    rows = capsys.readouterr().out.splitlines()[2:]
    assert len(rows) == 4  # smallest waves above the largest are left out
    assert rows[0].split()[1] == "512" and rows[-1].split()[1] == "4,096"


def test_an_open_loop(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cells", "mixed131", "--rate", "0.2", "--requests", "20", "--arms", "wavepp"]) == 0
    assert "mixed131@0.2" in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong",
    [
        ["--cells", "cold7:1"],
        ["--arms", "vllm"],
        ["--stages", "1,0"],
        ["--per-token-us", "0"],
        ["--max-wave-tokens", "8"],
        ["--choose", "--arm", "nobody"],
        ["--cells", "cold65", "--rate", "-1"],
    ],
)
def test_what_cannot_be_is_a_usage_error(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(wrong)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_help_explains(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "examples:" in printed and "stock-2p-dynamic" in printed and "b_min" in printed
