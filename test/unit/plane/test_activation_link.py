from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sglang_wavepp.plane.activation_link import ActivationReceiver, ActivationSender, DevicePath
from sglang_wavepp.plane.codec import CodecError, encode
from sglang_wavepp.plane.gate import Gate, new_secret
from sglang_wavepp.plane.messages import ActivationHeader, FlushCommand, TensorSpec
from sglang_wavepp.plane.pipe import PullEnd, PushEnd

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.int32, torch.int64, torch.uint8, torch.bool]


@pytest.fixture(scope="module")
def gate() -> Iterator[Gate]:
    gate = Gate(new_secret())
    yield gate
    gate.close()


@pytest.fixture(scope="module")
def link(gate: Gate) -> tuple[PushEnd, PullEnd]:
    socket, endpoint = gate.bound(zmq.PULL, "127.0.0.1")
    push = PushEnd(gate.connected(zmq.PUSH, endpoint))
    pull = PullEnd(socket, name="activation")
    push.hello()
    pull.await_hello(deadline=time.monotonic() + 5)
    return push, pull


def next_of(receiver: ActivationReceiver) -> Any:
    assert receiver.socket.poll(5000)
    return receiver.receive()


@given(
    shapes=st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=3),
    dtype=st.sampled_from(DTYPES),
    transposed=st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_tensors_arrive_as_they_were(
    link: tuple[PushEnd, PullEnd], shapes: list[list[int]], dtype: torch.dtype, transposed: bool
) -> None:
    sender, receiver = ActivationSender(link[0]), ActivationReceiver(link[1])
    tensors = {f"t{i}": torch.randint(0, 2, shape).to(dtype) for i, shape in enumerate(shapes)}
    if transposed:
        tensors = {name: tensor.mT if tensor.dim() > 1 else tensor for name, tensor in tensors.items()}
    sender.send(3, tensors, ready_time=2.5)
    got = next_of(receiver)
    assert (got.wave, got.ready_time, list(got.tensors)) == (3, 2.5, list(tensors))
    got.wait()
    for name, tensor in tensors.items():
        assert got.tensors[name].dtype == dtype
        assert torch.equal(got.tensors[name], tensor)
    assert receiver.receive() is None


def test_large_tensors_keep_their_order_and_may_be_dropped_by_the_sender_and_written_by_the_receiver(
    link: tuple[PushEnd, PullEnd],
) -> None:
    sender, receiver = ActivationSender(link[0]), ActivationReceiver(link[1])
    for wave in range(16):
        sender.send(
            wave, {"hidden_states": torch.full((256, 1024), float(wave)), "residual": torch.ones(256)}
        )
    for wave in range(16):
        got = next_of(receiver)
        hidden = got.tensors["hidden_states"]
        assert got.wave == wave
        assert bool((hidden == wave).all())
        hidden += 1
        assert hidden.data_ptr() % 64 == 0


@pytest.mark.parametrize(
    ("frames", "error"),
    [
        ([*encode(FlushCommand(seq=1))], "FlushCommand"),
        ([b"?"], "header"),
        ([b"", b"1234"], "needs 0 frames"),
        ([b"x"], "needs 1 frames"),
        ([b"x", b"123"], r"tensors\['x'\].*3 bytes"),
        ([b"y", b"1234"], r"tensors\['y'\].*dtype"),
    ],
)
def test_a_malformed_activation_names_what_is_wrong(
    link: tuple[PushEnd, PullEnd], frames: list[bytes], error: str
) -> None:
    specs = {
        b"": (),
        b"x": (TensorSpec(name="x", dtype="float32", shape=(1,)),),
        b"y": (TensorSpec(name="y", dtype="floaty", shape=(1,)),),
    }
    if frames[0] in specs:
        header = ActivationHeader(wave=1, tokens=1, tensors=specs[frames[0]])
        frames = [bytes(encode(header)[0]), *frames[1:]]
    link[0].send(frames)
    receiver = ActivationReceiver(link[1])
    with pytest.raises(CodecError, match=error):
        next_of(receiver)
    assert receiver.receive() is None


