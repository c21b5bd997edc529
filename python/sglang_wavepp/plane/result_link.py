"""What the last stage sampled, on its way to rank 0, which puts it into the command stream.

With one stage both ends lie in the same process and are used all the same.
"""

from __future__ import annotations

import zmq

from sglang_wavepp.plane.codec import CodecError, decode, encode
from sglang_wavepp.plane.messages import WaveResult
from sglang_wavepp.plane.pipe import PullEnd, PushEnd


class ResultSender:
    """The end of the last stage's first TP rank."""

    def __init__(self, pipe: PushEnd) -> None:
        self._pipe = pipe

    def send(self, result: WaveResult) -> None:
        """Queue a result for rank 0; never waits for it.

        Raises:
            CodecError: the result has no wire form.
        """
        self._pipe.send(encode(result))


class ResultReceiver:
    """Rank 0's end."""

    def __init__(self, pipe: PullEnd) -> None:
        self._pipe = pipe

    @property
    def socket(self) -> zmq.Socket[bytes]:
        """For a poller; readable when results wait."""
        return self._pipe.socket

    def receive(self) -> WaveResult | None:
        """The next result, None when none has come.

        Raises:
            CodecError: what came is no result.
        """
        try:
            message = decode(self._pipe.socket.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            return None
        if not isinstance(message, WaveResult):
            raise CodecError(f"result link: the last stage sent {type(message).__name__}")
        return message
