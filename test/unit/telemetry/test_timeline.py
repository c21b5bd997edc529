from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sglang_wavepp.plane.messages import RankId
from sglang_wavepp.telemetry.reading import Span, TraceError, read_folder
from sglang_wavepp.telemetry.trace import ADMISSION, ROUNDS, WAVES, NullTimeline, Timeline, trace_file

RANK = RankId(pp_rank=1, tp_rank=0, index=1)


def test_what_was_recorded_is_read_back(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path, RANK)
    timeline.complete("prefill", 1_000, 5_000, WAVES, wave=7, slot=3, spans=[("a", 64, 128), ("b", 0, 40)])
    timeline.complete("decode", 6_000, 7_000, WAVES, wave=8, slot=0, lane=0, rids=["a", "b"])
    timeline.complete("admitted", 100, 900, ADMISSION, rid="a", endpoint=64)
    timeline.counter("slots", ROUNDS, busy=2)
    timeline.close()

    (rank,) = read_folder(tmp_path)
    prefill, decode = rank.waves()
    assert (rank.header.name, rank.header.rank, rank.header.pid) == ("pp1 tp0", 1, os.getpid())
    assert (prefill.wave, prefill.slot, prefill.decode) == (7, 3, False)
    assert (prefill.start_ns, prefill.end_ns) == (1_000, 5_000)
    assert prefill.spans == (Span("a", 64, 128), Span("b", 0, 40))
    assert decode.decode and [span.rid for span in decode.spans] == ["a", "b"]
    (admission,) = rank.admissions()
    assert (admission.rid, admission.endpoint, admission.verdict) == ("a", 64, "admitted")
    assert admission.ended_ns - admission.announced_ns == 800


def test_an_admission_may_be_a_pair_of_instants(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path, RANK)
    timeline.instant("announced", ADMISSION, rid="a")
    timeline.instant("announced", ADMISSION, rid="b")
    timeline.instant("refused", ADMISSION, rid="b")
    timeline.instant("admitted", ADMISSION, rid="a", endpoint=128)
    timeline.instant("admitted", ADMISSION, rid="c", endpoint=64)
    timeline.close()
    (rank,) = read_folder(tmp_path)
    first, second, third = rank.admissions()
    assert (first.rid, first.endpoint, first.verdict) == ("a", 128, "admitted")
    assert (second.rid, second.verdict) == ("b", "refused")
    assert first.ended_ns > first.announced_ns
    assert (third.rid, third.endpoint) == ("c", 64) and third.announced_ns == third.ended_ns