# --- device path --------------------------------------------------------------------------------------------


def _path(device: str, group: dist.ProcessGroup, peer: int) -> DevicePath:
    module = torch.get_device_module(device)
    return DevicePath(
        group=group,
        peer=peer,
        device=torch.device(device),
        comm_stream=module.Stream(),
        forward_stream=module.Stream(),
    )


def _stage(
    rank: int, device: str, backend: str, store: str, secret: bytes, addresses: Any, failures: Any
) -> None:
    try:
        if device == "cuda":
            torch.cuda.set_device(rank)
        dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=2)
        gate = Gate(secret)
        path = _path(device, dist.distributed_c10d._get_default_group(), 1 - rank)
        (_send if rank == 0 else _receive)(gate, path, addresses)
        gate.close()
        dist.destroy_process_group()
    except BaseException as error:
        failures.put(f"rank {rank}: {error!r}")
        raise


def _hidden(wave: int, device: torch.device) -> dict[str, torch.Tensor]:
    hidden = torch.full((64, 32), float(wave), device=device)
    return {"hidden_states": hidden.to(torch.bfloat16), "residual": hidden.T}


def _send(gate: Gate, path: DevicePath, addresses: Any) -> None:
    push = PushEnd(gate.connected(zmq.PUSH, addresses.get(timeout=60)))
    push.hello()
    sender = ActivationSender(push, path)
    sender.warm_up()
    module = torch.get_device_module(path.device)
    for wave in range(8):
        with module.stream(path.forward_stream):
            tensors = _hidden(wave, path.device)
            launched = module.Event()
            launched.record(path.forward_stream)
        sender.send(wave, tensors, launched=launched)
        del tensors
    deadline = time.monotonic() + 60
    while sender.under_way:
        assert time.monotonic() < deadline, "sends never end"
        time.sleep(0.01)


def _receive(gate: Gate, path: DevicePath, addresses: Any) -> None:
    socket, endpoint = gate.bound(zmq.PULL, "127.0.0.1")
    addresses.put(endpoint)
    pull = PullEnd(socket, name="activation")
    pull.await_hello(deadline=time.monotonic() + 60)
    receiver = ActivationReceiver(pull, path)
    receiver.warm_up(deadline=time.monotonic() + 60)
    module = torch.get_device_module(path.device)
    got = []
    for _ in range(8):
        assert socket.poll(60_000)
        activation = receiver.receive()
        assert activation is not None
        got.append(activation)
    for wave, activation in enumerate(got):
        activation.wait()
        with module.stream(path.forward_stream):
            for name, tensor in _hidden(wave, path.device).items():
                assert activation.wave == wave
                assert torch.equal(activation.tensors[name], tensor)


@pytest.mark.parametrize(
    ("device", "backend"),
    [
        pytest.param("cpu", "gloo", id="streams-without-a-device"),
        pytest.param(
            "cuda",
            "nccl",
            id="cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices for NCCL"),
            ],
        ),
    ],
)
def test_the_device_path_keeps_order_and_content(device: str, backend: str, tmp_path: Any) -> None:
    context: Any = multiprocessing.get_context("spawn" if device == "cuda" else "fork")
    addresses, failures = context.Queue(), context.Queue()
    stages = [
        context.Process(
            target=_stage,
            args=(rank, device, backend, str(tmp_path / "store"), b"secret", addresses, failures),
        )
        for rank in range(2)
    ]
    for stage in stages:
        stage.start()
    deadline = time.monotonic() + 120
    while any(stage.is_alive() for stage in stages) and failures.empty() and time.monotonic() < deadline:
        time.sleep(0.02)
    for stage in stages:
        stage.join(5)
    alive = [stage for stage in stages if stage.is_alive()]
    for stage in alive:
        stage.kill()
        stage.join()
    assert failures.empty(), failures.get()
    assert not alive
    assert [stage.exitcode for stage in stages] == [0, 0]
