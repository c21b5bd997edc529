"""Requests on rank 0 whose grammar is being compiled, without making the LOOP wait for it.

SGLang's own look at its queue waits some milliseconds for grammars that aren't ready, each time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

CHECK_MS = 100
"""How often the LOOP looks whether a grammar takes too long."""


class Grammars:
    """Takes requests out of SGLang's queue when their grammar is there, or has taken too long.

    Args:
        manager: SGLang's grammar manager, which only ever sees requests whose turn it is.
        wake: called, in any thread, when a grammar is there.
        clock: seconds.
    """

    def __init__(
        self, manager: Any, wake: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._manager = manager
        self._wake = wake
        self._clock = clock
        self._patience = manager.SGLANG_GRAMMAR_MAX_POLL_ITERATIONS * manager.SGLANG_GRAMMAR_POLL_INTERVAL
        self._since: dict[int, float] = {}  # by the identity of a request in SGLang's queue

    @property
    def waiting(self) -> bool:
        """Whether a grammar is being compiled."""
        return bool(self._manager.has_waiting_grammars())

    def take(self) -> list[Any]:
        """Requests that wait no longer; what SGLang makes of a grammar that failed is in them."""
        queue: list[Any] = self._manager.grammar_queue
        if not queue:
            return []
        now = self._clock()
        due = [req for req in queue if self._is_due(req, now)]
        if not due:
            return []
        self._manager.grammar_queue = due
        try:
            taken: list[Any] = self._manager.get_ready_grammar_requests()
        finally:
            kept = self._manager.grammar_queue
            gone = {id(req) for req in due} - {id(req) for req in kept}
            self._manager.grammar_queue = [req for req in queue if id(req) not in gone]
            for number in gone:
                self._since.pop(number, None)
        return taken

    def _is_due(self, req: Any, now: float) -> bool:
        if req.grammar is None or req.finished():  # aborted meanwhile
            return True
        if id(req) not in self._since:
            self._since[id(req)] = now
            req.grammar.add_done_callback(lambda _: self._wake())
        if req.grammar.done():
            return True
        if now - self._since[id(req)] < self._patience:
            return False
        req.grammar_wait_ct = self._manager.SGLANG_GRAMMAR_MAX_POLL_ITERATIONS  # SGLang gives it up
        return True
