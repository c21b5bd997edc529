"""A follower builds requests from records, with SGLang's grammar manager and a compiler that the test controls."""

from __future__ import annotations

import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from unit.admission.wording import record as plain_record
from unit.executor.slow_compiler import Compiled, Request, manager_with

from sglang_wavepp.admission.messages import InstallRecord
from sglang_wavepp.executor import installer
from sglang_wavepp.executor.entries import Entries
from sglang_wavepp.executor.installer import Installer
from sglang_wavepp.executor.keys import give_key
from sglang_wavepp.plane.request_record import GRAMMARS
from sglang_wavepp.plane.wake import Wake
from sglang_wavepp.rank.handover import BuiltAsk, Handover

pytestmark = pytest.mark.unit


def record(rid: str, regex: str | None = None) -> InstallRecord:
    sampling = dict.fromkeys(GRAMMARS) | {"regex": regex}
    return msgspec.structs.replace(plain_record(rid, output=7), request={"sampling_params": sampling})


class Rank:
    """A follower's scheduler that builds requests whose grammars are compiled when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(installer, "request_from", lambda record: record)
        self.grammar_manager = manager_with(self)
        self.handover = Handover(wave_wake=Wake(), loop_wake=Wake())
        self.entries = Entries()
        stage: Any = SimpleNamespace(entries=self.entries)
        self.installer = Installer(self, stage, self.handover)

    def handle_generate_request(self, received: Any) -> None:
        req = Request(received.rid)
        if received.request["sampling_params"]["regex"] is None:
            self._add_request_to_queue(req)
        else:
            req.grammar = Future()
            self.grammar_manager.grammar_queue.append(req)

    def _add_request_to_queue(self, req: Any) -> None:
        if req.refusal is not None:
            raise RuntimeError(req.refusal)
        give_key(req, req.rid)
        self.entries.add(req)

    def compile(self, rid: str, grammar: Any) -> None:
        self.installer._compiling[rid].grammar.set_result(grammar)

    def asks(self) -> list[Any]:
        return self.handover.pop_asks()


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Rank:
    return Rank(monkeypatch)


def test_a_request_without_a_grammar_is_built_at_once(rank: Rank) -> None:
    rank.installer.install(record("a"))
    assert rank.entries.get("a").req.sampling_params.max_new_tokens == 7
    assert rank.asks() == [], "nobody waits for it"
    assert not rank.installer.finish()


def test_grammars_are_not_waited_for_and_come_in_any_order(rank: Rank) -> None:
    begun = time.monotonic()
    for rid in ("a", "b"):
        rank.installer.install(record(rid, "x+"))
        assert not rank.installer.finish()
    assert time.monotonic() - begun < 0.5
    assert len(rank.entries) == 0 and rank.asks() == []
    assert not rank.grammar_manager.has_waiting_grammars(), "SGLang would take the rank for busy"
    rank.handover.loop_wake.clear()
    rank.compile("b", Compiled())
    assert _is_signalled(rank.handover.loop_wake)
    assert rank.installer.finish()
    assert "b" in rank.entries and "a" not in rank.entries
    assert rank.entries.get("b").req.sampling_params.max_new_tokens == 7
    assert rank.asks() == [BuiltAsk("b")]
    rank.compile("a", Compiled())
    assert rank.installer.finish() and "a" in rank.entries and rank.asks() == [BuiltAsk("a")]


def test_a_grammar_that_fails_here_and_not_on_rank_0_ends_the_server(rank: Rank) -> None:
    rank.installer.install(record("a", "x+"))
    rank.installer._compiling["a"].grammar.set_exception(OSError("no memory"))
    with pytest.raises(RuntimeError, match="no memory"):
        rank.installer.finish()


def test_a_request_that_is_withdrawn_while_it_is_compiled_is_forgotten(rank: Rank) -> None:
    rank.installer.install(record("a", "x+"))
    rank.installer.install(record("b"))
    rank.installer.withdraw("a")
    rank.installer.withdraw("b")
    assert not rank.installer.finish()
    assert len(rank.entries) == 0 and rank.asks() == []


def _is_signalled(wake: Wake) -> bool:
    import zmq

    poller = zmq.Poller()
    poller.register(wake.fileno(), zmq.POLLIN)
    return bool(poller.poll(0))
