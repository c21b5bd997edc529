"""Timelines of what stages computed: which forwards belong to the last play of a cell, and the picture of them."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from unit.paced.made_records import record

from benchmark.paced.recorder import Forward, Recorder
from benchmark.paced.timelines import Play, draw_timelines, last_play, outcome_of


def forward(stage: int, start: float, *rids: str) -> Forward:
    return Forward(
        stage=stage, number=0, launched=start - 1, ready=None, start=start, end=start + 2,
        tokens=[64] * len(rids), prefixes=[128] * len(rids), rids=list(rids), decode=False,
        process_cpu=0.0, thread_cpu=0.0,
    )  # fmt: skip


def stage_of(number: int) -> list[Forward]:
    rids = (
        ("reuse131.4-0-0-p1792-1",),  # fills the cache
        ("7:reuse131.4-0-0-0",),
        ("reuse131.4-1-0-0",),
        ("9:reuse131.4-1-1-0", "10:reuse131.4-1-1-5"),
        ("reuse131.40-2-0-0",),
    )
    return [forward(number, 100.0 + 2 * (place + number), *names) for place, names in enumerate(rids)]


def played(stages: list[list[Forward]]) -> Play:
    found = last_play(stages, "reuse131:4")
    assert found is not None
    return found


def traced(folder: Path, stages: list[list[Forward]]) -> Path:
    folder.mkdir()
    for stage in stages:
        for each in stage:
            Recorder(folder).write(each)
    return folder


def said(picture: Path) -> list[str]:
    return [each.text or "" for each in ElementTree.parse(picture).iter() if each.tag.endswith("text")]


def test_the_last_attempt_at_the_last_repeat_is_shown() -> None:
    stages = [stage_of(0), stage_of(1)]
    found = played(stages)
    assert (found.repeat, found.attempt, found.words) == (1, 1, "repeat 2, attempt 2")
    assert [[each.rids for each in stage] for stage in found.stages] == [
        [["9:reuse131.4-1-1-0", "10:reuse131.4-1-1-5"]]
    ] * 2
    assert last_play(stages, "cold65:1") is None
    assert last_play([[forward(0, 1.0, "survival@0.5-0-0-d3-7")]], "survival@0.5")
    assert last_play([[forward(0, 1.0, "trace-tool.8-0-0-7")]], "trace-tool:8")


def test_times_count_from_the_first_forward() -> None:
    found = outcome_of(played([stage_of(0), stage_of(1)]).stages, record(tok_s=5.0))
    (wave,) = found.waves
    assert (wave.starts, wave.ends, found.seconds, found.tok_s) == ((0.0, 2.0), (2.0, 4.0), 4.0, 5.0)
    assert [(span.rid, span.start, span.end) for span in wave.spans] == [("0", 128, 192), ("5", 128, 192)]


def test_a_picture_for_each_cell_with_the_arms_that_were_started(tmp_path: Path) -> None:
    traces = {arm: traced(tmp_path / arm, [stage_of(0), stage_of(1)]) for arm in ("stock", "wavepp")}
    traces["stock-2p"] = tmp_path  # started, and never reached
    measured = [
        *(record(arm=arm, repeat=1, tok_s=1234.0) for arm in ("stock", "wavepp", "stock-dynamic")),
        record(workload="cold65", concurrency=1),
    ]
    (path,) = draw_timelines(measured, traces, tmp_path / "paced.json")
    assert path == tmp_path / "paced-timeline-reuse131-c4.svg"
    words = said(path)
    assert words[0].startswith(
        "reuse131:4 stock, repeat 2, attempt 2: 1,234 tok/s"
    ) and "stock-dynamic" not in " ".join(words)
    assert sum(word.startswith("reuse131:4") for word in words) == 2
    assert draw_timelines(measured, {}, tmp_path / "paced.json") == []


def test_waves_are_drawn_with_the_figures_of_their_own_repeat(tmp_path: Path) -> None:
    # Repeat 2 was kept from an earlier run, this one measured repeat 1 again.
    rids = ("reuse131.4-0-0-0",)
    traces = {"stock": traced(tmp_path / "stock", [[forward(0, 1.0, *rids)], [forward(1, 3.0, *rids)]])}
    kept = [record(repeat=0, tok_s=1111.0), record(repeat=1, tok_s=2222.0)]
    (path,) = draw_timelines(kept, traces, tmp_path / "paced.json")
    assert said(path)[0].startswith("reuse131:4 stock, repeat 1: 1,111 tok/s")
    assert draw_timelines(kept[1:], traces, tmp_path / "paced.json") == []


def test_a_play_that_a_stage_has_written_nothing_of_is_left_out(tmp_path: Path) -> None:
    stages = [stage_of(0), [forward(1, 1.0, "reuse131.4-0-0-0")]]
    assert last_play(stages, "reuse131:4") is None
    traces = {"stock": traced(tmp_path / "stock", stages)}
    assert draw_timelines([record(repeat=1)], traces, tmp_path / "paced.json") == []


@pytest.mark.parametrize("stages", [1, 3])
def test_waves_have_a_bar_on_every_stage(stages: int, tmp_path: Path) -> None:
    found = outcome_of(played([stage_of(number) for number in range(stages)]).stages, record())
    assert len(found.waves[0].starts) == stages
