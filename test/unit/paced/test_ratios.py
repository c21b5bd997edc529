"""WavePP against the best stock arm of a cell: which repeats are paired, and what the simulator is asked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from unit.paced.made_records import record

from benchmark.paced.arms import ARMS
from benchmark.paced.cells import TEN, cells_named
from benchmark.paced.device_model import DeviceModel
from benchmark.paced.measure import Setting, machine
from benchmark.paced.ratios import ratio_table, ratios, unpaired, write_ratios
from benchmark.paced.simulated import simulated
from sglang_wavepp.simulate.arms import ARMS as SIMULATED
from sglang_wavepp.simulate.arms import Knobs
from sglang_wavepp.simulate.machine import Machine

SETTING = Setting(pp=8, wave_tokens=4096, shorten=4, model=DeviceModel().shortened(4), scale=None, digest="d")


def test_repeats_are_paired_with_the_stock_arm_that_is_best_in_the_cell() -> None:
    stock, double, ours = (90.0, 90.0, 900.0), (100.0, 200.0, 100.0), (300.0, 300.0, 200.0)
    measured = [
        *(record(arm="stock", repeat=n, tok_s=tok_s) for n, tok_s in enumerate(stock)),
        *(record(arm="stock-2p", repeat=n, tok_s=tok_s, p50_s=2.0) for n, tok_s in enumerate(double)),
        *(record(arm="wavepp", repeat=n, tok_s=tok_s, p95_s=1.0) for n, tok_s in enumerate(ours)),
    ]
    found = ratios(measured)
    (one,) = found
    assert (one.cell, one.arm, one.stock, one.pairs) == ("reuse131:4", "wavepp", "stock-2p", 3)
    assert (one.tok_s.low, one.tok_s.median, one.tok_s.high) == (1.5, 2.0, 3.0)
    assert one.p50.median == 0.5 and one.p95.median == 0.5
    assert one.simulated_tok_s is None and one.left_out is None
    assert ratio_table(found).endswith("  -")


def test_rejected_repeats_have_no_pair() -> None:
    measured = [
        record(arm="stock", repeat=0, tok_s=100.0),
        record(arm="stock", repeat=1, tok_s=100.0, rejected=True, reason="crowded"),
        record(arm="stock-2p", repeat=1, tok_s=500.0, rejected=True, reason="crowded"),
        record(arm="wavepp", repeat=0, tok_s=300.0),
        record(arm="wavepp", repeat=1, tok_s=900.0),
        record(arm="wavepp", workload="cold65", tok_s=900.0),
    ]
    (one,) = ratios(measured)
    assert (one.stock, one.pairs, one.tok_s.high) == ("stock", 1, 3.0)
    assert one.left_out == "stock-2p (rejected, 500 tok/s)"
    text = ratio_table([one])
    assert "best stock arm measured" in text and text.endswith("stock-2p (rejected, 500 tok/s)")
    assert ratios(measured[1:]) == []


def test_a_stock_arm_without_a_repeat_in_common_is_no_rival() -> None:
    measured = [
        record(arm="stock", repeat=0, tok_s=100.0),
        record(arm="stock-2p", repeat=2, tok_s=900.0),
        record(arm="wavepp", repeat=0, tok_s=200.0),
    ]
    assert [(each.stock, each.tok_s.median) for each in ratios(measured)] == [("stock", 2.0)]


def test_stock_arms_are_ranked_by_the_repeats_that_are_paired() -> None:
    # WavePP lacks the repeats that make stock-2p the better arm over all.
    measured = [
        *(record(arm="stock", repeat=n, tok_s=200.0) for n in range(3)),
        *(record(arm="stock-2p", repeat=n, tok_s=tok_s) for n, tok_s in enumerate((100.0, 900.0, 900.0))),
        record(arm="stock-m4", repeat=0, tok_s=1000.0, rejected=True, reason="crowded"),
        record(arm="stock-m8", repeat=0, tok_s=150.0, rejected=True, reason="crowded"),
        record(arm="wavepp", repeat=0, tok_s=400.0),
    ]
    (one,) = ratios(measured)
    assert (one.stock, one.pairs, one.tok_s.median) == ("stock", 1, 2.0)
    # stock-m8 was slower, but nothing of it may be used.
    assert one.left_out == (
        "stock-m4 (rejected, 1,000 tok/s), stock-2p (other repeats, 900 tok/s), stock-m8 (rejected, 150 tok/s)"
    )


def test_an_arm_of_which_a_repeat_was_rejected_is_left_out_only_where_it_was_faster() -> None:
    measured = [
        record(arm="stock", tok_s=200.0),
        record(arm="stock-2p", repeat=0, tok_s=100.0),
        record(arm="stock-2p", repeat=1, tok_s=100.0, rejected=True, reason="crowded"),
        record(arm="wavepp", tok_s=400.0),
    ]
    (one,) = ratios(measured)
    assert (one.stock, one.left_out) == ("stock", None)


def test_a_cell_whose_stock_arms_were_all_rejected_is_named() -> None:
    measured = [
        record(arm="stock", rejected=True, reason="crowded"),
        record(arm="wavepp"),
        record(arm="stock", workload="cold65"),
        record(arm="wavepp", workload="cold65"),
        record(arm="wavepp", workload="cold131"),  # beside no stock arm there is none to expect
    ]
    assert unpaired(measured) == ["reuse131:4 wavepp"]
    text = ratio_table(ratios(measured), unpaired(measured))
    assert text.endswith("No ratio, since no repeat of both may be used: reuse131:4 wavepp")
    assert "reuse131:4 wavepp" in ratio_table([], unpaired(measured))


def test_a_repeat_of_another_run_counts_and_is_said_to_be_not_in_turn() -> None:
    measured = [
        record(arm="stock", repeat=0, tok_s=100.0, group="before"),
        *(record(arm="stock", repeat=n, tok_s=200.0, group="a") for n in (1, 2)),
        *(record(arm="wavepp", repeat=n, tok_s=400.0, group="a") for n in range(3)),
    ]
    (one,) = ratios(measured)
    assert (one.pairs, one.not_in_turn, one.tok_s.median, one.tok_s.high) == (3, 1, 2.0, 4.0)
    assert "3, 1 not in turn" in ratio_table([one])
    assert "not in turn" not in ratio_table(ratios(measured[1:]))


def test_the_best_stock_arm_of_another_group_is_the_rival_and_said_to_be_not_in_turn() -> None:
    measured = [
        record(arm="stock-2p", tok_s=300.0, group="a"),
        record(arm="stock", tok_s=200.0, group="b"),
        record(arm="wavepp", tok_s=600.0, group="b"),
    ]
    (one,) = ratios(measured)
    assert (one.stock, one.tok_s.median, one.not_in_turn) == ("stock-2p", 2.0, 1)
    assert "1, 1 not in turn" in ratio_table([one])


def test_the_table_and_the_file_hold_every_ratio(tmp_path: Path) -> None:
    measured = [record(arm="stock", tok_s=100.0), record(arm="wavepp", tok_s=221.0)]
    found = ratios(measured, lambda each: simulated(each, SETTING, rounds=2))
    text = ratio_table(found)
    assert "2.21 (2.21-2.21)" in text and "reuse131:4" in text
    write_ratios(found, tmp_path / "r.json")
    (written,) = json.loads((tmp_path / "r.json").read_text())
    assert written["tok_s"]["median"] == pytest.approx(2.21)
    assert written["simulated_tok_s"] == found[0].simulated_tok_s is not None
    assert "no ratios" in ratio_table(ratios([]))


def test_the_simulator_plays_what_was_measured_at_its_speed() -> None:
    # The full-length cell on the full-length machine has the same waves and times, but for pages and the smallest wave.
    (cell,) = cells_named("cold131:8")
    whole = SIMULATED["stock-2p-stream"].run(Machine.even(8), cell.workload(), Knobs())
    asked = record(arm="stock-2p-stream", workload="cold131", concurrency=8, scale=1.0)
    found = simulated(asked, SETTING, rounds=2)
    assert found is not None and found.p50_s == pytest.approx(whole.p50_s, rel=0.02)
    slow = record(arm="stock-2p-stream", workload="cold131", concurrency=8, scale=0.5)
    half = simulated(slow, SETTING, rounds=2)
    assert half is not None and half.p50_s == pytest.approx(2 * found.p50_s, rel=0.02)


@pytest.mark.parametrize(("shorten", "smallest"), [(4, 128), (1, 512), (64, 64)])
def test_the_simulators_smallest_wave_is_the_servers(shorten: int, smallest: int) -> None:
    model = DeviceModel().shortened(shorten)
    setting = replace(SETTING, shorten=shorten, wave_tokens=16_384 // shorten, model=model)
    (cell,) = cells_named("reuse131:1", rounds=1)
    asked = record(arm="wavepp", concurrency=1, shorten=shorten)
    found = simulated(asked, setting, rounds=1)
    same, larger = (
        SIMULATED["wavepp"].run(
            machine(setting, model), cell.workload(shorten=shorten), Knobs(min_tokens=tokens)
        )
        for tokens in (smallest, 4 * smallest)
    )
    # One request's suffix is cut as small as it may be.
    assert found is not None and found.waves == same.waves != larger.waves


def test_what_can_be_simulated() -> None:
    names = {name for name in ARMS if simulated(record(arm=name), SETTING, rounds=2) is not None}
    assert names == set(ARMS) - {"wavepp-inline", "wavepp-two-walk"}
    for cell in cells_named(" ".join(TEN)):
        assert simulated(record(workload=cell.kind, concurrency=cell.concurrency), SETTING, rounds=2)
    assert simulated(record(workload="survival@0.5", concurrency=0), SETTING, rounds=2) is None
    assert simulated(record(workload="trace-toolagent", concurrency=8), SETTING, rounds=2) is None
