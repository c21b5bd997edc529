"""The best stock arms of a scouting run: whose figures count, and what to run where there are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from unit.paced.made_records import record

from benchmark.paced import options
from benchmark.paced.best_stock import best_scouted, best_stock
from benchmark.paced.device_model import DeviceModel
from benchmark.paced.measure import Setting
from benchmark.paced.records import Record, Records

MODEL = DeviceModel().shortened(4)
SETTING = Setting(pp=2, wave_tokens=4096, shorten=4, model=MODEL, scale=None, digest="d")


def scouted(arm: str, **changes: Any) -> Record:
    return record(**{"arm": arm, "model": MODEL, **changes})


def test_the_best_stock_arms_of_a_scouting_run(capsys: pytest.CaptureFixture[str]) -> None:
    found = [
        scouted("stock", tok_s=100.0),
        scouted("stock-2p", tok_s=300.0),
        scouted("stock-stream", tok_s=200.0),
        scouted("wavepp", tok_s=900.0),
        scouted("stock", tok_s=9000.0, concurrency=8),  # the others lack this cell
    ]
    assert best_stock(found, SETTING) == ["stock-2p", "stock-stream"]
    said = capsys.readouterr().err
    assert "best of 3 scouted stock arms in reuse131:4: stock-2p, stock-stream" in said
    assert "an arm lacks them: reuse131:8" in said
    for nothing in ([], [scouted("wavepp")], [scouted("stock", rejected=True, reason="crowded")]):
        with pytest.raises(ValueError, match="no stock arm was scouted"):
            best_stock(nothing, SETTING)


def test_a_scout_that_was_interrupted_after_one_arm_chooses_nothing() -> None:
    whole = [scouted("stock-2p", settings="older"), scouted("stock-stream", settings="older")]
    with pytest.raises(ValueError, match="stock was scouted that may be used, of at least 2"):
        best_stock([*whole, scouted("stock")], SETTING)


def test_rejected_and_older_figures_choose_no_stock_arm(capsys: pytest.CaptureFixture[str]) -> None:
    older = [scouted("stock-m2", tok_s=9000.0, settings="older")]
    crowded = [scouted("stock-m4", tok_s=9000.0, rejected=True, reason="crowded")]
    newest = [
        *(scouted("stock", repeat=n, tok_s=tok_s) for n, tok_s in enumerate((100.0, 100.0, 300.0))),
        scouted("stock-2p", tok_s=200.0),
    ]
    assert best_stock([*older, *crowded, *newest], SETTING) == ["stock-2p", "stock"]
    assert "stock-m4 was rejected" in capsys.readouterr().err
    apart = [scouted("stock-2p", workload="cold131"), scouted("stock")]
    with pytest.raises(ValueError, match="stock-2p, stock have no cell in common"):
        best_stock([scouted("stock-2p", settings="older"), *apart], SETTING)


def test_settings_that_were_measured_again_are_the_last(tmp_path: Path) -> None:
    records = Records(tmp_path / "r.json")
    for arm, settings in (("stock", "a"), ("stock-m2", "a"), ("stock-2p", "b"), ("stock", "a")):
        records.add(scouted(arm, settings=settings))
    assert set(best_stock(records.all(), SETTING)) == {"stock", "stock-m2"}


@pytest.mark.parametrize(
    "other",
    [
        {"pp": 8},
        {"shorten": 2},
        {"wave_tokens": 8192},
        {"model": DeviceModel(factors=(1.25,)).shortened(4)},
        {"model": None},
    ],
)
def test_a_scout_with_other_stages_lengths_or_device_chooses_nothing(other: dict[str, Any]) -> None:
    # It may have been written last, or hold all there is.
    elsewhere = scouted("stock-2p", settings="other", **other)
    here = [scouted("stock", tok_s=200.0), scouted("stock-stream", tok_s=100.0)]
    assert best_stock([*here, elsewhere], SETTING) == ["stock", "stock-stream"]
    with pytest.raises(ValueError, match="nothing was scouted with 2 stages"):
        best_stock([elsewhere], SETTING)


@pytest.mark.parametrize("content", ["[]", "nothing", None])
def test_the_run_that_is_missing_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "paced-scout.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=r"paced-scout\.json.*run: make it") as found:
        best_scouted(path, SETTING, "make it")
    assert "\n" not in str(found.value)


def test_best_takes_the_place_of_the_arms_that_a_like_run_scouted(tmp_path: Path) -> None:
    given = {"ARMS": "stock-2p best wavepp best", "PP": "4", "DEVICE": "uneven"}
    asked = options.parser(given).parse_args([])
    setting = options.setting_of(asked)
    with pytest.raises(ValueError, match="run: make bench-scout PP=4 SHORTEN=4 DEVICE=uneven"):
        options.arms_of(asked, setting, tmp_path)
    records = Records(tmp_path / "paced-scout.json")
    for arm, tok_s in (("stock-2p", 300.0), ("stock", 200.0), ("stock-stream", 100.0)):
        records.add(record(arm=arm, tok_s=tok_s, pp=4, model=setting.model))
    found = options.arms_of(asked, setting, tmp_path)
    assert [arm.name for arm in found] == ["stock-2p", "stock", "wavepp"]
