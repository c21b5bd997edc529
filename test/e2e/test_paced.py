"""Servers on a paced device: stock SGLang and WavePP each serve one tiny cell and leave a trace of every stage."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmark.paced.analysis import rid_of
from benchmark.paced.arms import ARMS
from benchmark.paced.cells import Cell
from benchmark.paced.device_model import DeviceModel
from benchmark.paced.measure import Setting, measure
from benchmark.paced.paced_server import PacedServer
from benchmark.paced.recorder import read

WAVE_S = 0.05
# A wave takes as long as 64 tokens of context-free work, whatever the machine does meanwhile.
MODEL = DeviceModel(per_wave=WAVE_S, per_token=1e-6, per_pair=0.0)
SETTING = Setting(pp=2, wave_tokens=512, shorten=64, model=MODEL, scale=1.0, digest="test")


@pytest.mark.parametrize("name", ["stock-2p-stream", "wavepp"])
def test_a_cell_on_a_paced_server(name: str, tmp_path: Path) -> None:
    config = ARMS[name].config(pp=2, wave_tokens=SETTING.wave_tokens, device=MODEL, pool=65_536)
    with PacedServer(config, tmp_path) as server:
        found = measure(server, Cell("reuse131", 2), SETTING, arm=name, repeat=0)
    assert found.requests == 6 and found.tok_s > 0
    assert found.good_hits == 1.0
    assert len(found.stages) == 2
    assert found.plan_tok_s is not None and found.tok_s < found.plan_tok_s * 1.01
    # Each request passes both stages, one after the other.
    assert found.p50_s > 2 * WAVE_S
    first, last = read(server.traces)
    assert [(f.tokens, *map(rid_of, f.rids)) for f in first] == [
        (f.tokens, *map(rid_of, f.rids)) for f in last
    ]
    for before, after in zip(first, last, strict=True):
        assert after.ready is not None and after.ready >= before.end
        assert after.start >= before.end
        assert after.launched <= after.start + 1e-6
    assert all(stage.host_ms > 0 for stage in found.stages)
