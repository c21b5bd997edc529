"""The LOOP of a follower with a stage that only keeps books: what may be in its books when a command comes."""

from __future__ import annotations

import threading
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from unit.admission.wording import record

from sglang_wavepp.admission.messages import InstallRecord
from sglang_wavepp.executor.admission_port import OffLoop
from sglang_wavepp.executor.entries import Entries
from sglang_wavepp.executor.follower import Follower
from sglang_wavepp.executor.keys import give_key
from sglang_wavepp.executor.slots import Ring
from sglang_wavepp.executor.stage import Stage
from sglang_wavepp.plane.messages import Command, FlushCommand, StopCommand
from sglang_wavepp.plane.wake import Wake
from sglang_wavepp.rank.handover import Handover
from sglang_wavepp.rank.rounds import nothing

pytestmark = pytest.mark.unit


class Leases:
    """Nothing is ever held; counts how often a leak was looked for."""

    def __init__(self) -> None:
        self.held = False
        self.checks = 0

    def idle(self) -> bool:
        return not self.held

    def check_idle(self) -> None:
        self.checks += 1


class Rank:
    """A follower whose commands and announcements the test lays out."""

    def __init__(self) -> None:
        self.handover = Handover(wave_wake=Wake(), loop_wake=Wake())
        self.commands: deque[Command] = deque()
        self.leases = Leases()
        self.idle_calls = 0
        self.flushes = 0
        self.stage: Any = SimpleNamespace(
            entries=Entries(),
            ring=Ring(4),
            mutex=threading.RLock(),
            leases=self.leases,
            when_idle=nothing,
        )
        self.stage.is_idle = lambda: Stage.is_idle(self.stage)
        self.stage.holds_nothing = lambda: Stage.holds_nothing(self.stage)
        socket = Wake()
        socket.signal()  # the poller never sleeps
        self.follower = Follower(
            scheduler=SimpleNamespace(on_idle=self._on_idle, gracefully_exit=False),
            stage=self.stage,
            commands=SimpleNamespace(socket=socket.fileno(), receive=self._receive),  # type: ignore[arg-type]
            activations=None,
            handover=self.handover,
            admission=OffLoop(),
            installer=self,
            drop=self._drop,
        )

    def install(self, announced: InstallRecord) -> None:
        req = SimpleNamespace(origin_input_ids=announced.token_ids)
        give_key(req, announced.rid)
        self.stage.entries.add(req)

    def finish(self) -> bool:
        return False

    def withdraw(self, rid: str) -> None:
        self.stage.entries.remove(rid)

    def _receive(self) -> Command | None:
        return self.commands.popleft() if self.commands else None

    def _on_idle(self) -> None:
        self.idle_calls += 1
        self.commands.append(StopCommand(seq=9, reason="test"))

    def _drop(self) -> bool:
        if not self.follower.is_idle():
            return False
        self.flushes += 1
        return True


@pytest.fixture
def rank() -> Rank:
    return Rank()


def test_request_withdrawn_while_another_is_being_installed_is_forgotten(rank: Rank) -> None:
    build = rank.install

    def slow_install(announced: InstallRecord) -> None:
        build(announced)
        if announced.rid == "slow":  # two rounds pass meanwhile: one announces a request, one aborts it
            rank.handover.answer(installed=(record("late"),))
            rank.handover.answer(withdrawn=("late", "slow"))

    rank.install = slow_install  # type: ignore[method-assign]
    rank.handover.answer(installed=(record("slow"),))
    rank.follower.run()
    assert rank.idle_calls == 1, "the request that was withdrawn is still in this rank's books"
    assert len(rank.stage.entries) == 0


def test_flush_may_come_after_the_record_of_a_later_request(rank: Rank) -> None:
    rank.handover.answer(installed=(record("later"),))
    rank.commands += [FlushCommand(seq=1), StopCommand(seq=2, reason="test")]
    rank.follower.run()
    assert rank.flushes == 1
    assert "later" in rank.stage.entries


@pytest.mark.parametrize("held", ["request", "lease"])
def test_flush_of_a_rank_in_use_ends_the_server(rank: Rank, held: str) -> None:
    rank.install(record("a"))
    if held == "request":
        rank.stage.entries.get("a").materialised = True
    else:
        rank.leases.held = True
    rank.commands += [FlushCommand(seq=1), StopCommand(seq=2, reason="test")]
    with pytest.raises(RuntimeError, match="flushed it, but a request runs or holds room here"):
        rank.follower.run()


def test_leaks_are_looked_for_once_when_the_rank_becomes_idle(rank: Rank) -> None:
    rank.follower.run()
    assert (rank.idle_calls, rank.leases.checks) == (1, 1)


def test_a_request_that_the_loop_has_not_seen_is_no_leak(rank: Rank) -> None:
    """Its lease is held already when the rank looks whether it is idle."""
    checked = rank.stage.is_idle

    def a_round_passes() -> bool:
        idle: bool = checked()
        if idle and not rank.handover.has_changes:
            rank.handover.answer(installed=(record("new"),))
            rank.leases.held = True
            rank.commands.append(StopCommand(seq=1, reason="test"))
        return idle

    rank.stage.is_idle = a_round_passes
    rank.follower.run()
    assert rank.leases.checks == 0
