"""A rank that is killed or stopped ends the server in time, with its name in the log and nothing left running."""

from __future__ import annotations

import os
import re
import signal
import threading
import time

import pytest
from e2e.configs import DENSE
from e2e.pool import ServerPool

from benchmark.client import RequestFailed
from benchmark.servers import Server
from benchmark.workloads import lone_prompt

TIMEOUT = 5.0
CONFIG = DENSE.with_(trace=False, options=("--wavepp-rounds-timeout", f"{TIMEOUT:g}"))


@pytest.mark.parametrize(
    ("rank", "number", "busy"),
    [
        pytest.param(1, signal.SIGSTOP, False, id="follower-stopped-idle"),
        pytest.param(0, signal.SIGKILL, True, id="leader-killed-busy"),
        pytest.param(1, signal.SIGKILL, True, id="follower-killed-busy", marks=pytest.mark.full),
        pytest.param(0, signal.SIGSTOP, True, id="leader-stopped-busy", marks=pytest.mark.full),
        pytest.param(0, signal.SIGSTOP, False, id="leader-stopped-idle", marks=pytest.mark.full),
        pytest.param(1, signal.SIGSTOP, True, id="follower-stopped-busy", marks=pytest.mark.full),
    ],
)
def test_server_ends(pool: ServerPool, rank: int, number: signal.Signals, busy: bool) -> None:
    with pool.private(CONFIG) as server:
        ranks = server.ranks()
        assert len(ranks) == CONFIG.pp
        assert len(server.client.generate(lone_prompt(81, 200).token_ids, 4).token_ids) == 4
        if busy:
            threading.Thread(target=_ask_in_vain, args=(server,), daemon=True).start()
            time.sleep(1.0)
        os.kill(ranks[rank], number)
        started = time.monotonic()
        status = server.exit_status(TIMEOUT + 5)
        took = time.monotonic() - started
        assert status is not None, f"still running after {took:.1f} s:\n{server.log_tail()}"
        assert status != 0
        named = re.search(
            rf"(?i)\bpp{rank} tp0\b.*(silent|dead|killed|is gone|died|ended|lost|crashed)", server.log_text()
        )
        assert named, f"no line names pp{rank} tp0:\n{server.log_tail()}"
        assert not server.left_behind()


def _ask_in_vain(server: Server) -> None:
    try:
        server.client.ask(lone_prompt(82, 4000, 2000))
    except RequestFailed:
        return
