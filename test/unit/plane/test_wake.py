from __future__ import annotations

import threading
import time

import zmq

from sglang_wavepp.plane.wake import Wake


def test_a_poller_sees_the_signal_of_another_thread_until_it_is_cleared() -> None:
    wake = Wake()
    poller = zmq.Poller()
    poller.register(wake.fileno(), zmq.POLLIN)
    assert poller.poll(0) == []
    threading.Timer(0.05, wake.signal).start()
    started = time.monotonic()
    assert poller.poll(5000) == [(wake.fileno(), zmq.POLLIN)]
    assert time.monotonic() - started < 1
    wake.signal()
    wake.clear()
    assert poller.poll(0) == []
    wake.clear()
    wake.close()
