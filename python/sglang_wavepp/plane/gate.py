"""Sockets that only this server's own ranks can use.

Every bound socket asks its peers for the secret of this launch (ZMQ's PLAIN mechanism), and one small thread
per process judges them. A stranger, with a wrong secret or none, gets nothing and reaches nothing.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import threading
from typing import cast

import zmq

from sglang_wavepp.plane.wake import Wake

logger = logging.getLogger(__name__)

_USER = b"rank"
_VERDICTS_AT = "inproc://zeromq.zap.01"  # where libzmq asks, by its authentication protocol (ZAP, RFC 27)
_LINGER_MS = 500


def new_secret() -> bytes:
    """A secret for one launch."""
    return secrets.token_hex(32).encode()


class Gate:
    """One process's ZMQ context and the sockets made by it.

    Sockets never drop a message for lack of room (no high-water mark) and linger at most half a second, so
    that closing doesn't hang on a peer that is gone. A socket may be made in one thread and then used in one
    other.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._context = zmq.Context()
        self._stop = Wake()
        judge = self._context.socket(zmq.REP)
        judge.linger = 0
        judge.bind(_VERDICTS_AT)
        self._thread = threading.Thread(target=self._judge, args=(judge,), name="GATE", daemon=True)
        self._thread.start()

    def bound(self, kind: zmq.SocketType, host: str) -> tuple[zmq.Socket[bytes], str]:
        """A socket that listens on a free port of `host` (an IP address), and the endpoint to reach it."""
        socket = self._socket(kind)
        socket.plain_server = True
        socket.zap_domain = b"wavepp"
        address = f"[{host}]" if ":" in host else host
        socket.ipv6 = ":" in host
        socket.bind(f"tcp://{address}:*")
        return socket, cast(bytes, socket.last_endpoint).rstrip(b"\0").decode()

    def connected(
        self, kind: zmq.SocketType, endpoint: str, *, identity: bytes | None = None
    ) -> zmq.Socket[bytes]:
        """A socket connected to another rank's endpoint; `identity` is how a router there calls it."""
        socket = self._socket(kind)
        socket.plain_username = _USER
        socket.plain_password = self._secret
        socket.ipv6 = "[" in endpoint
        if identity is not None:
            socket.routing_id = identity
        socket.connect(endpoint)
        return socket

    def close(self) -> None:
        """Close every socket, giving unsent messages half a second. No other thread may use one any more."""
        if self._context.closed:
            return
        self._stop.signal()
        self._thread.join()
        self._stop.close()
        self._context.destroy(linger=_LINGER_MS)

    def _socket(self, kind: zmq.SocketType) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.sndhwm = socket.rcvhwm = 0
        socket.linger = _LINGER_MS
        return socket

    def _judge(self, judge: zmq.Socket[bytes]) -> None:
        poller = zmq.Poller()
        poller.register(judge, zmq.POLLIN)
        poller.register(self._stop.fileno(), zmq.POLLIN)
        refused: set[bytes] = set()
        while True:
            events = dict(poller.poll())
            if self._stop.fileno() in events:
                judge.close()
                return
            request = judge.recv_multipart()
            version, number, _, address, _, mechanism, *credentials = request
            welcome = (
                mechanism == b"PLAIN"
                and len(credentials) == 2
                and hmac.compare_digest(credentials[0], _USER)
                and hmac.compare_digest(credentials[1], self._secret)
            )
            if not welcome and address not in refused:
                refused.add(address)  # told once: a refused peer comes back again and again
                logger.warning("refused a connection from %s: not a rank of this server", address.decode())
            code, text = (b"200", b"OK") if welcome else (b"400", b"not a rank of this server")
            judge.send_multipart([version, number, code, text, b"", b""])
