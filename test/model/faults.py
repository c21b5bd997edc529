"""Faults that somebody could put into admission: each patches the product, and some check must notice it."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_wavepp.admission import decision, messages
from sglang_wavepp.admission.hint import Hint, HintProbe
from sglang_wavepp.admission.hint_index import HintIndex
from sglang_wavepp.admission.hold import Hold, Shortage
from sglang_wavepp.admission.member import RoundsMember
from sglang_wavepp.admission.messages import InstallRecord
from sglang_wavepp.cache.escrow import EscrowBook
from sglang_wavepp.cache.holdings import Holdings
from sglang_wavepp.cache.ledger import CapacityLedger
from sglang_wavepp.cache.soft_holds import SoftHolds
from sglang_wavepp.cache.tree_core import IndexedTreeCore


def reads_room_before_the_pin(patch: pytest.MonkeyPatch) -> None:
    reserve = CapacityLedger.reserve

    def faulty(
        self: CapacityLedger, rid: str, *, endpoint: int, available: int, **rest: Any
    ) -> Shortage | None:
        return reserve(self, rid, endpoint=endpoint, available=available + endpoint, **rest)

    patch.setattr(CapacityLedger, "reserve", faulty)


def two_leases_pay_twice(patch: pytest.MonkeyPatch) -> None:
    reserve = CapacityLedger.reserve

    def faulty(self: CapacityLedger, rid: str, *, snapshot: object, **rest: Any) -> Shortage | None:
        return reserve(self, rid, snapshot=None if snapshot is None else (rid, snapshot), **rest)

    patch.setattr(CapacityLedger, "reserve", faulty)


def snapshot_stays_paid_after_the_hand_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CapacityLedger, "unpin", lambda self, rid: None)


def waits_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Holdings, "_conclude", lambda self, record, shortage: _concluded(self, record, shortage))


def _concluded(holdings: Holdings, record: InstallRecord, shortage: Shortage | None) -> Hold | Shortage:
    return shortage if shortage is not None else Hold(holdings._leases[record.rid].endpoint)


def trims_to_nothing(patch: pytest.MonkeyPatch) -> None:
    trim = Holdings.trim
    patch.setattr(Holdings, "trim", lambda self, record, limit: trim(self, record, 0))


def ends_without_giving_back(patch: pytest.MonkeyPatch) -> None:
    end = CapacityLedger.end

    def faulty(self: CapacityLedger, rid: str) -> None:
        reserved = self._reserved
        end(self, rid)
        self._reserved = reserved

    patch.setattr(CapacityLedger, "end", faulty)


def says_nothing_of_room_from_checkpoints(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Holdings, "releases", property(lambda self: 0))


def claims_are_not_replaced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EscrowBook, "settle", lambda self: None)


def hints_too_far(patch: pytest.MonkeyPatch) -> None:
    hint = HintProbe.hint
    patch.setattr(
        HintProbe,
        "hint",
        lambda self, hashes, limit: Hint(min(hint(self, hashes, limit).endpoint + 1, limit)),
    )


def tries_behind_one_that_waits(patch: pytest.MonkeyPatch) -> None:
    attempt = RoundsMember._attempt_all

    def faulty(self: RoundsMember, attempts: Any, *, fenced: bool) -> dict[str, messages.AttemptVote]:
        votes: dict[str, messages.AttemptVote] = {}
        for each in attempts:
            votes |= attempt(self, [each], fenced=fenced)
        return votes

    patch.setattr(RoundsMember, "_attempt_all", faulty)


def releases_what_is_lowered(patch: pytest.MonkeyPatch) -> None:
    on_gather = RoundsMember.on_gather

    def faulty(self: RoundsMember, gather: messages.Gather) -> tuple[decision.Outcome, ...]:
        outcomes = on_gather(self, gather)
        for outcome in outcomes:
            if outcome.verdict is decision.Verdict.LOWER:
                self._cache.release(outcome.rid)
        return outcomes

    patch.setattr(RoundsMember, "on_gather", faulty)


def aborts_keep_what_they_held(patch: pytest.MonkeyPatch) -> None:
    on_broadcast = RoundsMember.on_broadcast

    def faulty(self: RoundsMember, broadcast: messages.Broadcast, *, applied_command: int) -> messages.Vote:
        release, self._cache.release = self._cache.release, lambda rid: None  # type: ignore[method-assign]
        try:
            return on_broadcast(self, broadcast, applied_command=applied_command)
        finally:
            self._cache.release = release  # type: ignore[method-assign]

    patch.setattr(RoundsMember, "on_broadcast", faulty)


def admits_at_the_least_endpoint_whoever_holds_more(patch: pytest.MonkeyPatch) -> None:
    decide_one = decision._decide_one

    def faulty(*args: Any) -> decision.Outcome:
        outcome = decide_one(*args)
        if outcome.verdict is not decision.Verdict.LOWER:
            return outcome
        return decision.Outcome(outcome.rid, outcome.epoch, decision.Verdict.ADMITTED, outcome.endpoint)

    patch.setattr(decision, "_decide_one", faulty)


def holds_before_a_flush_is_applied(patch: pytest.MonkeyPatch) -> None:
    attempt = RoundsMember._attempt_all
    patch.setattr(
        RoundsMember, "_attempt_all", lambda self, attempts, *, fenced: attempt(self, attempts, fenced=False)
    )


def a_lease_keeps_its_lock_after_the_hand_over(patch: pytest.MonkeyPatch) -> None:
    hand_over = Holdings.hand_over

    def faulty(self: Holdings, rid: str) -> None:
        unlock, self._tree.unlock = self._tree.unlock, lambda receipt: None  # type: ignore[method-assign]
        try:
            hand_over(self, rid)
        finally:
            self._tree.unlock = unlock  # type: ignore[method-assign]

    patch.setattr(Holdings, "hand_over", faulty)


def free_places_back_two_promises(patch: pytest.MonkeyPatch) -> None:
    back = EscrowBook._back

    def faulty(self: EscrowBook, *args: Any) -> None:
        others, self._credit = self._credit, 0
        back(self, *args)
        self._credit += others

    patch.setattr(EscrowBook, "_back", faulty)


def anybody_evicts_what_is_held(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IndexedTreeCore, "takes", lambda self, node: node in self.evictable_device_leaves)


def claims_are_not_heard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SoftHolds, "locked", lambda self, node: None)


def splits_are_not_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EscrowBook, "split", lambda self, *args: None)


def the_index_keeps_what_has_gone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HintIndex, "remove", lambda self, component, hashes: None)


def the_index_misses_the_last_block(patch: pytest.MonkeyPatch) -> None:
    add = HintIndex.add
    patch.setattr(HintIndex, "add", lambda self, component, hashes: add(self, component, hashes[:-1]))
