import argparse
from pathlib import Path

import pytest

from sglang_wavepp.simulate.arms import ARMS
from sglang_wavepp.simulate.command_line import (
    arms_of,
    cells_of,
    counts,
    not_negative,
    open_workloads_of,
    positive,
    prepare,
    write,
)
from sglang_wavepp.simulate.records import GRID, OTHERS


def test_cells_stand_between_commas_or_spaces_and_none_comes_twice() -> None:
    assert cells_of("reuse131:4, cold65 phases,cold65:1") == [("reuse131", 4), ("cold65", 1), ("phases", 32)]
    assert cells_of(" ") == [*GRID, *OTHERS]


def test_an_open_loop_has_workloads_without_a_concurrency() -> None:
    assert open_workloads_of("mixed131 cold65,mixed131") == ["mixed131", "cold65"]
    assert open_workloads_of("") == ["reuse131", "reuse262", "cold65", "cold131", "cold262", "mixed131"]
    with pytest.raises(ValueError, match="cold65, not cold65:4"):
        open_workloads_of("cold65:4")


def test_arms_stand_between_commas_or_spaces_and_none_comes_twice() -> None:
    assert [arm.name for arm in arms_of("wavepp, stock-p wavepp")] == ["wavepp", "stock-p"]
    assert arms_of("") == list(ARMS.values())
    with pytest.raises(ValueError, match=r"unknown arm vllm, trt; there are stock-p"):
        arms_of("vllm,trt,wavepp")


def test_numbers_are_finite_and_in_their_range() -> None:
    assert counts("8192,16384 8192") == (8192, 16384)
    assert (positive("1e-3"), not_negative("0")) == (1e-3, 0.0)
    for read, text in (
        *((counts, text) for text in ("0", "-1", "1.5", "x", ",", "")),
        *((positive, text) for text in ("0", "-1", "nan", "inf", "x", "")),
        *((not_negative, text) for text in ("-1e-300", "nan", "-inf", "x")),
    ):
        with pytest.raises(argparse.ArgumentTypeError, match="'"):
            read(text)


def test_preparing_a_file_changes_nothing_but_its_folder(tmp_path: Path) -> None:
    new, old = tmp_path / "a" / "b" / "new", tmp_path / "old"
    old.write_text("kept")
    prepare(new)
    prepare(old)
    assert old.read_text() == "kept"
    assert list(new.parent.iterdir()) == []


@pytest.mark.parametrize("does", [prepare, lambda target: write(target, "text")])
def test_what_cannot_be_written_is_said_in_one_line(does, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"^\S+ can't be written: Is a directory$"):
        does(tmp_path)
