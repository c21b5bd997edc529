"""WavePP against the best stock arm of a cell: which repeats are paired, and what the simulator is asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from unit.paced.made_records import record

from benchmark.paced.arms import ARMS
from benchmark.paced.cells import TEN, cells_named
from benchmark.paced.device_model import DeviceModel
from benchmark.paced.measure import Setting
from benchmark.paced.ratios import ratio_table, ratios, write_ratios
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
    assert one.left_out == "stock-m4 (rejected, 1,000 tok/s), stock-2p (other repeats, 900 tok/s)"


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


def test_what_can_be_simulated() -> None:
    names = {name for name in ARMS if simulated(record(arm=name), SETTING, rounds=2) is not None}
    assert names == set(ARMS) - {"wavepp-inline", "wavepp-two-walk"}
    for cell in cells_named(" ".join(TEN)):
        assert simulated(record(workload=cell.kind, concurrency=cell.concurrency), SETTING, rounds=2)
    assert simulated(record(workload="survival@0.5", concurrency=0), SETTING, rounds=2) is None
    assert simulated(record(workload="trace-toolagent", concurrency=8), SETTING, rounds=2) is None