def test_events_reach_the_file_without_a_flush_and_survive_a_kill(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from sglang_wavepp.plane.messages import RankId\n"
        "from sglang_wavepp.telemetry.trace import Timeline\n"
        f"t = Timeline({str(tmp_path)!r}, RankId(pp_rank=0, tp_rank=0, index=0))\n"
        "t.instant('announced', 'admission', rid='a')\n"
        "print('recorded', flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=_environment()
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "recorded\n"
        _wait_for_lines(trace_file(tmp_path, 0), 2)
        process.send_signal(signal.SIGKILL)
    (rank,) = read_folder(tmp_path)
    assert [event.name for event in rank.events] == ["announced"]


def test_events_are_written_when_the_process_ends_at_once(tmp_path: Path) -> None:
    program = (
        "from sglang_wavepp.plane.messages import RankId\n"
        "from sglang_wavepp.telemetry.trace import Timeline\n"
        f"timeline = Timeline({str(tmp_path)!r}, RankId(pp_rank=0, tp_rank=0, index=0))\n"
        "timeline.instant('announced', 'admission', rid='a')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env=_environment())
    assert len(read_folder(tmp_path)[0].events) == 1


def test_threads_lose_no_event(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path, RANK)

    def record(number: int) -> None:
        for k in range(6_000):
            timeline.instant(f"{number}", ROUNDS, k=k)

    threads = [threading.Thread(target=record, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    timeline.close()
    (rank,) = read_folder(tmp_path)
    for number in range(3):
        assert [e.args["k"] for e in rank.events if e.name == str(number)] == list(range(6_000))


@pytest.mark.slow
def test_an_idle_timeline_does_not_wake_up(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path, RANK)
    timeline.instant("announced", ADMISSION, rid="a")
    _wait_for_lines(trace_file(tmp_path, 1), 2)
    time.sleep(0.15)
    before = _switches(timeline)
    time.sleep(0.5)
    assert _switches(timeline) == before
    timeline.close()


def test_a_timeline_that_is_off_leaves_nothing(tmp_path: Path) -> None:
    for timeline in (Timeline(tmp_path / "off", RANK, enabled=False), NullTimeline()):
        timeline.instant("announced", ADMISSION, rid="a")
        timeline.complete("prefill", 0, 1, WAVES, wave=0)
        timeline.counter("slots", ROUNDS, busy=1)
        timeline.flush()
        timeline.close()
        assert not timeline.enabled
    assert not (tmp_path / "off").exists()


def test_events_after_the_end_are_dropped(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path, RANK)
    timeline.close()
    timeline.instant("announced", ADMISSION, rid="a")
    timeline.flush()
    timeline.close()
    assert read_folder(tmp_path)[0].events == ()


def test_values_that_json_does_not_know(tmp_path: Path) -> None:
    class Scalar:
        def __index__(self) -> int:
            return 42

    timeline = Timeline(tmp_path, RANK)
    timeline.instant("announced", ADMISSION, rid="a", tokens=Scalar(), state=threading.Lock)
    timeline.close()
    args = read_folder(tmp_path)[0].events[0].args
    assert args["tokens"] == 42 and "Lock" in args["state"].title()


def test_a_full_disk_stops_the_trace_and_not_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    timeline = Timeline(tmp_path, RANK)
    assert timeline._file is not None
    timeline._file.close()
    timeline._file = open("/dev/full", "wb")  # noqa: SIM115 - every write to it fails
    with caplog.at_level(logging.ERROR):
        timeline.instant("announced", ADMISSION, rid="a")
        timeline.flush()
    assert not timeline.enabled and "/dev/full" in caplog.text
    timeline.close()


def test_a_line_cut_off_by_a_crash_is_ignored(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path, RANK)
    timeline.instant("announced", ADMISSION, rid="a")
    timeline.close()
    with trace_file(tmp_path, 1).open("ab") as file:
        file.write(b'{"ph":"i","na')
    assert len(read_folder(tmp_path)[0].events) == 1


def test_ranks_of_an_earlier_launch_are_left_out(tmp_path: Path) -> None:
    for index in range(3):
        Timeline(tmp_path, RankId(pp_rank=index, tp_rank=0, index=index)).close()
    stale = trace_file(tmp_path, 2)
    header = json.loads(stale.read_text())
    # Another launcher than this process's parent, which is process 1 where a shell has gone.
    header |= {"launcher": header["launcher"] + 1, "wall_ns": 1}
    stale.write_text(json.dumps(header) + "\n")
    assert [rank.header.rank for rank in read_folder(tmp_path)] == [0, 1]


def test_hosts_are_lined_up_by_the_wall_clock(tmp_path: Path) -> None:
    for index, (boot, monotonic) in enumerate([("x", 5_000), ("y", 900_000)]):
        trace_file(tmp_path, index).write_text(
            f'{{"format":1,"rank":{index},"name":"pp{index} tp0","pp_rank":{index},"tp_rank":0,"pid":1,"launcher":1,'
            f'"host":"h","boot":"{boot}","monotonic_ns":{monotonic},"wall_ns":1000000}}\n'
            f'{{"ph":"i","name":"n","track":"waves","ts":{monotonic + 50}}}\n'
        )
    one, two = read_folder(tmp_path)
    assert one.events[0].ts == two.events[0].ts == 1_000_050


@pytest.mark.parametrize(
    "text",
    [None, "", "no newline", "not json\n", '{"format":99,"rank":0,"name":"","pp_rank":0,"tp_rank":0}\n'],
)
def test_a_folder_without_a_trace_is_an_error_in_words(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        trace_file(tmp_path, 0).write_text(text)
    with pytest.raises(TraceError, match=str(tmp_path)):
        read_folder(tmp_path)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def _wait_for_lines(path: Path, lines: int) -> None:
    deadline = time.monotonic() + 10
    while path.read_bytes().count(b"\n") < lines:
        assert time.monotonic() < deadline, f"{path} has {path.read_bytes()!r}"
        time.sleep(0.01)


def _switches(timeline: Timeline) -> str:
    status = Path(f"/proc/self/task/{timeline._writer.native_id}/status").read_text()
    return "\n".join(line for line in status.splitlines() if "ctxt_switches" in line)
