"""Rank 0 takes requests out of SGLang's grammar queue without waiting for the others in it."""

from __future__ import annotations

import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from unit.executor.slow_compiler import Compiled, Request, manager_with

from sglang_wavepp.executor.grammars import Grammars

pytestmark = pytest.mark.unit


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Queue:
    """Three requests that wait for their grammars."""

    def __init__(self) -> None:
        self.manager = manager_with(SimpleNamespace())
        self.clock = Clock()
        self.wakes = 0
        self.grammars = Grammars(self.manager, self._wake, self.clock)
        self.reqs = [Request(rid) for rid in "abc"]
        self.futures: list[Future[Any]] = [Future() for _ in self.reqs]
        for req, future in zip(self.reqs, self.futures, strict=True):
            req.grammar = future
            self.manager.grammar_queue.append(req)

    def _wake(self) -> None:
        self.wakes += 1

    def taken(self) -> list[str]:
        return [req.rid for req in self.grammars.take()]

    def left(self) -> list[str]:
        return [req.rid for req in self.manager.grammar_queue]


def test_nothing_is_waited_for() -> None:
    queue = Queue()
    begun = time.monotonic()
    for _ in range(10):
        assert queue.taken() == []
    assert time.monotonic() - begun < 0.3, "SGLang's own look takes 0.2 s each time"
    assert queue.grammars.waiting and queue.left() == ["a", "b", "c"]


def test_who_is_ready_goes_and_the_others_keep_their_order() -> None:
    queue = Queue()
    queue.taken()
    compiled = Compiled()
    queue.futures[1].set_result(compiled)
    assert queue.wakes == 1
    begun = time.monotonic()
    assert queue.taken() == ["b"]
    assert time.monotonic() - begun < 0.15
    assert queue.reqs[1].grammar is compiled
    assert queue.left() == ["a", "c"]
    queue.futures[0].set_exception(ValueError("no such regex"))
    assert queue.taken() == ["a"] and "no such regex" in str(queue.reqs[0].refusal)
    queue.reqs[2].set_finish_with_abort("Aborted by AbortReq.")
    assert queue.taken() == ["c"] and not queue.grammars.waiting


def test_what_takes_too_long_is_given_up_as_sglang_does() -> None:
    queue = Queue()
    assert queue.taken() == []
    queue.clock.now += 0.2 * 25 - 0.1
    assert queue.taken() == []
    queue.clock.now += 0.2
    assert queue.taken() == ["a", "b", "c"]
    assert all("timed out" in str(req.refusal) for req in queue.reqs)
