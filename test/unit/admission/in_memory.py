"""Rounds links that live in one process: a list per direction, and a wake-up that a poller can watch."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

from sglang_wavepp.admission.messages import Broadcast, Gather, Vote
from sglang_wavepp.plane.wake import Wake

M = TypeVar("M")


class Mailbox(Generic[M]):
    """What one thread sent and another has not read."""

    def __init__(self) -> None:
        self.wake = Wake()
        self._lock = threading.Lock()
        self._messages: deque[M] = deque()

    def put(self, message: M) -> None:
        with self._lock:
            self._messages.append(message)
        self.wake.signal()

    def get(self) -> M | None:
        with self._lock:
            if self._messages:
                return self._messages.popleft()
        self.wake.clear()
        with self._lock:
            return self._messages.popleft() if self._messages else None


class Hub:
    """Rank 0's end; `members` are the others'."""

    def __init__(self, followers: int) -> None:
        self.votes: Mailbox[Vote] = Mailbox()
        self.members = [Spoke(self.votes) for _ in range(followers)]
        self.sent: list[Broadcast | Gather] = []

    @property
    def socket(self) -> int:
        return self.votes.wake.fileno()

    def broadcast(self, message: Broadcast) -> None:
        self._to_all(message)

    def gather(self, message: Gather) -> None:
        self._to_all(message)

    def receive(self) -> Vote | None:
        return self.votes.get()

    def _to_all(self, message: Broadcast | Gather) -> None:
        self.sent.append(message)
        for member in self.members:
            member.inbox.put(message)


class Spoke:
    """A follower's end."""

    def __init__(self, votes: Mailbox[Vote]) -> None:
        self.inbox: Mailbox[Broadcast | Gather] = Mailbox()
        self._votes = votes

    @property
    def socket(self) -> int:
        return self.inbox.wake.fileno()

    def vote(self, message: Vote) -> None:
        self._votes.put(message)

    def receive(self) -> Broadcast | Gather | None:
        return self.inbox.get()
