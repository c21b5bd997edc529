"""Idle times of stages and why, a plan through an ideal pipeline, and the books of the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmark.paced import run_queue
from benchmark.paced.analysis import figures, of_requests
from benchmark.paced.device_model import DeviceModel
from benchmark.paced.recorder import Forward
from benchmark.paced.replay import ideal_seconds
from benchmark.paced.run_queue import Spent
from sglang_wavepp.simulate.workload import Job, Phase, Workload


def forward(
    start: float,
    end: float,
    *,
    ready: float | None = None,
    rids: tuple[str, ...] = ("a",),
    tokens: int = 1,
    cpu: float = 0.0,
    timers: dict[str, tuple[int, float, float]] | None = None,
) -> Forward:
    return Forward(
        stage=0,
        number=0,
        launched=start,
        ready=ready,
        start=start,
        end=end,
        tokens=[tokens] * len(rids),
        prefixes=[0] * len(rids),
        rids=list(rids),
        decode=False,
        process_cpu=2 * cpu,
        thread_cpu=cpu,
        timers=timers or {},
    )


def test_idle_times_are_split_into_upstream_and_late() -> None:
    found = figures(
        [
            forward(0.0, 2.0, ready=0.0),
            forward(5.0, 6.0, ready=4.0),  # 2 s until the data came, then 1 s until the launch
            forward(6.0, 7.0, ready=5.0),
            forward(8.0, 10.0, ready=6.5),  # the data was here: late
        ]
    )
    assert found.upstream_s == pytest.approx(2.0)
    assert found.late_s == pytest.approx(2.0)
    assert found.idle == pytest.approx(0.4)
    assert found.waves == 4 and found.wave_s == pytest.approx(1.5)


def test_the_first_stage_is_never_idle_because_of_another_one() -> None:
    found = figures([forward(0.0, 1.0), forward(3.0, 4.0)])
    assert (found.upstream_s, found.late_s) == (0.0, 2.0)


def test_cpu_time_is_counted_between_forwards() -> None:
    found = figures(
        [
            forward(
                0, 1, cpu=10.0, timers={"plan": (9, 9.0, 9.0)}
            ),  # spent before the first forward: not its
            forward(1, 2, cpu=10.5, timers={"plan": (1, 0.3, 0.2)}),
            forward(2, 3, cpu=11.5, timers={"plan": (3, 0.5, 0.4), "send": (2, 0.2, 0.1)}),
        ]
    )
    assert found.main_s == pytest.approx(0.75) and found.process_s == pytest.approx(1.5)
    assert found.timers["plan"] == pytest.approx((2.0, 0.4, 0.3))
    assert found.timers["send"] == pytest.approx((1.0, 0.1, 0.05))


def test_forwards_of_other_requests_do_not_count() -> None:
    mine, other, both = (
        forward(0, 1, rids=("3:t-1",)),
        forward(1, 2, rids=("x",)),
        forward(2, 3, rids=("x", "t-2")),
    )
    assert of_requests([[mine, other, both]], ["t-1", "t-2"]) == [[mine, both]]


def test_a_stage_without_forwards_has_no_figures() -> None:
    with pytest.raises(ValueError, match="ran none"):
        figures([])


# --- the plan through an ideal pipeline -----------------------------------------------------------------------------

ONE = DeviceModel(per_wave=0.0, per_token=1.0, per_pair=0.0)


def closed(count: int, concurrency: int) -> Workload:
    return Workload(
        name="w", concurrency=concurrency, jobs=(Job(0, 64),) * count, phases=(Phase(concurrency, count),)
    )


def test_waves_of_one_request_follow_each_other_through_the_stages() -> None:
    waves = [forward(0, 0, tokens=2), forward(0, 0, tokens=2), forward(0, 0, tokens=2)]
    # 3 waves of 2 s through 4 stages: 2 * (3 + 4 - 1).
    assert ideal_seconds(waves, ["a"], closed(1, 1), ONE, stages=4) == pytest.approx(12.0)


def test_a_client_sends_its_next_request_when_it_has_its_answer() -> None:
    waves = [forward(0, 0, rids=("a",)), forward(0, 0, rids=("b",)), forward(0, 0, rids=("c",))]
    rids = ["a", "b", "c"]
    assert ideal_seconds(waves, rids, closed(3, 1), ONE, stages=4) == pytest.approx(12.0)
    assert ideal_seconds(waves, rids, closed(3, 3), ONE, stages=4) == pytest.approx(6.0)
    # Two clients: a and b flow in one after the other, c when a has ended.
    assert ideal_seconds(waves, rids, closed(3, 2), ONE, stages=4) == pytest.approx(8.0)


def test_unequal_waves_wait_for_the_slower_one_before_them() -> None:
    waves = [forward(0, 0, rids=("a",), tokens=5), forward(0, 0, rids=("b",), tokens=1)]
    assert ideal_seconds(waves, ["a", "b"], closed(2, 2), ONE, stages=2) == pytest.approx(11.0)


def test_transfers_and_slow_stages_count() -> None:
    model = DeviceModel(per_wave=0.0, per_token=1.0, per_pair=0.0, transfer_per_token=0.5, factors=(1.0, 2.0))
    assert ideal_seconds([forward(0, 0, tokens=2)], ["a"], closed(1, 1), model, stages=2) == pytest.approx(
        7.0
    )


def test_other_requests_in_a_wave_are_left_out_but_take_time() -> None:
    waves = [forward(0, 0, rids=("a", "x"), tokens=2)]
    assert ideal_seconds(waves, ["a"], closed(1, 1), ONE, stages=1) == pytest.approx(4.0)


def test_a_request_without_a_wave_is_an_error() -> None:
    with pytest.raises(ValueError, match="no wave"):
        ideal_seconds([forward(0, 0)], ["a", "b"], closed(2, 2), ONE, stages=1)


def test_a_plan_that_no_closed_loop_can_have_made_is_an_error() -> None:
    waves = [forward(0, 0, rids=("b",)), forward(0, 0, rids=("a",))]
    with pytest.raises(ValueError, match="can't have been sent"):
        ideal_seconds(waves, ["a", "b"], closed(2, 1), ONE, stages=1)


# --- the run queue --------------------------------------------------------------------------------------------------


def test_waits_of_main_threads_and_of_whole_processes(tmp_path: Path) -> None:
    for thread, text in ((7, "2000000000 500000000 9"), (8, "1000000000 250000000 3")):
        folder = tmp_path / "7" / "task" / str(thread)
        folder.mkdir(parents=True)
        (folder / "schedstat").write_text(text + "\n")
    assert run_queue.main_threads([7], tmp_path) == [Spent(2.0, 0.5)]
    assert run_queue.processes([7], tmp_path) == [Spent(3.0, 0.75)]
    assert Spent(3.0, 0.75).since(Spent(1.0, 0.5)) == Spent(2.0, 0.25)
