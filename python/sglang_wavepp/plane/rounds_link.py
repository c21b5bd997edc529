"""The rounds plane between rank 0 and every other rank: broadcasts and gathers out, votes back.

Used by the admission thread only; the data plane has links of its own.
"""

from __future__ import annotations

import zmq

from sglang_wavepp.admission.messages import Broadcast, Gather, Vote
from sglang_wavepp.plane.codec import CodecError, decode, encode
from sglang_wavepp.plane.star import Hub, Spoke


class RoundsLeaderLink:
    """Rank 0's end. Rank 0 votes too, but its own vote never travels."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    @property
    def socket(self) -> zmq.Socket[bytes]:
        """For a poller; readable when votes wait."""
        return self._hub.socket

    @property
    def members(self) -> int:
        """How many other ranks vote."""
        return len(self._hub.members)

    def broadcast(self, message: Broadcast) -> None:
        """Open a round on every other rank.

        Raises:
            LinkError: a rank has left.
            CodecError: the message has no wire form; nothing was sent.
        """
        self._hub.send_all(encode(message))

    def gather(self, message: Gather) -> None:
        """Tell every other rank all votes. Raises as `broadcast`."""
        self._hub.send_all(encode(message))

    def receive(self) -> Vote | None:
        """The next vote, None when none has come.

        Raises:
            CodecError: what came is no vote of its sender.
        """
        received = self._hub.receive()
        if received is None:
            return None
        index, frames = received
        message = decode(frames)
        if not isinstance(message, Vote) or message.rank != index:
            raise CodecError(
                f"rounds link: {self._hub.members[index].name} sent no vote of its own: {message}"
            )
        return message


class RoundsMemberLink:
    """Another rank's end."""

    def __init__(self, spoke: Spoke) -> None:
        self._spoke = spoke

    @property
    def socket(self) -> zmq.Socket[bytes]:
        """For a poller; readable when rank 0 has spoken."""
        return self._spoke.socket

    def vote(self, message: Vote) -> None:
        """Answer a broadcast."""
        self._spoke.send(encode(message))

    def receive(self) -> Broadcast | Gather | None:
        """What rank 0 said next, None when nothing has come.

        Raises:
            CodecError: what came is neither.
        """
        frames = self._spoke.receive()
        if frames is None:
            return None
        message = decode(frames)
        if not isinstance(message, Broadcast | Gather):
            raise CodecError(f"rounds link: rank 0 sent {type(message).__name__}")
        return message
