"""Notices a rank that has died or hangs, and says which.

Every rank tells rank 0, and rank 0 tells every rank, that it is alive. The thread that does so shares the
interpreter with the LOOP, so a rank whose Python is stuck for the whole timeout counts as dead, as it should.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping

import zmq

from sglang_wavepp.plane.star import Hub, LinkError, Spoke
from sglang_wavepp.plane.wake import Wake

logger = logging.getLogger(__name__)

_ALIVE = b"alive"
_BYE = b"bye"


def beat_interval(timeout: float) -> float:
    """Seconds between two signs of life."""
    return max(timeout / 5, 0.2)


class Silence:
    """For how long each watched rank has said nothing.

    Time in which the watcher itself did not run counts for nobody: after a pause of the whole machine every rank
    gets its time again.

    Args:
        timeout: seconds of silence after which a rank counts as dead.
        ranks: indices of the watched ranks; their time starts now.
        clock: seconds, monotonic.
    """

    def __init__(
        self, timeout: float, ranks: Iterable[int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        if timeout <= 0:
            raise ValueError(f"the timeout must be positive, got {timeout}")
        self._timeout = timeout
        self._clock = clock
        self._checked = clock()
        self._heard = dict.fromkeys(ranks, self._checked)

    def heard(self, rank: int) -> None:
        """A watched rank gave a sign of life."""
        if rank in self._heard:
            self._heard[rank] = self._clock()

    def forget(self, rank: int) -> None:
        """A rank said good-bye and is watched no longer."""
        self._heard.pop(rank, None)

    def silent(self) -> dict[int, float]:
        """Ranks that count as dead, with the seconds since their last sign. Call it after reading all signs."""
        now = self._clock()
        away = now - self._checked
        if away > self._timeout / 2:
            self._heard = {rank: min(now, heard + away) for rank, heard in self._heard.items()}
        self._checked = now
        return {rank: now - heard for rank, heard in self._heard.items() if now - heard > self._timeout}

    def remaining(self) -> float:
        """Seconds until the next rank may count as dead; infinite when none is watched."""
        if not self._heard:
            return float("inf")
        return max(0.0, min(self._heard.values()) + self._timeout - self._clock())


class Heartbeat:
    """The thread HEARTBEAT of one rank: rank 0 watches all others, the others watch rank 0.

    Args:
        end: this rank's end of the heartbeat link; only the thread uses it from `start()` on.
        names: what to call each watched rank, by index, such as "pp1 tp0 (pid 123)".
        timeout: seconds, `--wavepp-rounds-timeout`, at least 1.
        on_dead: called once, in the thread, with a message that names the rank; nothing is watched afterwards.
    """

    def __init__(
        self, end: Hub | Spoke, *, names: Mapping[int, str], timeout: float, on_dead: Callable[[str], None]
    ) -> None:
        if timeout < 1:
            raise ValueError(f"a rank can't be called dead in less than 1 s, got {timeout}")
        self._end = end
        self._names = dict(names)
        self._timeout = timeout
        self._on_dead = on_dead
        self._stop = Wake()
        self._farewell = True
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="HEARTBEAT", daemon=True)

    def start(self) -> None:
        """Begin to send and to watch; soon after the links stand, as the time of every rank starts here."""
        self._thread.start()

    def close(self, *, farewell: bool = True) -> None:
        """Stop the thread; called from `on_dead`, which runs in the thread, it lets the thread end by itself.

        Args:
            farewell: say good-bye first, so that nobody takes the end of this rank for its death. Without it the
                others end the server when the timeout has passed; ranks on other hosts learn it in no other way.
        """
        if self._closed:
            return
        self._farewell = farewell
        self._stop.signal()
        if self._thread is threading.current_thread():
            return
        if self._thread.ident is not None:
            self._thread.join()
        self._closed = True
        self._stop.close()

    def _run(self) -> None:
        silence = Silence(self._timeout, self._names)
        interval = beat_interval(self._timeout)
        poller = zmq.Poller()
        poller.register(self._end.socket, zmq.POLLIN)
        poller.register(self._stop.fileno(), zmq.POLLIN)
        next_beat = time.monotonic()
        while True:
            if time.monotonic() >= next_beat:
                self._tell(_ALIVE)
                next_beat = time.monotonic() + interval
            wait = min(next_beat - time.monotonic(), silence.remaining() + 0.01)
            events = dict(poller.poll(math.ceil(max(0.0, wait) * 1000)))
            if self._stop.fileno() in events:
                if self._farewell:
                    self._tell(_BYE)
                return
            self._listen(silence)
            dead = silence.silent()
            if dead:
                self._on_dead(self._obituary(dead))
                return

    def _tell(self, sign: bytes) -> None:
        if isinstance(self._end, Spoke):
            self._end.send([sign])
            return
        for index in self._end.members:
            try:
                self._end.send(index, [sign])
            except LinkError as error:
                # It has left or died. Which of the two its good-bye or its silence will tell, in time.
                logger.debug("no sign of life sent: %s", error)

    def _listen(self, silence: Silence) -> None:
        while True:
            if isinstance(self._end, Spoke):
                frames = self._end.receive()
                received = None if frames is None else (0, frames)
            else:
                received = self._end.receive()
            if received is None:
                return
            index, frames = received
            if frames == [_BYE]:
                silence.forget(index)
            else:
                silence.heard(index)

    def _obituary(self, dead: Mapping[int, float]) -> str:
        told = [
            f"{self._names[index]} has been silent for {seconds:.1f} s" for index, seconds in dead.items()
        ]
        return f"{' and '.join(told)} (--wavepp-rounds-timeout {self._timeout:g})"
