"""Builds a follower's requests from the records that rank 0 has announced.

A grammar that this rank hasn't compiled yet is compiled by SGLang's own threads. The LOOP goes on meanwhile, and this
rank's votes say that it can't judge the request yet.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from sglang_wavepp.admission.messages import InstallRecord
from sglang_wavepp.executor.stage import Stage
from sglang_wavepp.plane.request_record import has_grammar, request_from
from sglang_wavepp.rank.handover import Handover


@dataclass(slots=True)
class _Compiling:
    record: InstallRecord
    req: Any
    grammar: Future[Any]


class Installer:
    """Builds requests on a follower.

    Args:
        scheduler: SGLang's scheduler of this rank.
        stage: gets the requests that are built.
        handover: hears of those that took a while.
    """

    def __init__(self, scheduler: Any, stage: Stage, handover: Handover) -> None:
        self._scheduler = scheduler
        self._stage = stage
        self._handover = handover
        self._compiling: dict[str, _Compiling] = {}

    def install(self, record: InstallRecord) -> None:
        """Build a request, or begin to.

        Raises:
            RuntimeError: SGLang refuses here what rank 0 has accepted.
        """
        manager = self._scheduler.grammar_manager
        self._scheduler.handle_generate_request(request_from(record))
        if not manager.has_waiting_grammars():
            self._built(record)
            return
        # Out of SGLang's queue, which counts as a request that runs: this rank may have to be flushed meanwhile.
        (req,) = manager.grammar_queue
        manager.grammar_queue = []
        self._compiling[record.rid] = _Compiling(record, req, req.grammar)
        req.grammar.add_done_callback(lambda _: self._handover.loop_wake.signal())

    def finish(self) -> bool:
        """Build the requests whose grammars are compiled by now; whether there were any."""
        ready = [one for one in self._compiling.values() if one.grammar.done()]
        manager = self._scheduler.grammar_manager
        for one in ready:
            del self._compiling[one.record.rid]
            manager.grammar_queue = [one.req]
            for req in manager.get_ready_grammar_requests():
                self._scheduler._add_request_to_queue(req)
            self._built(one.record)
        return bool(ready)

    def withdraw(self, rid: str) -> None:
        """Forget a request that left admission without being admitted."""
        compiling = self._compiling.pop(rid, None)
        if compiling is None:
            self._stage.entries.remove(rid)
        else:
            compiling.grammar.cancel()

    def _built(self, record: InstallRecord) -> None:
        # Pools may differ, and this rank may have clipped the output by its own.
        self._stage.entries.get(record.rid).req.sampling_params.max_new_tokens = record.max_new_tokens
        if has_grammar(record):
            self._handover.built(record.rid)
