"""Hidden states of a wave, from a rank to the rank of the next stage with the same TP rank.

On the CPU the tensors follow their header as raw frames, because gloo can't be polled and its sends wait for
the receiver. On CUDA the header only announces the wave: the tensors go through the stage group's own
transport (NCCL), sent on the communication stream once the forward has produced them, and received there when
the header arrives. Headers and tensors keep one order, which is the order of the waves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import zmq

from sglang_wavepp.plane.codec import CodecError, decode, encode
from sglang_wavepp.plane.messages import ActivationHeader, TensorSpec
from sglang_wavepp.plane.pipe import PullEnd, PushEnd
from sglang_wavepp.plane.tensor_bytes import bytes_of, dtype_name, dtype_named, tensor_from


@dataclass(frozen=True, slots=True)
class DevicePath:
    """How one end sends or receives tensors that lie on a device.

    Each end has a stream of its own: a send waits there for the forward that fills its tensors, and a receive behind
    it would wait too.

    Attributes:
        group: process group of one TP rank's stages, with a backend for the device.
        peer: the other end's rank in `group`.
        device: where the tensors lie.
        comm_stream: this end's transfers run on it and nothing else does.
        forward_stream: forwards that read received tensors run on it.
    """

    group: dist.ProcessGroup
    peer: int
    device: torch.device
    comm_stream: torch.Stream
    forward_stream: torch.Stream


@dataclass(frozen=True, slots=True)
class Activation:
    """A wave's tensors at the receiver.

    Attributes:
        tensors: by name, writable, owned by the receiver. Their content is valid after `wait()`.
        ready: end of the transfer on a device; None when the content is there already.
        ready_time: from the sender's header, see `ActivationHeader`.
    """

    wave: int
    tensors: dict[str, torch.Tensor]
    ready: torch.Event | None
    ready_time: float | None = None
    works: tuple[dist.Work, ...] = field(default=(), repr=False)  # dropping one before it ends is undefined

    def wait(self) -> None:
        """Wait until the content is there, letting other Python threads run."""
        if self.ready is not None:
            self.ready.synchronize()


class ActivationSender:
    """The earlier stage's end. Without a `path`, tensors must lie on the CPU and travel as frames."""

    def __init__(self, pipe: PushEnd, path: DevicePath | None = None) -> None:
        self._pipe = pipe
        self._path = path
        self._under_way: deque[tuple[torch.Event, list[dist.Work], list[torch.Tensor]]] = deque()

    def send(
        self,
        wave: int,
        tensors: Mapping[str, torch.Tensor],
        *,
        launched: torch.Event | None = None,
        ready_time: float | None = None,
    ) -> None:
        """Queue a wave; never waits for the receiver.

        The tensors are kept alive and read later, so nobody may write to them any more.

        Args:
            wave: number of the wave.
            tensors: by name; rows are tokens.
            launched: on a device, recorded after the forward that fills the tensors.
            ready_time: see `ActivationHeader`.
        """
        header = ActivationHeader(
            wave=wave,
            tokens=max((tensor.shape[0] for tensor in tensors.values() if tensor.dim()), default=0),
            tensors=tuple(
                TensorSpec(name=name, dtype=dtype_name(tensor.dtype), shape=tuple(tensor.shape))
                for name, tensor in tensors.items()
            ),
            ready_time=ready_time,
        )
        frames = encode(header)
        if self._path is None:
            self._pipe.send([*frames, *map(bytes_of, tensors.values())])
            return
        self._pipe.send(frames)
        self._forget_arrived()
        module = torch.get_device_module(self._path.device)
        with module.stream(self._path.comm_stream):
            if launched is not None:
                self._path.comm_stream.wait_event(launched)
            # A copy that this needs is made here, because before `launched` there is nothing to copy.
            whole = [tensor.detach().contiguous() for tensor in tensors.values()]
            works = [self._isend(self._path, tensor) for tensor in whole]
            for work in works:
                work.wait()  # orders the communication stream after the transfer; the host goes on
            sent = module.Event()
            sent.record(self._path.comm_stream)
        self._under_way.append((sent, works, [*whole, *tensors.values()]))

    def warm_up(self) -> None:
        """Open the device path, which may wait for the receiver's `warm_up`; the first wave then does not."""
        if self._path is not None:
            self.send(0, {"warm_up": torch.zeros(1, device=self._path.device)})

    @property
    def under_way(self) -> int:
        """Waves on the device path whose tensors are still being sent."""
        self._forget_arrived()
        return len(self._under_way)

    @staticmethod
    def _isend(path: DevicePath, tensor: torch.Tensor) -> dist.Work:
        work = dist.isend(tensor, group=path.group, group_dst=path.peer)
        assert work is not None, "a rank of the stage group always gets a handle"
        return work

    def _forget_arrived(self) -> None:
        while self._under_way and self._under_way[0][0].query():
            self._under_way.popleft()


