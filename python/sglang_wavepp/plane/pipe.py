"""One-way ordered connection between two ranks."""

from __future__ import annotations

import time
from collections.abc import Sequence

import zmq

from sglang_wavepp.plane.codec import Frame
from sglang_wavepp.plane.star import HELLO, LinkError


class PushEnd:
    """The sending end: a connected PUSH socket."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket

    def hello(self) -> None:
        """Let the other end see that the connection stands."""
        self._socket.send(HELLO, zmq.NOBLOCK)

    def send(self, frames: Sequence[Frame]) -> None:
        """Queue a message; never waits. Large frames are read from their own memory when their turn comes."""
        self._socket.send_multipart(frames, zmq.NOBLOCK, copy=False)


class PullEnd:
    """The receiving end: a bound PULL socket, `socket` for a poller."""

    def __init__(self, socket: zmq.Socket[bytes], *, name: str) -> None:
        self.socket = socket
        self._name = name

    def await_hello(self, *, deadline: float) -> None:
        """Wait for the other end.

        Raises:
            LinkError: nothing came before `deadline`, a reading of `time.monotonic()`.
        """
        self.await_message(deadline=deadline)
        if self.socket.recv_multipart() != [HELLO]:
            raise LinkError(f"nobody greeted on the {self._name} link")

    def await_message(self, *, deadline: float) -> None:
        """Wait until a message can be read. Raises as `await_hello`."""
        if not self.socket.poll(max(0, int((deadline - time.monotonic()) * 1000))):
            raise LinkError(f"nothing came on the {self._name} link")
