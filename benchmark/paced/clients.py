"""Clients of a server under measurement: closed loops with phases, and open loops."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import requests

from benchmark.client import RequestFailed
from benchmark.paced.clock import now, sleep_until
from benchmark.paced.prompts import Request
from sglang_wavepp.simulate.workload import Phase

TIMEOUT_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class Served:
    """One answered request. Times in seconds of the monotonic clock.

    Attributes:
        cached: tokens that the server reused.
        due: when it was to be sent; `sent` is later where a client wasn't free.
    """

    rid: str
    tokens: int
    reusable: int
    cached: int
    due: float
    sent: float
    answered: float

    @property
    def seconds(self) -> float:
        """From when it was due to the first token, which is the only one."""
        return self.answered - self.due


class Clients:
    """Up to `most` requests at a time to one server; `progress` gets the number of answers so far."""

    def __init__(self, url: str, most: int, progress: Callable[[int], None] | None = None) -> None:
        self._url = url
        self._progress = progress
        self._pool = ThreadPoolExecutor(most)
        self._own = threading.local()
        self._changed = threading.Condition()
        self._answered = 0
        self._outstanding = 0
        self._failed = False

    def closed_loop(self, todo: Sequence[Request], phases: Sequence[Phase]) -> list[Served]:
        """Keep as many requests outstanding as each phase says; the phases follow each other without a pause.

        Raises:
            RequestFailed: a request wasn't answered.
        """
        allowed = [phase.concurrency for phase in phases for _ in range(phase.requests)]
        sent = []
        with self._pool:
            for request, most in zip(todo, allowed, strict=True):
                with self._changed:
                    self._changed.wait_for(lambda most=most: self._failed or self._outstanding < most)  # type: ignore[misc]
                    if self._failed:
                        break
                sent.append(self._send(request, now()))
        return [future.result() for future in sent]

    def open_loop(self, todo: Sequence[Request], times: Sequence[float]) -> list[Served]:
        """Send each request at its time, in seconds from now.

        Raises:
            RequestFailed: a request wasn't answered.
        """
        begun = now()
        sent = []
        with self._pool:
            for request, moment in zip(todo, times, strict=True):
                sleep_until(begun + moment)
                if self._failed:
                    break
                sent.append(self._send(request, begun + moment))
        return [future.result() for future in sent]

    def _send(self, request: Request, due: float) -> Future[Served]:
        with self._changed:
            self._outstanding += 1
        return self._pool.submit(self._ask, request, due)

    def _ask(self, request: Request, due: float) -> Served:
        try:
            served = self._answer(request, due)
        except BaseException:
            with self._changed:
                self._failed = True
                self._changed.notify_all()
            raise
        with self._changed:
            self._outstanding -= 1
            self._answered += 1
            self._changed.notify_all()
            if self._progress is not None:
                self._progress(self._answered)
        return served

    def _answer(self, request: Request, due: float) -> Served:
        session = getattr(self._own, "session", None)
        if session is None:
            session = self._own.session = requests.Session()
        sent = now()
        try:
            response = session.post(
                f"{self._url}/generate",
                data=request.body,
                headers={"Content-Type": "application/json"},
                timeout=(10, TIMEOUT_SECONDS),
            )
        except requests.RequestException as error:
            raise RequestFailed(f"{request.rid}: {error}") from error
        answered = now()
        if response.status_code != 200:
            raise RequestFailed(f"{request.rid}: {response.text[:500]}", response.status_code)
        meta = response.json()["meta_info"]
        if meta["finish_reason"]["type"] == "abort":
            raise RequestFailed(f"{request.rid}: {meta['finish_reason']}")
        return Served(
            rid=request.rid,
            tokens=request.tokens,
            reusable=request.reusable,
            cached=int(meta.get("cached_tokens", 0)),
            due=due,
            sent=sent,
            answered=answered,
        )
