import json
from pathlib import Path

import pytest

import sglang_wavepp.simulate.__main__ as command
from sglang_wavepp.simulate.__main__ import main
from sglang_wavepp.simulate.arms import ARMS


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
    asked = ["--choose", "--cells", "reuse131:1", "--min-wave-tokens", "512,4096", "--pp", "4"]
    assert main([*asked, "--max-wave-tokens", "8192,16384"]) == 0
    rows = capsys.readouterr().out.splitlines()[2:]
    assert len(rows) == 4
    assert rows[0].split()[1] == "512" and rows[-1].split()[1] == "4,096"


def test_a_combination_whose_smallest_wave_is_above_the_largest_is_left_out_and_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ["--choose", "--cells", "reuse131:1", "--min-wave-tokens", "512,4096", "--pp", "2"]
    assert main([*asked, "--max-wave-tokens", "2048,16384"]) == 0
    *rows, last = capsys.readouterr().out.splitlines()[2:]
    assert len(rows) == 3
    assert last == "left out: b_min 4,096 at M 2,048"


def test_settings_that_are_not_given_are_compared_as_the_server_would_choose_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ["--choose", "--cells", "reuse131:1", "--pp", "2"]
    assert main([*asked, "--max-wave-tokens", "4096,16384"]) == 0
    rows = [row.split()[:2] for row in capsys.readouterr().out.splitlines()[2:]]
    assert sorted(rows) == [["16,384", "512"], ["4,096", "128"]]


def test_any_page_serves_cached_prefixes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--page", "128", "--cells", "reuse131:1", "--pp", "2"]) == 0
    arms = {row.split()[2] for row in capsys.readouterr().out.splitlines()[2:]}
    assert arms == set(ARMS)


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
        ["--max-wave-tokens", "many"],
        ["--cells", "cold65", "--min-wave-tokens", "32768"],
        ["--choose", "--arm", "nobody"],
        ["--choose", "--arm", "wavepp,stock-p"],
        ["--choose", "--cells", "cold65", "--min-wave-tokens", "32768"],
        ["--choose", "--cells", "cold65", "--max-wave-tokens", "16384,8"],
        ["--cells", "cold65", "--rate", "-1"],
        ["--cells", "reuse131:0"],
        ["--cells", "cold65:-1"],
        ["--cells", ","],
        ["--arms", ","],
        ["--admitted-waves", "0"],
        ["--per-wave-ms", "nan"],
        ["--per-pair-ps", "inf"],
        ["--stages", "nan,1"],
        ["--stages", ","],
        ["--host-ms", "-1"],
        ["--stock-host-ms", "-1"],
        ["--transfer-us", "-1"],
        ["--stagger-ms", "-1"],
        ["--rounds", "0"],
        ["--pp", "0"],
        ["--page", "0"],
        ["--cells", "cold65", "--page", "4096"],  # chunks of M/8 hold no page
        ["--cells", "cold65", "--json", "/dev/null/deep/records.json"],
        ["--cells", "cold65", "--picture", "/dev/null/picture.svg"],
        ["--no-such-option"],
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


@pytest.mark.parametrize("option", ["--json", "--picture"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_simulated(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def too_late(*_: object, **__: object) -> None:
        raise AssertionError("it was simulated first")

    monkeypatch.setattr(command, "run_cell", too_late)
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit):
        main(["--cells", "cold65", option, str(tmp_path / "file" / "below")])
    assert "file/below can't be written" in capsys.readouterr().err


def test_pictures_go_into_a_new_folder(tmp_path: Path) -> None:
    picture = tmp_path / "new" / "deep" / "picture.svg"
    assert main(["--cells", "cold65", "--arms", "wavepp", "--pp", "2", "--picture", str(picture)]) == 0
    assert picture.read_text().startswith("<svg")


def test_help_explains(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "examples:" in printed and "stock-2p-dynamic" in printed and "b_min" in printed