class ActivationReceiver:
    """The later stage's end; `path` as at the sender, None for frames."""

    def __init__(self, pipe: PullEnd, path: DevicePath | None = None) -> None:
        self._pipe = pipe
        self._path = path

    @property
    def socket(self) -> zmq.Socket[bytes]:
        """For a poller; readable when a wave has been announced."""
        return self._pipe.socket

    def receive(self) -> Activation | None:
        """The next wave, None when none has been announced.

        On a device its tensors may still be on their way: `Activation.wait()` before the forward is enqueued.

        Raises:
            CodecError: the message is no activation.
        """
        try:
            first, *frames = self._pipe.socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        header = decode([first.bytes])
        if not isinstance(header, ActivationHeader):
            raise CodecError(f"activation link: got {type(header).__name__}")
        announced = len(header.tensors) if self._path is None else 0
        if len(frames) != announced:
            raise CodecError(
                f"activation link: wave {header.wave} needs {announced} frames, got {len(frames)}"
            )
        if self._path is not None:
            return self._from_device(header, self._path)
        tensors = {
            spec.name: _from_frame(spec, frame) for spec, frame in zip(header.tensors, frames, strict=True)
        }
        return Activation(wave=header.wave, tensors=tensors, ready=None, ready_time=header.ready_time)

    def warm_up(self, *, deadline: float) -> None:
        """Open the device path; waits for the sender's `warm_up` until `deadline` (`time.monotonic()`)."""
        if self._path is not None:
            self._pipe.await_message(deadline=deadline)
            activation = self.receive()
            assert activation is not None
            activation.wait()

    def _from_device(self, header: ActivationHeader, path: DevicePath) -> Activation:
        module = torch.get_device_module(path.device)
        tensors: dict[str, torch.Tensor] = {}
        works: list[dist.Work] = []
        with module.stream(path.comm_stream):
            for spec in header.tensors:
                tensor = torch.empty(spec.shape, dtype=_dtype(spec), device=path.device)
                work = dist.irecv(tensor, group=path.group, group_src=path.peer)
                assert work is not None, "a rank of the stage group always gets a handle"
                tensors[spec.name] = tensor
                works.append(work)
            for work in works:
                work.wait()  # orders the communication stream after the transfer; the host goes on
            ready: Any = module.Event()
            ready.record(path.comm_stream)
        if path.device.type != "cpu":
            for tensor in tensors.values():
                # Its memory belongs to the communication stream and would be reused there while a forward
                # reads it.
                tensor.record_stream(path.forward_stream)
        return Activation(
            wave=header.wave, tensors=tensors, ready=ready, ready_time=header.ready_time, works=tuple(works)
        )


def _from_frame(spec: TensorSpec, frame: zmq.Frame) -> torch.Tensor:
    # Copied into memory of torch's own: a frame starts at any address, and kernels may want aligned rows.
    try:
        return tensor_from(frame.buffer, dtype=spec.dtype, shape=spec.shape).clone()
    except ValueError as error:
        raise CodecError(f"activation link: tensors[{spec.name!r}]: {error}") from error


def _dtype(spec: TensorSpec) -> torch.dtype:
    try:
        return dtype_named(spec.dtype)
    except ValueError as error:
        raise CodecError(f"activation link: tensors[{spec.name!r}]: {error}") from error
