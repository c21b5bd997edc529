"""Real admission threads and a LOOP thread per rank on real trees: promises hold, and nobody holds a tree and talks."""

from __future__ import annotations

import random
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from model.real.head import Head
from model.real.invariants import check_drained, check_pools, check_promises
from model.real.pipeline import Loop, alone
from model.real.pools import enter_world
from model.real.rank import Rank
from model.real.world import World
from unit.admission.in_memory import Hub, Mailbox, Spoke

from sglang_wavepp.admission.leader import RoundsLeader
from sglang_wavepp.admission.messages import Broadcast, Gather, Vote
from sglang_wavepp.admission.pools import smallest
from sglang_wavepp.plane.messages import Command
from sglang_wavepp.plane.wake import Wake
from sglang_wavepp.planning.publisher import Publisher
from sglang_wavepp.rank.admission_thread import AdmissionThread
from sglang_wavepp.rank.rounds import FollowingRounds, LeadingRounds
from sglang_wavepp.telemetry.trace import NullTimeline

pytestmark = pytest.mark.slow

ALIVE = 12
"""Requests that clients keep in the server."""
PATIENCE = 60.0

WORLDS = {
    "dense page 1": World(
        page=1, block=1, pools=(24, 20), rows=5, longest=12, budget=8, output=3, warm=True, gain=(1, 6)
    ),
    "dense page 4": World(
        pools=(30, 26, 22), rows=5, longest=10, budget=12, headroom=8, ahead=30, warm=True, gain=(4, 4)
    ),
    "hybrid page 4": World(
        pools=(60, 40, 50), slots=(24, 20, 22), rows=5, longest=10, budget=12, block=2, warm=True, gain=(4, 8)
    ),
    "hybrid page 16": World(
        page=16, block=16, pools=(30, 26), slots=(14, 16), rows=4, longest=8, grid=2, budget=8, warm=True
    ),
    "hybrid page 1": World(page=1, block=1, pools=(40, 44), slots=(15, 14), rows=4, longest=12, warm=True),
}


class QuietHub(Hub):
    def __init__(self, ranks: list[Rank]) -> None:
        super().__init__(0)
        self._rank = ranks[0]
        self.members = [QuietSpoke(self.votes, rank) for rank in ranks[1:]]

    def _to_all(self, message: Broadcast | Gather) -> None:
        alone(self._rank)
        for member in self.members:
            member.inbox.put(message)


class QuietSpoke(Spoke):
    def __init__(self, votes: Mailbox[Vote], rank: Rank) -> None:
        super().__init__(votes)
        self._rank = rank

    def vote(self, message: Vote) -> None:
        alone(self._rank)
        super().vote(message)


