"""Shared servers, reference answers, and the end of the log of a server whose test failed."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.pool import ServerPool
from e2e.references import References, reference_of

from benchmark.configuration import ServerConfig
from benchmark.servers import CHECKOUT, Server

_HERE = Path(__file__).parent
_LOGS = CHECKOUT / "build" / "e2e"
_KEPT_SESSIONS = 5
_pool_key = pytest.StashKey[ServerPool]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "server(config): the server that the fixture `server` gives to this test"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a server run after each other, and those of one model too (they share its reference)."""
    ours = [item for item in items if _HERE in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.e2e)
    order: dict[ServerConfig, int] = {}
    for item in ours:
        config = _config_of(item)
        if config is not None:
            order.setdefault(config, len(order))

    def place(item: pytest.Item) -> tuple[int, str, int, int]:
        config = _config_of(item)
        if config is None:
            return (1, "", 0, 0)
        return (0, config.model.value, config.tp, order[config])

    others = [item for item in items if _HERE not in item.path.parents]
    items[:] = others + sorted(ours, key=place)


@pytest.fixture(scope="session")
def pool(request: pytest.FixtureRequest) -> Iterator[ServerPool]:
    """The servers of this session; logs under ``build/e2e``."""
    folder = _LOGS / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    folder.mkdir(parents=True)
    for old in sorted(_LOGS.iterdir())[:-_KEPT_SESSIONS]:
        shutil.rmtree(old, ignore_errors=True)
    pool = ServerPool(folder)
    request.config.stash[_pool_key] = pool
    try:
        yield pool
    finally:
        pool.stop_all()


@pytest.fixture(scope="session")
def references(pool: ServerPool) -> References:
    """Reference answers of this session."""
    return References(pool)


@pytest.fixture
def config(request: pytest.FixtureRequest) -> ServerConfig:
    """The configuration in the test's ``server`` mark."""
    found = _config_of(request.node)
    if found is None:
        raise pytest.UsageError(f"{request.node.nodeid} has no server mark")
    return found


@pytest.fixture
def server(config: ServerConfig, pool: ServerPool) -> Server:
    """The shared server of the test's ``server`` mark, running."""
    pool.touch(reference_of(config))
    return pool.get(config)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[None]:  # the result passes through
    report = yield
    pool = item.config.stash.get(_pool_key, None)
    if report.failed and pool is not None:  # type: ignore[attr-defined]
        for server in pool.running():
            report.sections.append((f"end of {server.log}", server.log_tail()))  # type: ignore[attr-defined]
    return report  # type: ignore[return-value]


def _config_of(item: pytest.Item) -> ServerConfig | None:
    mark = item.get_closest_marker("server")
    return None if mark is None else mark.args[0]
