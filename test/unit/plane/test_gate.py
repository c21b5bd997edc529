"""Strangers at the door of a launch: a wrong secret, none, and noise."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from sglang_wavepp.plane.gate import Gate, new_secret

KNOCKING: list[zmq.Socket[bytes]] = []  # a socket that nobody holds is closed at once

pytestmark = pytest.mark.slow


@pytest.fixture
def stranger() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context = zmq.Context()
    yield context
    context.destroy(linger=0)
    KNOCKING.clear()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate(new_secret())
    yield gate
    gate.close()


def knock(context: Any, kind: int, endpoint: str, **options: Any) -> zmq.Socket[bytes]:
    knocking: zmq.Socket[bytes] = context.socket(kind)
    knocking.linger = 0
    for option, value in options.items():
        setattr(knocking, option, value)
    knocking.connect(endpoint)
    KNOCKING.append(knocking)
    return knocking


def say(speaker: zmq.Socket[bytes], text: bytes) -> None:
    """Send, or find that the door was shut already: then there is no connection to queue for."""
    with contextlib.suppress(zmq.Again):
        speaker.send(text, zmq.NOBLOCK)


def noise(endpoint: str) -> None:
    host, port = endpoint.removeprefix("tcp://").split(":")
    for junk in (b"GET / HTTP/1.1\r\n\r\n", b"\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL" + b"\0" * 48, b"\xff" * 4096):
        with socket.create_connection((host, int(port)), timeout=2) as connection:
            connection.sendall(junk)


BAD = [
    {"plain_username": b"rank", "plain_password": b"guess"},
    {"plain_username": b"root", "plain_password": b"x"},
    {},
]


def test_nothing_that_a_stranger_sends_arrives(gate: Gate, stranger: Any) -> None:
    receiver, endpoint = gate.bound(zmq.PULL, "127.0.0.1")
    for options in BAD:
        say(knock(stranger, zmq.PUSH, endpoint, **options), b"evil")
    noise(endpoint)
    own = gate.connected(zmq.PUSH, endpoint)
    own.send(b"good")
    assert receiver.poll(5000)
    assert receiver.recv() == b"good"
    assert not receiver.poll(300)


def test_a_stranger_gets_nothing(gate: Gate, stranger: Any) -> None:
    sender, endpoint = gate.bound(zmq.PUSH, "127.0.0.1")
    ears = [knock(stranger, zmq.PULL, endpoint, **options) for options in BAD]
    time.sleep(0.3)
    own = gate.connected(zmq.PULL, endpoint)
    for _ in range(20):
        sender.send(b"secret plans")
    for _ in range(20):
        assert own.poll(5000)
        assert own.recv() == b"secret plans"
    assert not any(ear.poll(100) for ear in ears)


def test_a_stranger_can_not_take_a_rank_s_place(gate: Gate, stranger: Any) -> None:
    router, endpoint = gate.bound(zmq.ROUTER, "127.0.0.1")
    for options in BAD:
        say(knock(stranger, zmq.DEALER, endpoint, routing_id=b"1", **options), b"evil")
    time.sleep(0.3)
    own = gate.connected(zmq.DEALER, endpoint, identity=b"1")
    own.send(b"good")
    assert router.poll(5000)
    assert router.recv_multipart() == [b"1", b"good"]
    router.send_multipart([b"1", b"back"])
    assert own.poll(5000)
    assert own.recv() == b"back"
    assert not router.poll(200)


def test_a_stranger_that_keeps_knocking_is_told_of_once(
    gate: Gate, stranger: Any, caplog: pytest.LogCaptureFixture
) -> None:
    receiver, endpoint = gate.bound(zmq.PULL, "127.0.0.1")
    for _ in range(5):
        knock(stranger, zmq.PUSH, endpoint, **BAD[0])
    assert not receiver.poll(500)
    assert [record.message for record in caplog.records] == [
        "refused a connection from 127.0.0.1: not a rank of this server"
    ]


def test_another_launch_is_a_stranger(gate: Gate) -> None:
    receiver, endpoint = gate.bound(zmq.PULL, "127.0.0.1")
    other = Gate(new_secret())
    say(other.connected(zmq.PUSH, endpoint), b"evil")
    assert not receiver.poll(500)
    other.close()


def test_closing_does_not_hang_on_a_peer_that_is_gone() -> None:
    gate = Gate(new_secret())
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        gone = f"tcp://127.0.0.1:{unused.getsockname()[1]}"
    gate.connected(zmq.PUSH, gone).send(b"x" * 10_000_000)
    started = time.monotonic()
    gate.close()
    assert time.monotonic() - started < 2
    assert not [thread for thread in threading.enumerate() if thread.name == "GATE"]
