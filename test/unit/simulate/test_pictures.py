import xml.etree.ElementTree as ElementTree

from sglang_wavepp.simulate.arms import ARMS, Knobs
from sglang_wavepp.simulate.chart import ROWS, svg_chart
from sglang_wavepp.simulate.machine import Machine
from sglang_wavepp.simulate.outcome import Wave
from sglang_wavepp.simulate.picture import gaps, svg_timeline, text_timeline
from sglang_wavepp.simulate.records import run_all, workload_of
from sglang_wavepp.telemetry.idle import Cause

MACHINE = Machine.even(4)
RECT = "{http://www.w3.org/2000/svg}rect"


def test_a_text_timeline_is_dark_where_a_stage_is_busy() -> None:
    lines = text_timeline(ARMS["stock-2p"].run(MACHINE, workload_of("reuse131", 1), Knobs())).splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("stage 0 |") and lines[-1].endswith(" s")
    drawn = [line.split("|")[1] for line in lines[:-1]]
    assert {len(row) for row in drawn} == {100}
    # One wave at a time: while one stage computes, the others are idle.
    assert sum(row.count("#") for row in drawn) < 110
    assert drawn[0].lstrip(" .:-=+*") != drawn[0] or drawn[0][0] == "#"


def test_a_picture_has_a_bar_for_each_wave_and_stage() -> None:
    runs = [
        (name, ARMS[name].run(MACHINE, workload_of("cold65", 1), Knobs())) for name in ("stock-2p", "wavepp")
    ]
    drawn = ElementTree.fromstring(svg_timeline(runs))
    bars = [rect for rect in drawn.iter(RECT) if rect.find("{http://www.w3.org/2000/svg}title") is not None]
    assert len(bars) == 4 * sum(len(run.waves) for _, run in runs)


def test_idle_time_is_explained() -> None:
    def wave(launched: float, first: float, second: float) -> Wave:
        return Wave((), launched, starts=(first, second), ends=(first + 1, second + 1))

    waves = [wave(0.0, 0.0, 1.0), wave(1.5, 1.5, 3.0)]
    assert gaps(waves, 0) == [(1.0, 1.5, Cause.LATE)]
    # Filled from the stage before; then free at 2.0, the input there at 2.5, launched at 3.0.
    assert gaps(waves, 1) == [
        (0.0, 1.0, Cause.UPSTREAM),
        (2.0, 2.5, Cause.UPSTREAM),
        (2.5, 3.0, Cause.LATE),
    ]


def test_a_chart_has_a_bar_for_each_arm_cell_and_measure() -> None:
    cells = (("reuse131", 1), ("reuse131", 4), ("cold65", 1))
    drawn = ElementTree.fromstring(svg_chart(run_all(MACHINE, cells, bounds=False), "a < b"))
    bars = [rect for rect in drawn.iter(RECT) if rect.find("{http://www.w3.org/2000/svg}title") is not None]
    assert len(bars) == 3 * len(cells) * len(ROWS)
    assert all(float(rect.get("height", "-1")) >= 0 for rect in bars)
