"""A run of many measurements: what is measured again, the order of arms, and the figures of a measurement."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from unit.paced.made_records import record

from benchmark.configuration import ServerConfig
from benchmark.paced import measure as measure_module
from benchmark.paced import paced_server
from benchmark.paced import run as run_module
from benchmark.paced.arms import ARMS, LADDER, STOCK_DEFAULT_CHUNK, arms_named
from benchmark.paced.cells import cells_named
from benchmark.paced.clients import Served
from benchmark.paced.device_model import DeviceModel
from benchmark.paced.measure import Setting, record_of
from benchmark.paced.paced_server import STARTS, NoFitError, PacedConfig, PacedServer
from benchmark.paced.recorder import Forward
from benchmark.paced.records import Record, Records, RecordsError
from benchmark.paced.run import Run
from benchmark.paced.run_queue import Spent
from benchmark.paced.tables import table
from benchmark.servers import Server, ServerError

SETTING = Setting(
    pp=2,
    wave_tokens=4096,
    shorten=4,
    model=DeviceModel(per_wave=1.0, per_token=1e-12, per_pair=0.0),
    scale=1.0,
    digest="d",
)
BESIDE = ("client", "configuration", "guard", "interleaved", "models", "servers", "workloads")


# --- resumption -----------------------------------------------------------------------------------------------------


class FakeServer:
    """Stands for a paced server."""

    PROCESSES: ClassVar[dict[int, str]] = {7: "launcher", 8: "scheduler_PP0"}
    started: ClassVar[list[str]] = []
    stopped: ClassVar[list[str]] = []
    unfit: ClassVar[dict[str, int]] = {}
    """How many more starts of an arm fail to fit its dynamic chunks."""

    def __init__(self, config: Any, folder: Path) -> None:
        self.name = config.name
        self.traces = folder

    def start(self, progress: Any) -> None:
        FakeServer.started.append(self.name)
        if FakeServer.unfit.get(self.name, 0):
            FakeServer.unfit[self.name] -= 1
            raise NoFitError(self.name)

    def processes(self) -> dict[int, str]:
        return self.PROCESSES

    def stop(self) -> None:
        FakeServer.stopped.append(self.name)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int, int]]:
    """What is measured, as (cell, arm, repeat, attempt); the servers are fake."""
    calls: list[tuple[str, str, int, int]] = []

    def measure(_: Any, load: Any, __: Any, *, arm: str, repeat: int, attempt: int, progress: Any) -> Record:
        calls.append((load.name, arm, repeat, attempt))
        return record(workload=load.kind, concurrency=load.concurrency, arm=arm, repeat=repeat)

    @contextmanager
    def frozen(servers: Any) -> Iterator[None]:
        yield

    monkeypatch.setattr(paced_server, "PacedServer", FakeServer)
    monkeypatch.setattr(paced_server, "see_room", lambda pids: None)
    monkeypatch.setattr(run_module, "measure", measure)
    monkeypatch.setattr(run_module, "frozen", frozen)
    FakeServer.started, FakeServer.stopped, FakeServer.unfit = [], [], {}
    return calls


def run(path: Path, arms: str = "stock wavepp", repeats: int = 2, together: int = 5) -> None:
    whole = Run(arms_named(arms), SETTING, Records(path), path.parent, pool=1 << 20, together=together)
    whole.run(cells_named("reuse131:4 cold65:1"), repeats)


def test_arms_take_turns_and_the_order_turns_round(
    tmp_path: Path, measured: list[tuple[str, str, int, int]]
) -> None:
    run(tmp_path / "r.json")
    assert [call[:3] for call in measured[:4]] == [
        ("reuse131:4", "stock", 0),
        ("reuse131:4", "wavepp", 0),
        ("reuse131:4", "wavepp", 1),
        ("reuse131:4", "stock", 1),
    ]
    assert len(measured) == 8 and FakeServer.started == ["stock", "wavepp"]


def test_more_arms_than_fit_are_measured_in_groups(
    tmp_path: Path, measured: list[tuple[str, str, int, int]]
) -> None:
    run(tmp_path / "r.json", arms="stock stock-2p stock-stream wavepp stock-dynamic", repeats=1, together=2)
    assert FakeServer.started == ["stock", "stock-2p", "stock-stream", "wavepp", "stock-dynamic"]
    assert [call[:2] for call in measured] == [
        (cell, arm)
        for group in (["stock"], ["stock-2p", "stock-stream"], ["wavepp", "stock-dynamic"])
        for cell in ("reuse131:4", "cold65:1")
        for arm in group
    ]
    assert FakeServer.stopped == ["stock", "stock-stream", "stock-2p", "stock-dynamic", "wavepp"]


def test_a_server_that_finds_no_fit_for_its_dynamic_chunks_starts_again(
    tmp_path: Path, measured: list[tuple[str, str, int, int]]
) -> None:
    FakeServer.unfit["stock-dynamic"] = STARTS - 1
    run(tmp_path / "r.json", arms="stock-dynamic wavepp", repeats=1)
    assert FakeServer.started == ["stock-dynamic"] * STARTS + ["wavepp"]
    FakeServer.unfit["stock-dynamic"] = STARTS
    with pytest.raises(NoFitError):
        run(tmp_path / "other.json", arms="stock-dynamic wavepp", repeats=1)


def test_no_fit_is_read_in_the_servers_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paced_server.PacedConfig, "server_config", lambda self, folder: ServerConfig())
    monkeypatch.setattr(Server, "start", lambda self, progress: self.log.write_bytes(said))
    server = PacedServer(PacedConfig(name="stock-dynamic"), tmp_path)
    said = b"[PP Dynamic Chunk] [PP0] Predictor ready (quadratic). Target latency: 306.24ms"
    server.start()
    said = b"[PP Dynamic Chunk] Failed to fit the chunk-size predictor: ValueError('a=-3.91e-07')"
    with pytest.raises(NoFitError, match="stock-dynamic is not what it says"):
        server.start()


def test_records_say_which_arms_took_turns(tmp_path: Path, measured: list[tuple[str, str, int, int]]) -> None:
    run(tmp_path / "r.json", arms="stock stock-2p stock-stream wavepp", repeats=1, together=2)
    groups = {each.arm: each.group for each in Records(tmp_path / "r.json").of("d")}
    assert groups["stock"] == groups["stock-2p"] != groups["stock-stream"] == groups["wavepp"]
    assert groups["wavepp"].startswith("stock-stream wavepp, 20")


def test_an_interrupted_run_goes_on_where_it_was(
    tmp_path: Path, measured: list[tuple[str, str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_module.measure

    def interrupted(*args: Any, **kwargs: Any) -> Record:
        if len(measured) == 3:
            raise KeyboardInterrupt
        return whole(*args, **kwargs)

    monkeypatch.setattr(run_module, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "r.json")
    done = list(measured)
    monkeypatch.setattr(run_module, "measure", whole)
    run(tmp_path / "r.json")
    assert len(measured) == 8 and not set(measured[3:]) & set(done)
    measured.clear()
    FakeServer.started = []
    run(tmp_path / "r.json")
    assert measured == [] and FakeServer.started == []


def test_a_rejected_measurement_is_tried_again_at_once_and_in_the_next_run(
    tmp_path: Path, measured: list[tuple[str, str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_module.measure

    def crowded(*args: Any, **kwargs: Any) -> Record:
        found = whole(*args, **kwargs)
        values = {name: getattr(found, name) for name in Record.__struct_fields__}
        return Record(**{**values, "rejected": True, "reason": "crowded"})

    monkeypatch.setattr(run_module, "measure", crowded)
    run(tmp_path / "r.json", arms="stock", repeats=1)
    assert [call[3] for call in measured] == [0, 1, 0, 1]
    monkeypatch.setattr(run_module, "measure", whole)
    measured.clear()
    run(tmp_path / "r.json", arms="stock", repeats=1)
    assert len(measured) == 2
    assert all(not each.rejected for each in Records(tmp_path / "r.json").of("d"))


def test_figures_of_other_settings_are_not_taken_for_these(tmp_path: Path) -> None:
    records = Records(tmp_path / "r.json")
    records.add(record(settings="other"))
    assert records.find("reuse131", 4, "stock", 0, "d") is None
    records.add(record())
    again = Records(tmp_path / "r.json")
    assert again.find("reuse131", 4, "stock", 0, "d") == record()
    assert len(again.of("d")) == 1 and len(again.all()) == 2


def test_what_is_measured_again_is_the_last_of_its_file(tmp_path: Path) -> None:
    records = Records(tmp_path / "r.json")
    for each in (record(settings="a"), record(settings="b"), record(settings="a", tok_s=7.0)):
        records.add(each)
    for kept in (records, Records(tmp_path / "r.json")):
        assert [(each.settings, each.tok_s) for each in kept.all()] == [("b", 1000.0), ("a", 7.0)]


def test_a_record_holds_its_device_and_one_that_lacks_it_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    Records(path).add(record(model=DeviceModel(factors=(1.0, 1.15))))
    (kept,) = Records(path).all()
    assert kept.model == DeviceModel(factors=(1.0, 1.15))
    (old,) = json.loads(path.read_text())
    del old["model"], old["group"]
    path.write_text(json.dumps([old]))
    (kept,) = Records(path).all()
    assert kept.model is None and kept.group == ""


@pytest.mark.parametrize("text", ['[{"arm": "stock"}]', "[", '{"arm": 1}'])
def test_a_file_of_another_version_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(RecordsError, match=r"r\.json holds no records of this version"):
        Records(path)


def test_figures_depend_on_the_sources_that_measure_and_not_on_those_that_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "CHECKOUT", tmp_path)
    folder = tmp_path / "benchmark" / "paced"
    folder.mkdir(parents=True)
    digests = []
    for name in BESIDE:
        (tmp_path / "benchmark" / f"{name}.py").touch()
    for name in (
        "measure",
        "pictures",
        "memory",
        "options",
        "argument_types",
        "client_comparison",
        "measure",
    ):
        with (folder / f"{name}.py").open("a") as file:
            file.write("# changed\n")
        digests.append(run_module.digest_of("settings"))
    assert len(set(digests[:-1])) == 1 and digests[-1] != digests[0]
    assert run_module.digest_of("other settings") != digests[-1]
    for name in BESIDE:
        digests.append(run_module.digest_of("settings"))
        (tmp_path / "benchmark" / f"{name}.py").write_text("# flags, environment, freezing or tokens\n")
        assert run_module.digest_of("settings") != digests[-1], name


def test_figures_depend_on_the_installed_sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    before = run_module.digest_of("settings")
    assert run_module.digest_of("settings") == before
    monkeypatch.setattr(run_module, "version", {"sglang": "0.5.24"}.__getitem__)
    assert run_module.digest_of("settings") != before


# --- room -----------------------------------------------------------------------------------------------------------


def test_a_second_server_is_started_only_where_there_is_room(
    tmp_path: Path, measured: list[tuple[str, str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[int, str]] = []

    def see_room(pids: dict[int, str]) -> None:
        asked.append(pids)
        raise ServerError("no room")

    monkeypatch.setattr(paced_server, "see_room", see_room)
    with pytest.raises(ServerError, match="no room"):
        run(tmp_path / "r.json")
    # All processes of the first server count, and not its ranks only; it is stopped.
    assert FakeServer.started == ["stock"] and asked == [FakeServer.PROCESSES] and measured == []
    assert FakeServer.stopped == ["stock"]


# --- figures --------------------------------------------------------------------------------------------------------


def forwards(stage: int, rids: list[str]) -> list[Forward]:
    return [
        Forward(
            stage=stage,
            number=number,
            launched=0.0,
            ready=None,
            start=float(stage + number),
            end=float(stage + number + 1),
            tokens=[64],
            prefixes=[0],
            rids=[rid],
            decode=False,
            process_cpu=0.0,
            thread_cpu=0.0,
        )
        for number, rid in enumerate(rids)
    ]


def measured_record(*, waiting: float) -> Record:
    (cell,) = cells_named("reuse131:1")
    workload = cell.workload(shorten=4)
    rids = [f"r{number}" for number in range(len(workload.jobs))]
    served = [
        Served(
            rid=rid,
            tokens=32768,
            reusable=100,
            cached=80 if n else 79,
            due=2.0 * n,
            sent=2.0 * n,
            answered=at,
        )
        for n, (rid, at) in enumerate(zip(rids, range(2, 99, 2), strict=False))
    ]
    return record_of(
        cell,
        workload,
        SETTING,
        scale=1.0,
        arm="wavepp",
        repeat=0,
        busy=0.0,
        served=served,
        forwards=[forwards(stage, rids) for stage in range(2)],
        threads=[Spent(0.1, 0.0), Spent(0.1, waiting)],
        processes=[Spent(3.0, 0.0), Spent(3.0, 0.0)],
    )


def test_figures_of_a_measurement() -> None:
    found = measured_record(waiting=0.0)
    assert found.tok_s == pytest.approx(32768 / 2) and found.p50_s == 2.0 and found.p95_s == 2.0
    # One client, waves of a second, two stages: an ideal pipeline takes as long.
    assert found.plan_tok_s == pytest.approx(found.tok_s)
    assert found.bound_tok_s is not None and found.bound_tok_s >= found.tok_s * 0.999
    assert found.good_hits == pytest.approx(5 / 6)
    assert found.hosts == pytest.approx(0.5)
    assert not found.rejected and found.reason is None
    assert found.model == SETTING.model


def test_a_stage_that_waited_for_a_core_has_its_figures_rejected() -> None:
    # Six waves of a second: 0.29 s is below, 0.31 s above 5% of them.
    assert not measured_record(waiting=0.29).rejected
    found = measured_record(waiting=0.31)
    assert found.rejected and found.reason is not None and "stage 1" in found.reason


@pytest.mark.parametrize(("asked", "played"), [(None, 0.25), (1.0, 1.0)])
def test_each_cell_has_its_scale_unless_one_was_asked_for(
    asked: float | None, played: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cell,) = cells_named("reuse131:1")

    class Played(Exception):
        pass

    def play(_: Any, __: Any, ___: Any, scale: float, ____: Any) -> Any:
        raise Played(scale)

    monkeypatch.setattr(measure_module, "play", play)
    with pytest.raises(Played) as found:
        measure_module.measure(None, cell, replace(SETTING, scale=asked), arm="stock", repeat=0)  # type: ignore[arg-type]
    assert found.value.args == (played,)


def test_the_table_shows_medians_of_what_may_be_used() -> None:
    group = [record(repeat=n, tok_s=tok_s) for n, tok_s in enumerate((1000.0, 3000.0, 2000.0))]
    text = table([*group, record(repeat=3, tok_s=9.0, rejected=True, reason="crowded")])
    assert "2,000 (1,000-3,000)" in text and "1 of 4" in text


# --- arms ---------------------------------------------------------------------------------------------------------


def test_arms_differ_in_what_they_say() -> None:
    configs = {
        name: arm.config(pp=8, wave_tokens=4096, device=DeviceModel(), pool=1 << 20)
        for name, arm in ARMS.items()
    }
    assert configs["stock"].options == () and not configs["stock"].wavepp
    shorter = ARMS["stock"].config(pp=8, wave_tokens=4096, device=DeviceModel(), pool=1 << 20, shorten=4)
    assert 4 * shorter.context == configs["stock"].context
    assert configs["stock-2p"].options == ("--pp-async-batch-depth", "8")
    assert configs["stock-2p-stream"].device.own_stream and not configs["stock-2p"].device.own_stream
    assert configs["stock-m4"].chunk == 1024
    assert ("SGLANG_PP_SKIP_PURE_CHUNKED_OUTPUT_COMM", "1") in configs["stock-2p-stream-skip"].environment
    assert "--enable-dynamic-chunking" in configs["stock-dynamic"].options
    assert configs["wavepp"].options == ("--wavepp-admission", "lease", "--wavepp-planner", "mpu")
    assert configs["wavepp-inline"].options == ("--wavepp-admission", "inline", "--wavepp-planner", "static")
    assert all(name.startswith("stock") != config.wavepp for name, config in configs.items())
    assert set(LADDER) | set(STOCK_DEFAULT_CHUNK) <= set(ARMS)
    seen = {(c.options, c.environment, c.chunk, c.device.own_stream) for c in configs.values()}
    assert len(seen) == len(configs)


# --- what a play does to the cache ------------------------------------------------------------------------------------


class CachingServer:
    """Remembers what was asked of it."""

    def __init__(self, pool: int) -> None:
        self.primed: set[int] = set()
        self.filled = 0
        self.paced = SimpleNamespace(pool=pool)
        self.client = SimpleNamespace(base_url="", flush_cache=lambda: self.did.append("flush"))
        self.did: list[str] = []

    def set_scale(self, scale: float) -> None:
        self.did.append(f"scale {scale}")

    def ranks(self) -> list[int]:
        return []


def play(server: CachingServer, monkeypatch: pytest.MonkeyPatch, *, fresh: bool = False) -> list[str]:
    class Recording:
        def __init__(self, *_: Any) -> None:
            pass

        def closed_loop(self, todo: Any, phases: Any) -> list[Served]:
            server.did.append(f"play {todo[0].rid}")
            return []

    monkeypatch.setattr(measure_module, "Clients", Recording)
    (cell,) = cells_named("reuse131:1")
    script = replace(cell.script(shorten=64, tag="t", seed=0), fresh=fresh)
    measure_module.play(server, script, cell.workload(shorten=64), 0.5)  # type: ignore[arg-type]
    did, server.did = server.did, []
    return did


def test_prefixes_are_computed_once_and_at_the_speed_that_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = CachingServer(pool=1 << 20)
    assert play(server, monkeypatch) == ["scale 0.5", "play t-p1792-0", "play t-0"]
    assert play(server, monkeypatch) == ["scale 0.5", "play t-0"]


def test_a_full_cache_is_emptied_before_it_evicts_and_so_is_one_that_must_be_fresh(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (cell,) = cells_named("reuse131:1")
    script = cell.script(shorten=64, tag="t", seed=0)
    first, second = script.added(()), script.added({1792})
    assert second == 6 * (2048 - 1792) < first  # what is cached already adds nothing
    roomy = CachingServer(pool=2 * (first + second))
    server = CachingServer(pool=2 * (first + second) - 1)
    for each in (roomy, server):
        play(each, monkeypatch)
    assert play(roomy, monkeypatch) == ["scale 0.5", "play t-0"]
    assert play(server, monkeypatch) == ["scale 0.5", "flush", "play t-p1792-0", "play t-0"]
    assert server.filled == first
    server = CachingServer(pool=1 << 20)
    assert play(server, monkeypatch, fresh=True)[1] == "flush"
