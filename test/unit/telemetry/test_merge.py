from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.telemetry.traces import header

from sglang_wavepp.plane.messages import RankId
from sglang_wavepp.telemetry.chrome import chrome_trace
from sglang_wavepp.telemetry.merge import main, merge
from sglang_wavepp.telemetry.picture import picture, picture_data
from sglang_wavepp.telemetry.reading import RankTrace, read_folder
from sglang_wavepp.telemetry.trace import ADMISSION, ROUNDS, WAVES, Event, Timeline

HEADER = header(0)


def write_trace(folder: Path, rid: str = "request-a") -> None:
    for index in range(2):
        timeline = Timeline(folder, RankId(pp_rank=index, tp_rank=0, index=index))
        if index == 0:
            timeline.complete("admitted", 1_000_000, 3_000_000, ADMISSION, rid=rid, endpoint=64)
            timeline.complete("admitted", 2_000_000, 4_000_000, ADMISSION, rid="b", endpoint=0)
            timeline.complete("round", 2_000_000, 2_500_000, ROUNDS, round=1)
        late = index * 1_000_000
        timeline.complete(
            "wave 0", 5_000_000 + late, 6_000_000 + late, WAVES, wave=0, slot=0, spans=[(rid, 64, 128)]
        )
        timeline.complete(
            "decode 1", 7_000_000 + late, 8_000_000 + late, WAVES, wave=1, slot=0, lane=0, rids=[rid, "b"]
        )
        timeline.close()


def test_one_process_per_rank_in_order_and_times_from_the_first_event(tmp_path: Path) -> None:
    write_trace(tmp_path)
    document = chrome_trace(read_folder(tmp_path))
    names = {e["pid"]: e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"}
    assert names == {0: "rank 0 (pp0 tp0)", 1: "rank 1 (pp1 tp0)"}
    timed = [e for e in document["traceEvents"] if e["ph"] != "M"]
    assert [e["ts"] for e in timed] == sorted(e["ts"] for e in timed) and timed[0]["ts"] == 0
    prefill = next(e for e in timed if e["name"] == "wave 0" and e["pid"] == 1)
    assert (prefill["ts"], prefill["dur"], prefill["args"]["spans"]) == (
        5_000,
        1_000,
        [["request-a", 64, 128]],
    )


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=30))
def test_events_of_one_thread_follow_or_nest(intervals: list[tuple[int, int]]) -> None:
    events = tuple(
        Event(ph="X", name=str(k), track=ADMISSION, ts=start * 1000, dur=length * 1000)
        for k, (start, length) in enumerate(intervals)
    )
    drawn = [e for e in chrome_trace([RankTrace(HEADER, events)])["traceEvents"] if e["ph"] == "X"]
    assert sorted(int(e["name"]) for e in drawn) == list(range(len(intervals)))
    threads: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in drawn:
        for other in threads[event["tid"]]:
            apart = other["ts"] + other["dur"] <= event["ts"]
            nested = event["ts"] + event["dur"] <= other["ts"] + other["dur"]
            assert apart or nested
        threads[event["tid"]].append(event)


def test_the_picture_holds_every_wave_once_per_stage_with_its_requests(tmp_path: Path) -> None:
    write_trace(tmp_path)
    data = picture_data(read_folder(tmp_path))
    assert [request[0] for request in data["requests"]] == ["request-a", "b"]
    assert data["requests"][0] == ["request-a", 0.0, 2000.0, 64, "admitted"]
    assert [row["name"] for row in data["rows"]] == ["pp0 tp0", "pp1 tp0"]
    prefill, decode = data["rows"][0]["waves"]
    assert prefill == [4000.0, 1000.0, 0, 0, 0, [0, 64, 128]]
    assert decode == [6000.0, 1000.0, 1, 0, 1, [0, -1, 1, 1, -1, 1]]
    assert data["rows"][1]["waves"][0][0] == 5000.0
    causes = [cause[0] for cause in data["causes"]]
    first, second = ([(*gap[:2], causes[gap[2]]) for gap in row["gaps"]] for row in data["rows"])
    assert first == [
        (0.0, 2000.0, "admission"),
        (2000.0, 2000.0, "late launch"),
        (5000.0, 1000.0, "results"),
        (7000.0, 1000.0, "no request"),
    ]
    assert second == [(0.0, 5000.0, "upstream"), (6000.0, 1000.0, "upstream")]
    assert data["rounds"] == [[1000.0, 500.0]]
    assert data["duration"] == 8000.0


def test_requests_without_a_known_admission_are_drawn_too() -> None:
    wave = Event(
        ph="X", name="prefill", track=WAVES, ts=10, dur=5, args={"wave": 0, "spans": [["late", 0, 3]]}
    )
    assert picture_data([RankTrace(HEADER, (wave,))])["requests"] == [["late", -1, -1, -1, ""]]


def test_the_page_is_self_contained_and_safe(tmp_path: Path) -> None:
    write_trace(tmp_path, rid="</script><script>alert(1)</script>")
    page = picture(read_folder(tmp_path), "A <b>title</b>")
    assert not re.search(r"(src|href)\s*=|@import|url\(|https?://|fetch\(", page)
    assert page.count("<script") == page.count("</script>") == 2
    assert "A &lt;b&gt;title&lt;/b&gt;" in page
    embedded = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert embedded is not None
    assert json.loads(embedded[1])["requests"][0][0] == "</script><script>alert(1)</script>"


def test_an_empty_trace_gives_a_page(tmp_path: Path) -> None:
    Timeline(tmp_path, RankId(pp_rank=0, tp_rank=0, index=0)).close()
    merged = merge(tmp_path)
    assert json.loads(merged.trace.read_text())["traceEvents"]
    assert merged.page.stat().st_size > 10_000
    assert ElementTree.fromstring(merged.figure.read_text()).tag.endswith("svg")


def test_a_window_leaves_out_what_lies_outside(tmp_path: Path) -> None:
    write_trace(tmp_path)
    merged = merge(tmp_path, window_ns=(5_000_000, 8_000_000))
    events = [e for e in json.loads(merged.trace.read_text())["traceEvents"] if e["ph"] != "M"]
    assert [(e["pid"], e["name"]) for e in events] == [(0, "wave 0"), (1, "wave 0"), (0, "decode 1")]


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_trace(tmp_path)
    assert main([str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert all(str(tmp_path / name) in said for name in ("trace.json", "timeline.html", "timeline.svg"))
    assert main([str(tmp_path / "nothing")]) == 1
    assert "no trace in" in capsys.readouterr().err
