"""Servers on a paced device: stock SGLang and WavePP each serve one tiny cell and leave a trace of every stage."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from e2e.pool import ServerPool

from benchmark.paced.analysis import rid_of
from benchmark.paced.arms import ARMS
from benchmark.paced.cells import Cell
from benchmark.paced.device_model import DeviceModel
from benchmark.paced.measure import Setting, measure
from benchmark.paced.paced_server import PacedServer
from benchmark.paced.recorder import read
from benchmark.paced.records import Records
from benchmark.servers import CHECKOUT

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


def _trace(path: Path) -> Path:
    """Six requests of a conversation that grows."""
    entries = [
        {
            "timestamp": 500 * number,
            "input_length": 1024 * (number + 1),
            "output_length": 1,
            "hash_ids": blocks,
        }
        for number in range(6)
        for blocks in [list(range(2 * (number + 1)))]
    ]
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


@pytest.mark.full
@pytest.mark.parametrize(
    ("what", "options"),
    [
        ("grid", "--cells phases --pp 4 --device uneven --arms stock-p-dynamic,wavepp"),
        ("grid", "--cells reuse131:2 --pp 3 --device launch-holds --arms stock-stream-skip,wavepp-static"),
        ("grid", "--cells mixed131:2 --pp 8 --device transfer --arms stock-dynamic,wavepp"),
        ("survival", "--rates 2 --requests 12 --pp 2 --arms stock,wavepp"),
        ("trace", "--concurrency 3 --requests 6 --pp 2 --device launch-frees --arms stock-2p,wavepp"),
        ("serving", "--cells cold65:2 --pp 2 --arms stock,wavepp"),
    ],
)
def test_the_command_plays_every_kind_of_load(
    what: str, options: str, tmp_path: Path, pool: ServerPool
) -> None:
    """Small: lengths divided by 32, one repeat, a fast device, so figures may be rejected, which ends with 1."""
    pool.stop_all()
    out = tmp_path / "paced.json"
    words = [what, *options.split(), "--shorten", "32", "--repeats", "1", "--scale", "2", "--out", str(out)]
    if what == "trace":
        words += ["--file", str(_trace(tmp_path / "talk.jsonl"))]
    done = subprocess.run(
        [sys.executable, "-m", "benchmark.paced", *words],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode in (0, 1) and "error:" not in said and "Traceback" not in said, said[-2000:]
    arms = options.rpartition("--arms ")[2].split(",")
    if what == "serving":
        assert out.exists() and all(arm in done.stdout for arm in arms)
        return
    records = Records(out).all()
    assert [record.arm for record in records] == arms and all(record.tok_s > 0 for record in records)
    assert {len(record.stages) for record in records} == {int(options.split("--pp ")[1].split()[0])}
    assert (tmp_path / "paced-throughput.svg").exists()
    assert isinstance(json.loads((tmp_path / "paced-ratios.json").read_text()), list)
