"""Rank 0 in the middle, every other rank at the end of one ordered connection of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import zmq

from sglang_wavepp.plane.codec import CodecError, Frame
from sglang_wavepp.plane.messages import RankId

HELLO = b"hello"


class LinkError(RuntimeError):
    """A peer can't be reached; the text names it."""


def member_identity(rank: RankId) -> bytes:
    """How the hub's router calls a member."""
    return str(rank.index).encode()


class Hub:
    """Rank 0's end: a router that knows its members by rank.

    Args:
        socket: a bound router.
        members: the other ranks by index.
        name: what the link is for, as errors call it.
    """

    def __init__(self, socket: zmq.Socket[bytes], members: Mapping[int, RankId], *, name: str) -> None:
        socket.router_mandatory = True  # or messages to a lost member would vanish
        self.socket = socket
        self.members = dict(members)
        self._name = name

    def greet(self, *, deadline: float) -> None:
        """Wait until every member has said hello, and answer it.

        Args:
            deadline: reading of `time.monotonic()`.

        Raises:
            LinkError: some have not by then.
        """
        missing = set(self.members)
        while missing:
            if not self.socket.poll(max(0, int((deadline - time.monotonic()) * 1000))):
                names = ", ".join(self.members[index].name for index in sorted(missing))
                raise LinkError(f"the {self._name} link of rank 0 was not reached by {names}")
            received = self.receive()
            if received is not None and received[1] == [HELLO]:
                missing.discard(received[0])
                self.send(received[0], [HELLO])

    def send(self, index: int, frames: Sequence[Frame]) -> None:
        """Queue a message for one member; never waits for it.

        Raises:
            LinkError: the member has left.
        """
        try:
            self.socket.send_multipart([str(index).encode(), *frames], zmq.NOBLOCK, copy=False)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            raise LinkError(
                f"{self.members[index].name} is gone: it has left the {self._name} link"
            ) from error

    def send_all(self, frames: Sequence[Frame]) -> None:
        """Queue a message for every member."""
        for index in self.members:
            self.send(index, frames)

    def receive(self) -> tuple[int, list[bytes]] | None:
        """The next message and its sender's index, None when there is none now."""
        try:
            identity, *frames = self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        try:
            index = int(identity)
        except ValueError as error:
            raise CodecError(f"{self._name} link: sender {identity!r} is no rank") from error
        if index not in self.members:
            raise CodecError(f"{self._name} link: sender {index} is no other rank of this server")
        return index, frames


class Spoke:
    """A member's end: a dealer connected to rank 0."""

    def __init__(self, socket: zmq.Socket[bytes], *, name: str) -> None:
        self.socket = socket
        self._name = name

    def hello(self) -> None:
        """Say hello; rank 0 answers when all is well."""
        self.socket.send(HELLO, zmq.NOBLOCK)

    def await_hello(self, *, deadline: float) -> None:
        """Wait for rank 0's answer to `hello()`.

        Raises:
            LinkError: it did not come before `deadline`, a reading of `time.monotonic()`.
        """
        if not self.socket.poll(max(0, int((deadline - time.monotonic()) * 1000))):
            raise LinkError(f"rank 0 did not answer on the {self._name} link")
        if self.receive() != [HELLO]:
            raise LinkError(f"rank 0 did not greet on the {self._name} link")

    def send(self, frames: Sequence[Frame]) -> None:
        """Queue a message for rank 0; never waits for it."""
        self.socket.send_multipart(frames, zmq.NOBLOCK, copy=False)

    def receive(self) -> list[bytes] | None:
        """The next message, None when there is none now."""
        try:
            return self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
