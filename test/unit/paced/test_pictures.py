"""Pictures of paced runs: well-formed, with the numbers of the records in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from unit.paced.made_records import record

from benchmark.paced.arms import ARMS
from benchmark.paced.idle_picture import idle_picture
from benchmark.paced.panel import nice_step
from benchmark.paced.pictures import COLOURS, arm_colours, draw, throughput_picture
from benchmark.paced.records import Record, StageRecord

SVG = "{http://www.w3.org/2000/svg}"


def words(picture: str, tag: str = "text") -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(picture).iter(SVG + tag)]


def grid() -> list[Record]:
    return [
        record(workload=workload, concurrency=concurrency, arm=arm, repeat=repeat, tok_s=1000.0 + 10 * repeat)
        for workload, concurrency in (("reuse131", 8), ("reuse131", 4), ("cold65", 1), ("phases", 32))
        for arm in ("stock", "wavepp")
        for repeat in range(3)
    ]


def test_every_cell_and_arm_has_its_median_and_range() -> None:
    picture = throughput_picture(grid(), "a < b")
    titles = words(picture, "title")
    assert "reuse131 c4, wavepp: 1,010 (1,000-1,020)" in titles
    assert "phases c1 to 32, stock: 1,010 (1,000-1,020)" in titles
    assert "cold65 c1, stock: 2.00 (2.00-2.00)" in titles  # p95
    assert len(titles) == 4 * 2 * 3
    shown = words(picture)
    assert {"a < b", "stock", "wavepp", "reuse131", "cold65", "input tokens a second", "1,500"} <= set(shown)
    assert shown.index("c4") < shown.index("c8")  # whatever the order in which they were measured


def test_cells_of_different_speed_say_so_and_are_not_joined() -> None:
    def joined(second: float) -> int:
        measured = [record(concurrency=1, scale=0.25), record(concurrency=4, scale=second)]
        picture = throughput_picture(measured, "t")
        assert ("speed 0.5" in words(picture)) == (second == 0.5)
        return picture.count('stroke-opacity="0.5"')

    assert joined(0.25) == 3 and joined(0.5) == 0


def test_lines_join_only_neighbours_that_may_be_used() -> None:
    def lines(**second: Any) -> list[int]:
        """Points of each line of the arm in the first row."""
        measured = [
            *(record(concurrency=n, arm="wavepp") for n in (1, 2, 4, 8)),
            *(record(concurrency=n) for n in (1, 4, 8)),
            *([record(concurrency=2, **second)] if second else []),
        ]
        drawn = ElementTree.fromstring(throughput_picture(measured, "t")).iter(SVG + "path")
        paths = [each.get("d", "") for each in drawn if each.get("stroke-opacity") == "0.5"]
        return [path.count(",") for path in paths[: len(paths) // 3]]

    assert lines(tok_s=900.0) == [4, 4]
    assert lines() == [4, 2]  # from 4 to 8, none from 1 across the slot that was not measured
    assert lines(rejected=True, reason="crowded") == [4, 2]


def test_rejected_figures_are_left_out_where_others_may_be_used_and_hollow_elsewhere() -> None:
    bad = {"rejected": True, "reason": "crowded"}
    picture = throughput_picture([record(), record(repeat=1, tok_s=9.0, **bad)], "t")
    assert "reuse131 c4, stock: 1,000 (1,000-1,000)" in words(picture, "title")
    picture = throughput_picture([record(**bad)], "t")
    assert "reuse131 c4, stock: 1,000 (1,000-1,000), rejected" in words(picture, "title")
    assert any(word.startswith("hollow") for word in words(picture))
    assert any("rejected" in word for word in words(idle_picture([record(**bad)], "t")))


def test_rates_of_an_open_loop_are_one_panel() -> None:
    measured = [record(workload=f"survival@{rate}", concurrency=0) for rate in ("1", "0.5")]
    shown = words(throughput_picture(measured, "t"))
    assert shown.count("survival") == 1 and shown.index("0.5/s") < shown.index("1/s")


def test_idle_time_is_split_by_stage() -> None:
    def stage(idle: float, late: float, upstream: float) -> StageRecord:
        return StageRecord(
            waves=4, tokens=64, wave_ms=100, idle=idle, late_s=late, upstream_s=upstream,
            host_ms=5, process_ms=9, run_queue_ms=1,
        )  # fmt: skip

    measured = [
        record(stages=[stage(0.4, 3.0, 1.0), stage(0.0, 0.0, 0.0)]),
        record(stages=[stage(0.2, 1.0, 1.0), stage(0.0, 0.0, 0.0)], repeat=1),
        record(stages=[stage(0.9, 2.0, 7.0), stage(0.0, 0.0, 0.0)], repeat=2, idle=0.95),
    ]
    picture = idle_picture([*measured, record(arm="wavepp", concurrency=8)], "t")
    titles = words(picture, "title")
    assert "stage 0: 20.0% late, 10.0% upstream" in titles and "stage 1: 0.0% late, 0.0% upstream" in titles
    assert {"reuse131:4", "reuse131:8", "stock", "wavepp", "idle 50%"} <= set(words(picture))


def test_pictures_lie_beside_the_records_even_without_any(tmp_path: Path) -> None:
    paths = draw(grid(), tmp_path / "paced-scout.json")
    assert [path.name for path in paths] == ["paced-scout-throughput.svg", "paced-scout-idle.svg"]
    assert any("3 repeats" in word for word in words(paths[0].read_text()))
    for path in draw([], tmp_path / "paced.json"):
        assert any("nothing measured" in word for word in words(path.read_text()))


def test_arms_have_colours_of_their_own_and_wavepp_the_same_everywhere() -> None:
    assert arm_colours(["stock", "wavepp"])["wavepp"] == arm_colours(["wavepp"])["wavepp"] == COLOURS[0]
    some = list(ARMS)[: len(COLOURS) - 1]
    assert len(set(arm_colours([*some, "wavepp"]).values())) == len(COLOURS)


@pytest.mark.parametrize(
    ("least", "step"), [(0.3, 0.5), (1.0, 1.0), (2.1, 5.0), (7000.0, 10_000.0), (0.0, 1e-6)]
)
def test_steps_are_round(least: float, step: float) -> None:
    assert nice_step(least) == pytest.approx(step)
