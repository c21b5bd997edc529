"""Servers shared by the tests of a session: started when a test asks, at most a few at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmark.configuration import ServerConfig
from benchmark.interleaved import frozen
from benchmark.servers import Server


class ServerPool:
    """Keeps the servers that were used last.

    Args:
        folder: where logs and timelines go.
        limit: servers that may run at once; the one that was used longest ago is stopped for a new one.
    """

    def __init__(self, folder: Path, limit: int = 2) -> None:
        self.folder = folder
        self.starts = 0
        self._limit = limit
        self._servers: OrderedDict[ServerConfig, Server] = OrderedDict()

    def get(self, config: ServerConfig) -> Server:
        """The running server of this configuration; one that has died is started anew."""
        server = self._servers.get(config)
        if server is not None and server.running:
            self._servers.move_to_end(config)
            return server
        if server is not None:
            self.drop(config)
        self._make_room(self._limit - 1)
        server = Server(config, self.folder)
        server.start()
        self.starts += 1
        self._servers[config] = server
        return server

    def touch(self, config: ServerConfig) -> None:
        """Count a server as used, if it runs."""
        if config in self._servers:
            self._servers.move_to_end(config)

    def drop(self, config: ServerConfig) -> None:
        """Stop a server; the next test gets a new one."""
        server = self._servers.pop(config, None)
        if server is not None:
            server.stop()

    @contextmanager
    def private(self, config: ServerConfig, *, beside: Server | None = None) -> Iterator[Server]:
        """A server that nobody shares, for a test that ends it; ``beside`` is frozen while it starts."""
        self._make_room(self._limit - 1)
        server = Server(config, self.folder)
        try:
            with frozen([] if beside is None else [beside]):
                server.start()
            self.starts += 1
            yield server
        finally:
            server.stop()

    def running(self) -> list[Server]:
        """The shared servers, the one used last at the end."""
        return list(self._servers.values())

    def stop_all(self) -> None:
        """Stop every server."""
        self._make_room(0)

    def _make_room(self, keep: int) -> None:
        while len(self._servers) > keep:
            _, server = self._servers.popitem(last=False)
            server.stop()
