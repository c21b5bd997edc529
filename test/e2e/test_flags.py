"""Flags reach the server, and what can't work is refused at start in one line."""

from __future__ import annotations

import os
import subprocess
import time

import pytest
from e2e.configs import HYBRID

from benchmark.configuration import ServerConfig
from benchmark.models import model_folder
from benchmark.servers import CHECKOUT, Server, free_port, server_environment


@pytest.mark.server(HYBRID)
def test_server_info_shows_the_settings(server: Server, config: ServerConfig) -> None:
    info = server.client.server_info()
    assert info["wavepp"] is True
    assert (info["wavepp_admission"], info["wavepp_planner"]) == ("lease", "mpu")
    assert info["wavepp_trace"] == str(server.trace_folder)
    assert info["wavepp_rounds_timeout"] > 0
    assert info["pp_async_batch_depth"] == config.pp, "the ring has 2P slots"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param(
            ("--wavepp-planner", "best"), ("--wavepp-planner", "mpu", "supply", "static"), id="planner"
        ),
        pytest.param(("--enable-mixed-chunk",), ("--enable-mixed-chunk",), id="mixed-chunk"),
    ],
)
def test_what_cannot_work_is_refused_at_start(options: tuple[str, ...], words: tuple[str, ...]) -> None:
    config = HYBRID.with_(trace=False, options=options)
    started = time.monotonic()
    refused = subprocess.run(
        config.command(model_path=model_folder(config.model), port=free_port(), trace_folder=None),
        capture_output=True,
        text=True,
        timeout=120,
        cwd=CHECKOUT,
        env=server_environment(config, os.environ),
        check=False,
    )
    assert refused.returncode == 2, refused.stderr[-2000:]
    (line,) = [line for line in refused.stderr.splitlines() if line.startswith("error: ")]
    assert all(word in line for word in words), line
    assert "Traceback" not in refused.stderr
    assert time.monotonic() - started < 90
