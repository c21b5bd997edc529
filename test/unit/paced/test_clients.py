"""Clients: how many requests are outstanding, and when they are sent."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmark.client import RequestFailed
from benchmark.paced.clients import Clients
from benchmark.paced.prompts import request_of
from sglang_wavepp.simulate.workload import Phase

pytestmark = pytest.mark.slow


class Site(ThreadingHTTPServer):
    """Answers after a while, and counts how many requests are here at a time."""

    seconds = 0.05
    fail_at = -1

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.here = self.count = 0
        self.crowd: list[int] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Site

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.here += 1
            self.server.count += 1
            self.server.crowd.append(self.server.here)
            fails = self.server.count == self.server.fail_at
        time.sleep(self.server.seconds)
        with self.server.lock:
            self.server.here -= 1
        meta = {"cached_tokens": len(body["input_ids"]) - 1, "finish_reason": {"type": "length"}}
        answer = json.dumps({"meta_info": meta}).encode()
        self.send_response(500 if fails else 200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as site:
        thread = threading.Thread(target=site.serve_forever)
        thread.start()
        yield site
        site.shutdown()
        thread.join()


def requests_(count: int) -> list[object]:
    return [request_of(f"r{number}", [5] * 4, reusable=2) for number in range(count)]


def test_a_closed_loop_keeps_as_many_outstanding_as_the_phase_says(site: Site) -> None:
    site.seconds = 0.2
    todo = requests_(14)
    served = Clients(site.url, 8).closed_loop(todo, [Phase(1, 3), Phase(4, 8), Phase(1, 3)])  # type: ignore[arg-type]
    assert [each.rid for each in served] == [f"r{number}" for number in range(14)]
    assert max(site.crowd) == 4 and set(site.crowd[:3]) == {1} and set(site.crowd[-2:]) == {1}
    assert all(each.cached == 3 and each.seconds >= site.seconds for each in served)


def test_an_open_loop_sends_at_its_times_whatever_is_outstanding(site: Site) -> None:
    site.seconds = 0.3
    begun = time.monotonic()
    served = Clients(site.url, 8).open_loop(requests_(4), [0.0, 0.05, 0.1, 0.15])  # type: ignore[arg-type]
    assert [each.due - begun for each in served] == pytest.approx([0.0, 0.05, 0.1, 0.15], abs=0.04)
    assert max(site.crowd) == 4


def test_a_failed_request_ends_the_loop(site: Site) -> None:
    site.fail_at = 3
    with pytest.raises(RequestFailed, match="r2"):
        Clients(site.url, 1).closed_loop(requests_(50), [Phase(1, 50)])  # type: ignore[arg-type]
    assert site.count <= 4
