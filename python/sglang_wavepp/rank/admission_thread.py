"""Who runs a rank's rounds: a thread of its own, or the LOOP itself.

Both drive the same objects over the same link. The thread lets the LOOP run waves while ranks agree; run
inline, each agreement holds the LOOP up, which is the baseline that the thread is measured against.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

import zmq

from sglang_wavepp.admission.messages import Broadcast, Gather, Vote
from sglang_wavepp.rank.handover import Handover
from sglang_wavepp.rank.rounds import FollowingRounds, LeaderSender, LeadingRounds, MemberSender

SWITCH_INTERVAL_S = 0.0005
"""How long a busy thread may keep the interpreter when another wants it. Python's 5 ms is longer than a round."""


class LeaderLink(LeaderSender, Protocol):
    """Rank 0's end of the rounds link."""

    @property
    def socket(self) -> Any:
        """What a `zmq.Poller` watches for votes."""

    def receive(self) -> Vote | None:
        """The next vote that has arrived, None when none has."""


class MemberLink(MemberSender, Protocol):
    """A follower's end of the rounds link."""

    @property
    def socket(self) -> Any:
        """What a `zmq.Poller` watches for messages of rank 0."""

    def receive(self) -> Broadcast | Gather | None:
        """The next message that has arrived, None when none has."""


class RoundsTimeout(RuntimeError):
    """Ranks did not vote in time; `ranks` are their indices, `names` how people call them."""

    def __init__(self, ranks: tuple[int, ...], seconds: float, names: Mapping[int, str]) -> None:
        self.ranks = ranks
        named = ", ".join(names.get(rank, f"rank {rank}") for rank in ranks)
        super().__init__(f"no vote from {named} within {seconds:g} s (--wavepp-rounds-timeout)")


class AdmissionThread(threading.Thread):
    """The admission thread of a rank.

    Args:
        rounds: what to drive: `LeadingRounds` on rank 0, `FollowingRounds` elsewhere.
        link: this rank's end of the rounds link, used by this thread only from its start on.
        handover: shared with the LOOP.
        on_failure: called once with whatever ended the thread too early; it must end the server.
        timeout: seconds that rank 0 waits for the votes of a round, None for ever. Missing ones are a failure: a
            rank may be alive and yet never answer.
        names: what errors call each rank, by index.
    """

    def __init__(
        self,
        *,
        rounds: LeadingRounds | FollowingRounds,
        link: LeaderLink | MemberLink,
        handover: Handover,
        on_failure: Callable[[BaseException], None],
        timeout: float | None = None,
        names: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(name="WAVE", daemon=True)
        self._rounds = rounds
        self._link = link
        self._handover = handover
        self._on_failure = on_failure
        self._timeout = timeout
        self._names = names
        self._stopping = False

    def stop(self, timeout: float | None = None) -> None:
        """End the thread and wait for it; what is in admission stays there."""
        self._stopping = True
        self._handover.wave_wake.signal()
        if self.is_alive() and threading.current_thread() is not self:
            self.join(timeout)

    def run(self) -> None:
        """Serve until stopped."""
        try:
            self._serve()
        except BaseException as failure:
            self._on_failure(failure)

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._link.socket, zmq.POLLIN)
        poller.register(self._handover.wave_wake.fileno(), zmq.POLLIN)
        while not self._stopping:
            # Cleared before asks are taken: an ask that comes in between wakes the poll below.
            self._handover.wave_wake.clear()
            self._rounds.take_asks()
            receive(self._rounds, self._link)
            timeout = open_when_due(self._rounds)
            if timeout is None:
                timeout = self._patience_for_votes()
            if timeout is None or timeout > 0:
                # Rounded up, or the last millisecond before a round would be spent spinning.
                poller.poll(None if timeout is None else int(timeout * 1000) + 1)

    def _patience_for_votes(self) -> float | None:
        rounds = self._rounds
        if self._timeout is None or not isinstance(rounds, LeadingRounds) or not rounds.awaiting_votes:
            return None
        left = rounds.opened_at + self._timeout - time.monotonic()
        if left <= 0:
            raise RoundsTimeout(rounds.missing(), self._timeout, self._names)
        return left


class InlineAdmission:
    """Rounds run by the LOOP.

    On rank 0 `run_round` holds the LOOP up until all ranks have voted. A follower's LOOP watches `socket` and
    calls `serve` when it is readable.

    Args:
        rounds: what to drive.
        link: this rank's end of the rounds link.
        timeout: seconds that rank 0 waits for votes.
        names: what errors call each rank, by index.
    """

    def __init__(
        self,
        *,
        rounds: LeadingRounds | FollowingRounds,
        link: LeaderLink | MemberLink,
        timeout: float,
        names: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self._rounds = rounds
        self._link = link
        self._timeout = timeout
        self._names = names
        self._poller = zmq.Poller()
        self._poller.register(link.socket, zmq.POLLIN)

    @property
    def socket(self) -> Any:
        """What the LOOP's poller watches on a follower."""
        return self._link.socket

    def next_due(self, now: float) -> float | None:
        """Rank 0: when `run_round` has something to do, in the seconds of `now` (`time.monotonic`)."""
        self._rounds.take_asks()
        return self._rounds.next_due(now) if isinstance(self._rounds, LeadingRounds) else None

    def run_round(self) -> bool:
        """Rank 0: run one round if one is due, to its end. Whether one was.

        Raises:
            RoundsTimeout: not all ranks voted in time.
        """
        rounds = self._rounds
        if not isinstance(rounds, LeadingRounds):
            raise RuntimeError("only rank 0 runs rounds")
        rounds.take_asks()
        now = time.monotonic()
        due = rounds.next_due(now)
        if due is None or due > now or not rounds.open(now):
            return False
        deadline = now + self._timeout
        while rounds.awaiting_votes:
            if receive(rounds, self._link):
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                raise RoundsTimeout(rounds.missing(), self._timeout, self._names)
            self._poller.poll(int(left * 1000) + 1)
        return True

    def serve(self) -> None:
        """Follower: answer what has arrived."""
        self._rounds.take_asks()
        receive(self._rounds, self._link)


def receive(rounds: LeadingRounds | FollowingRounds, link: Any) -> bool:
    """Take in everything that has arrived; whether anything had."""
    any_came = False
    while (message := link.receive()) is not None:
        any_came = True
        if isinstance(rounds, LeadingRounds):
            rounds.on_vote(message)
        else:
            rounds.on_message(message)
    return any_came


def open_when_due(rounds: LeadingRounds | FollowingRounds) -> float | None:
    """Open a round on rank 0 if one is due.

    Returns:
        Seconds until the next one, 0 when there is more to do at once, None when only a message or an ask
        changes it.
    """
    if not isinstance(rounds, LeadingRounds):
        return None
    now = time.monotonic()
    due = rounds.next_due(now)
    if due is None:
        return None
    if due > now:
        return due - now
    rounds.open(now)
    return 0.0