class Stress:
    """A pipeline of threads. `run` lets clients ask for so many seconds, then waits until all is quiet again."""

    def __init__(self, world: World, seed: int) -> None:
        enter_world(world)
        self.world, self.rng = world, random.Random(seed)
        self.failures: list[str] = []
        self.stopping = self.draining = False
        self.checks = 0
        publisher = Publisher(world.publish_rule, block=world.block)
        self.ranks = [
            Rank(
                index,
                world,
                wave_wake=Wake(),
                loop_wake=Wake(),
                hashed=None if index else publisher.announce,
            )
            for index in range(world.ranks)
        ]
        self.hub = QuietHub(self.ranks)
        self.commands: list[Mailbox[Command]] = [Mailbox() for _ in self.ranks]
        lead = self.ranks[0]
        limits = smallest(rank.limits for rank in self.ranks)
        self.leader = RoundsLeader(
            ranks=world.ranks,
            max_batch=world.batch,
            slow_interval=0.002,
            chain=lead.admission.chain,
            block=world.block,
        )
        self.head = Head(lead, world=world, limits=limits, send=self._send, rng=self.rng, publisher=publisher)
        for rank in self.ranks:
            for root in self.head.roots:
                rank.warm(root, list(range(world.step, len(root) + 1, 2 * world.step)))
        self.threads = [self._admission(rank) for rank in self.ranks]
        self.threads.append(self._thread("LOOP 0", self._lead))
        self.threads += [self._thread(f"LOOP {rank.index}", self._follower(rank)) for rank in self.ranks[1:]]

    def _send(self, command: Command) -> None:
        alone(self.ranks[0])
        for mailbox in self.commands[1:]:
            mailbox.put(command)

    # --- threads --------------------------------------------------------------------------------------------

    def _admission(self, rank: Rank) -> threading.Thread:
        rounds: LeadingRounds | FollowingRounds
        link: Any
        if rank.index:
            link = self.hub.members[rank.index - 1]
            rounds = FollowingRounds(
                member=rank.member, sender=link, handover=rank.handover, timeline=NullTimeline()
            )
        else:
            link = self.hub
            rounds = LeadingRounds(
                leader=self.leader,
                member=rank.member,
                sender=link,
                handover=rank.handover,
                ranks=self.world.ranks,
                free_rows=lambda: rank.admission.free_rows,
                timeline=NullTimeline(),
                ahead=self.world.ahead,
                patience=rank.gain_to_wait_for,
            )
        return AdmissionThread(rounds=rounds, link=link, handover=rank.handover, on_failure=self._failed)

    def _thread(self, name: str, what: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                what()
            except BaseException as failure:
                self._failed(failure)

        return threading.Thread(target=guarded, name=name, daemon=True)

    def _failed(self, failure: BaseException) -> None:
        self.failures.append("".join(traceback.format_exception(failure)))
        self.stopping = True

    def _look(self, rank: Rank, expensive: bool) -> None:
        with rank.cache.mutex:
            check_promises(rank)
            if expensive:
                check_pools(rank)
        self.checks += 1

    def _follower(self, rank: Rank) -> Callable[[], None]:
        before, wake = self.ranks[rank.index - 1], rank.handover.loop_wake
        mailbox = self.commands[rank.index]
        loop = Loop(rank, _Never(), lambda: before.launched)
        rng = random.Random(rank.index)

        def follow() -> None:
            poller = select.poll()
            for source in (wake.fileno(), mailbox.wake.fileno()):
                poller.register(source, select.POLLIN)
            while not self.stopping:
                wake.clear()
                while (command := mailbox.get()) is not None:
                    loop.mail.append(command)
                loop.step()
                while loop.work is not None:
                    loop.step()
                    if rng.random() < 0.1:
                        self._look(rank, rng.random() < 0.02)
                if not loop._ready():
                    poller.poll(1)

        return follow

    def _lead(self) -> None:
        head, wake = self.head, self.ranks[0].handover.loop_wake
        poller = select.poll()
        poller.register(wake.fileno(), select.POLLIN)
        while not self.stopping:
            wake.clear()
            did = self._do(head.take_admissions())
            for act in self._choices():
                did |= self._do(act)
            if not did:
                poller.poll(1)

    def _choices(self) -> Iterator[Iterator[None]]:
        head, rng = self.head, self.rng
        wave = next(iter(head.rank.flights), None)
        if wave is not None and wave <= self.ranks[-1].launched:
            yield head.result(wave)
        if not self.draining:
            if len(head.bookings) < ALIVE and rng.random() < 0.5:
                head.arrive()
            if rng.random() < 0.02 and head.bookings:
                yield head.abort_any()
        if head.has_slot() and head.unplanned() and rng.random() < 0.7:
            yield head.launch_prefill()
        if head.has_slot() and head.decoding() and rng.random() < 0.7:
            yield head.launch_decode()
        if head.is_idle() and rng.random() < 0.1 and not self.draining:
            yield head.flush()

    def _do(self, work: Iterator[None]) -> bool:
        did = False
        for _ in work:
            did = True
            if self.rng.random() < 0.1:
                self._look(self.ranks[0], self.rng.random() < 0.02)
        return did

    # --- a run ----------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        for thread in self.threads:
            thread.start()
        self._wait(lambda: False, seconds)
        self.draining = True
        quiet = self._wait(self._quiet, PATIENCE)
        self.stopping = True
        for thread in self.threads:
            if isinstance(thread, AdmissionThread):
                thread.stop(10)
            thread.join(10)
            assert self.failures or not thread.is_alive(), f"{thread.name} hangs"
        assert not self.failures, self.failures[0]
        assert quiet, f"not quiet after {PATIENCE} s: {[sorted(rank.jobs) for rank in self.ranks]}"
        for rank in self.ranks:
            check_drained(rank)

    def _quiet(self) -> bool:
        head = self.head
        applied = [rank.handover.last_applied_command for rank in self.ranks]
        jobs = any(rank.jobs or rank.member.known for rank in self.ranks)
        return head.is_idle() and self.leader.idle() and not jobs and set(applied) == {head.seq}

    def _wait(self, done: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.failures:
            if done():
                return True
            time.sleep(0.01)
        return done()


class _Never:
    """The wake-up of a `Loop` whose thread has looked at the real one."""

    def clear(self) -> None:
        """Nothing to clear."""


@contextmanager
def frequent_switches() -> Iterator[None]:
    """Let threads interrupt each other after every few instructions."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("name", WORLDS)
def test_threads_keep_every_promise_and_hold_no_tree_while_they_send(name: str) -> None:
    stress = Stress(WORLDS[name], seed=1)
    with frequent_switches():
        stress.run(1.5)
    assert stress.checks > 10
    assert stress.head.stat["finished"] >= 5, stress.head.stat


@pytest.mark.full
@pytest.mark.parametrize("name", WORLDS)
def test_threads_keep_every_promise_for_minutes(name: str) -> None:
    stress = Stress(WORLDS[name], seed=2)
    with frequent_switches():
        stress.run(120)
    assert stress.head.stat["finished"] >= 500, stress.head.stat
    assert stress.head.stat["withdrawn"] + stress.head.stat["aborted"] > 10, stress.head.stat


def test_a_sender_that_holds_its_tree_is_caught() -> None:
    rank = Stress(WORLDS["dense page 4"], seed=1).ranks[0]
    alone(rank)
    with rank.cache.mutex, pytest.raises(AssertionError, match="rank 0 sends while it holds its tree"):
        alone(rank)
