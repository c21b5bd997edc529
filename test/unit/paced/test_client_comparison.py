"""Both clients on the same servers: whose turn it is, how servers are started, and what waiting counts."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from benchmark import interleaved
from benchmark.paced import client_comparison, paced_server
from benchmark.paced.arms import arms_named
from benchmark.paced.cells import cells_named
from benchmark.paced.client_comparison import compare_clients
from benchmark.paced.clients import Served
from benchmark.paced.device_model import DeviceModel
from benchmark.paced.measure import Setting
from benchmark.paced.played import BENCH, OURS
from benchmark.paced.recorder import Forward, Recorder
from benchmark.paced.run_queue import Spent
from benchmark.servers import ServerError
from benchmark.serving import BenchResult

SETTING = Setting(pp=2, wave_tokens=4096, shorten=64, model=DeviceModel(), scale=1.0, digest="d")


class FakeServer:
    """Stands for a paced server of two stages; the second one computes nothing."""

    started: ClassVar[list[str]] = []

    def __init__(self, config: Any, folder: Path) -> None:
        self.paced = config
        self.traces = folder / config.name
        self.traces.mkdir(parents=True)
        self.client = SimpleNamespace(flush_cache=lambda: None)
        for stage, start in ((0, 100.0), (1, -9.0)):
            Recorder(self.traces).write(
                Forward(
                    stage=stage, number=0, launched=start, ready=None, start=start, end=start + 2, tokens=[1],
                    prefixes=[0], rids=["r"], decode=False, process_cpu=0.0, thread_cpu=0.0,
                )
            )  # fmt: skip

    def start(self, progress: Any) -> None:
        FakeServer.started.append(self.paced.name)

    def processes(self) -> dict[int, str]:
        return {7: "launcher"}

    def ranks(self) -> list[int]:
        return [8, 9]

    def set_scale(self, scale: float) -> None:
        pass

    def stop(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _no_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeServer.started = []
    seconds = iter(range(99))

    def play(*_: Any) -> Any:
        answer = Served(rid="r", tokens=1, reusable=0, cached=0, due=0.0, sent=0.0, answered=2.0)
        return [answer], [], []

    def waited(_: Any) -> list[Spent]:
        now = float(next(seconds))
        return [Spent(0.0, now), Spent(0.0, now)]

    monkeypatch.setattr(paced_server, "PacedServer", FakeServer)
    monkeypatch.setattr(paced_server, "see_room", lambda pids: None)
    for module in (client_comparison, interleaved):
        monkeypatch.setattr(module, "frozen", lambda servers: nullcontext())
    monkeypatch.setattr(client_comparison, "now", lambda: 0.0)
    monkeypatch.setattr(client_comparison, "play", play)
    monkeypatch.setattr(client_comparison.run_queue, "main_threads", waited)
    result = BenchResult(
        completed=6,
        seconds=1.0,
        input_tokens_per_second=1.0,
        output_tokens_per_second=1.0,
        completion_p50_ms=1.0,
        completion_p95_ms=1.0,
        input_tokens=6,
        cached_tokens=0,
    )
    monkeypatch.setattr(client_comparison, "run_bench", lambda *_, **__: result)


def compare(out: Path, *, repeats: int = 1) -> list[dict[str, Any]]:
    arms, loads = arms_named("stock wavepp"), cells_named("cold65:1")
    compare_clients(arms, loads, SETTING, out, pool=1 << 20, repeats=repeats)
    found: list[dict[str, Any]] = json.loads(out.read_text())
    return found


def test_clients_and_arms_take_turns(tmp_path: Path) -> None:
    played = compare(tmp_path / "out.json", repeats=2)
    assert [(each["arm"], each["client"]) for each in played] == [
        *(("stock", OURS), ("stock", BENCH), ("wavepp", OURS), ("wavepp", BENCH)),
        *(("wavepp", BENCH), ("wavepp", OURS), ("stock", BENCH), ("stock", OURS)),
    ]


def test_a_stage_that_computed_nothing_has_no_share_of_waiting(tmp_path: Path) -> None:
    # The first stage computed for two seconds and waited for one; the second one computed before this play.
    assert [each["waited"] for each in compare(tmp_path / "out.json")] == [0.5] * 4


def test_the_client_is_named_while_it_plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    monkeypatch.setattr(client_comparison.Progress, "step", lambda _, text: steps.append(text))
    compare(tmp_path / "out.json")
    assert steps[2:4] == [f"cold65:1 stock (1 of 1), {client}" for client in (OURS, BENCH)]


def test_a_second_server_is_started_only_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def see_room(pids: Any) -> None:
        raise ServerError("no room")

    monkeypatch.setattr(paced_server, "see_room", see_room)
    with pytest.raises(ServerError, match="no room"):
        compare(tmp_path / "out.json")
    assert FakeServer.started == ["stock"]
