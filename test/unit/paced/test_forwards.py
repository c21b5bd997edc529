"""The forward of the paced device, its transport, and the timers."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmark.paced import forwards, transport
from benchmark.paced.device_model import DeviceModel
from benchmark.paced.forwards import Pace
from benchmark.paced.recorder import Forward, Recorder, read
from benchmark.paced.streams import PacedEvent, PacedStream
from benchmark.paced.timers import Timers

MODEL = DeviceModel(per_wave=1.0, per_token=0.5, per_pair=0.0)


class Batch:
    """What a forward reads of a batch."""

    def __init__(self, tokens: list[int], prefixes: list[int]) -> None:
        self.forward_mode = SimpleNamespace(is_extend=lambda: True)
        self.extend_seq_lens_cpu, self.extend_prefix_lens_cpu = tokens, prefixes
        self.rids = [f"r{number}" for number in range(len(tokens))]
        self.batch_size = len(tokens)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> PacedStream:
    """The current stream."""
    stream = PacedStream()
    for module in (forwards, transport):
        monkeypatch.setattr(module, "current_stream", lambda: stream)
    return stream


def at_stage(monkeypatch: pytest.MonkeyPatch, stage: int, of: int = 2) -> None:
    from sglang.srt import runtime_context
    from sglang.srt.model_executor import model_runner  # noqa: F401  (takes seconds, which no forward should)

    monkeypatch.setattr(runtime_context, "get_parallel", lambda: SimpleNamespace(pp_rank=stage, pp_size=of))


def test_a_forward_queues_its_modelled_time_and_returns_at_once(
    stream: PacedStream, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    at_stage(monkeypatch, 0)
    pace = Pace(model=MODEL, recorder=Recorder(tmp_path))
    begun = time.monotonic()
    output = pace.forward(SimpleNamespace(forward_pass_id=0), Batch([3, 1], [64, 0]))
    assert time.monotonic() - begun < 1.0
    assert stream.tail == pytest.approx(begun + 3.0, abs=0.5)
    assert output.logits_output.tensors["hidden_states"].shape[0] == 4
    ((forward,),) = read(tmp_path)
    assert forward.tokens == [3, 1] and forward.prefixes == [64, 0] and forward.rids == ["r0", "r1"]
    assert forward.end - forward.start == pytest.approx(3.0) and forward.ready is None and not forward.decode


def test_the_last_stage_samples_a_token_of_every_request(
    stream: PacedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_stage(monkeypatch, 1)
    pace, batch = Pace(model=MODEL), Batch([3, 1], [64, 0])
    output = pace.forward(SimpleNamespace(forward_pass_id=0), batch)
    assert output.logits_output.next_token_logits.shape[0] == 2
    assert pace.sample(None, output.logits_output, batch).tolist() == [forwards.TOKEN] * 2


def test_the_scale_is_read_again_when_its_file_changes(
    stream: PacedStream, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    at_stage(monkeypatch, 0)
    file = tmp_path / "scale"
    file.write_text("1")
    pace = Pace(model=MODEL, scale_file=file)
    runner = SimpleNamespace(forward_pass_id=0)
    pace.forward(runner, Batch([2], [0]))
    first = stream.tail
    draft = tmp_path / "draft"
    draft.write_text("4")
    draft.rename(file)
    pace.forward(runner, Batch([2], [0]))
    assert stream.tail - first == pytest.approx(0.5)


@pytest.mark.parametrize("holds", [True, False])
def test_a_launch_keeps_other_threads_out_only_if_it_holds_the_lock(holds: bool) -> None:
    model = DeviceModel(launch=0.2, launch_holds_lock=holds)
    steps = 0
    stop = threading.Event()

    def count() -> None:
        nonlocal steps
        while not stop.is_set():
            steps += 1
            time.sleep(0.002)

    other = threading.Thread(target=count)
    other.start()
    before = steps
    forwards._launch(model)
    during = steps - before
    stop.set()
    other.join()
    assert during <= 2 if holds else during > 10


def hooks_of(pace: Pace, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def register(target: str, hook: Any, kind: Any) -> None:
        found[".".join(target.split(".")[-2:])] = hook

    monkeypatch.setattr(transport.HookRegistry, "register", register)
    transport.install(pace)
    return found


def test_stock_ready_times_travel_with_the_tensors(
    stream: PacedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = Pace(model=DeviceModel(transfer_per_token=0.5))
    hooks = hooks_of(pace, monkeypatch)
    wire: list[dict[str, Any]] = []
    send, receive = hooks["GroupCoordinator.send_tensor_dict"], hooks["GroupCoordinator.recv_tensor_dict"]
    stream.tail = 50.0
    send(lambda group, tensors: wire.append(tensors), None, {"hidden_states": torch.empty(4, 0)})
    stream.tail = 10.0
    received = receive(lambda group: wire[0], None)
    assert list(received) == ["hidden_states"]
    assert stream.tail == pace.ready == 52.0
    # An earlier one takes nothing back.
    stream.tail = 60.0
    receive(lambda group: {**received, transport.READY: 50.0}, None)
    assert stream.tail == 60.0


def test_wavepp_ready_times_travel_with_the_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_wavepp.plane.activation_link import Activation

    pace = Pace(model=DeviceModel(transfer_per_token=0.5))
    hooks = hooks_of(pace, monkeypatch)
    sent: dict[str, Any] = {}
    hooks["ActivationSender.send"](
        lambda link, wave, tensors, **more: sent.update(more), None, 1, {}, launched=PacedEvent.at(50.0)
    )
    assert sent["ready_time"] == 50.0
    arrived = Activation(wave=1, tensors={"hidden_states": torch.empty(4, 0)}, ready=None, ready_time=50.0)
    activation = hooks["ActivationReceiver.receive"](lambda link: arrived, None)
    assert activation.ready.ready_time == 52.0
    assert hooks["ActivationReceiver.receive"](lambda link: None, None) is None
    hooks["Activation.wait"](lambda activation: None, activation)
    assert pace.ready == 52.0


def test_wavepp_reports_a_result_behind_its_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_wavepp.executor.reporter import Sampled

    hooks = hooks_of(Pace(model=MODEL), monkeypatch)
    launched = PacedEvent.at(50.0)
    sampled = Sampled(wave=1, token_ids=torch.tensor([5]), logprobs=None, copied=None)
    changed = hooks["Stage._sampled"](lambda *_: sampled, None, None, None, launched)
    assert changed.copied is launched


def test_timers_count_the_thread_that_takes_them_only() -> None:
    timers = Timers()
    work = timers.around("work")

    def busy() -> None:
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass

    assert timers.take() == {}
    work(busy)
    other = threading.Thread(target=work, args=(busy,))
    other.start()
    other.join()
    taken = timers.take()
    calls, wall, cpu = taken["work"]
    assert calls == 1 and wall >= cpu >= 0.02
    assert timers.take() == {}


def test_a_trace_that_nobody_wrote_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path)


def test_stages_are_read_in_order(tmp_path: Path) -> None:
    recorder = [Recorder(tmp_path) for _ in range(3)]
    for stage in (2, 0, 1):
        recorder[stage].write(forward(stage))
    assert [[each.stage for each in stage] for stage in read(tmp_path)] == [[0], [1], [2]]


def forward(stage: int) -> Forward:
    return Forward(
        stage=stage,
        number=0,
        launched=0.0,
        ready=None,
        start=0.0,
        end=1.0,
        tokens=[1],
        prefixes=[0],
        rids=["a"],
        decode=False,
        process_cpu=0.0,
        thread_cpu=0.0,
    )
