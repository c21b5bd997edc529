from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from sglang_wavepp.admission.hold import Shortage
from sglang_wavepp.admission.pools import PoolLimits
from sglang_wavepp.cache.ledger import CapacityLedger, LedgerError, Unpromised

pytestmark = pytest.mark.unit

HYBRID = PoolLimits(tokens=64, page_size=4, rows=3, context=64, recurrent_slots=10, slots_per_request=4)
DENSE = PoolLimits(tokens=64, page_size=4, rows=9, context=64)


def reserve(
    ledger: CapacityLedger,
    rid: str,
    *,
    endpoint: int = 0,
    total: int = 8,
    snapshot: int | None = None,
    available: int = 64,
) -> Shortage | None:
    return ledger.reserve(rid, endpoint=endpoint, total=total, snapshot=snapshot, available=available)


def test_a_request_is_promised_whole_pages_from_its_endpoint_on() -> None:
    ledger = CapacityLedger(DENSE)
    assert reserve(ledger, "a", endpoint=8, total=13) is None
    assert ledger.reserved_tokens == 8
    ledger.draw("a", 9)
    assert ledger.reserved_tokens == 4
    ledger.draw("a", 9)
    ledger.draw("a", 3)
    assert ledger.reserved_tokens == 4, "a position is absolute, so that saying it twice takes nothing twice"
    ledger.draw("a", 13)
    assert ledger.reserved_tokens == 0
    ledger.end("a")
    assert "a" not in ledger
    assert ledger.releases == 1


def test_the_last_token_is_promised_once() -> None:
    ledger = CapacityLedger(DENSE)
    assert reserve(ledger, "a", total=40) is None
    assert reserve(ledger, "b", total=28) is Shortage.TOKENS
    assert reserve(ledger, "b", total=24) is None
    ledger.check(64)
    with pytest.raises(LedgerError, match="promised more than there is"):
        ledger.check(60)


def test_nothing_changes_when_something_is_short() -> None:
    ledger = CapacityLedger(replace(HYBRID, recurrent_slots=9))
    assert reserve(ledger, "a", endpoint=4, snapshot=1) is None
    before = ledger.unpromised(64)
    assert reserve(ledger, "b", total=64) is Shortage.TOKENS
    assert reserve(ledger, "b", endpoint=4, snapshot=2) is Shortage.SLOTS, "4 + 4 and two snapshots are 10"
    assert ledger.unpromised(64) == before
    assert ledger.releases == 0


def test_slots_are_paid_by_entitlement() -> None:
    ledger = CapacityLedger(HYBRID)
    assert reserve(ledger, "a", endpoint=4, snapshot=1) is None
    assert reserve(ledger, "b", endpoint=4, snapshot=1) is None, "a shared snapshot is paid for once"
    assert ledger.unpromised(64).slots == 1
    ledger.unpin("a")
    assert ledger.unpromised(64).slots == 1, "b's lease pins it still"
    ledger.unpin("b")
    ledger.unpin("b")
    assert ledger.unpromised(64).slots == 2
    ledger.end("a")
    assert ledger.unpromised(64).slots == 6


def test_rows_are_promised() -> None:
    ledger = CapacityLedger(PoolLimits(tokens=64, page_size=4, rows=1, context=64))
    assert reserve(ledger, "a") is None
    assert reserve(ledger, "b") is Shortage.ROWS
    ledger.end("a")
    assert reserve(ledger, "b") is None


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda ledger: ledger.draw("a", 9), "draws up to 12 of the 8"),
        (lambda ledger: ledger.draw("b", 1), "b has no promise"),
        (lambda ledger: ledger.end("b"), "b has no promise"),
        (lambda ledger: ledger.unpin("b"), "b has no promise"),
        (lambda ledger: reserve(ledger, "a"), "a has a promise already"),
        (lambda ledger: reserve(ledger, "b", endpoint=3), "isn't in pages of 4"),
    ],
)
def test_who_takes_what_is_not_his_is_named(wrong: object, says: str) -> None:
    ledger = CapacityLedger(DENSE)
    reserve(ledger, "a", total=8)
    with pytest.raises(LedgerError, match=says):
        wrong(ledger)  # type: ignore[operator]
    ledger.check(64)


def test_more_in_any_component_is_news() -> None:
    base = Unpromised(tokens=4, rows=2, slots=3)
    assert not base.exceeds(base)
    assert Unpromised(5, 0, 0).exceeds(base)
    assert Unpromised(0, 3, 0).exceeds(base)
    assert Unpromised(0, 0, 4).exceeds(base)
    assert not Unpromised(4, 2, None).exceeds(base)


@dataclass
class Promise:
    start: int
    total: int
    drawn: int
    snapshot: int | None


class AgainstNaive(RuleBasedStateMachine):
    """The same promises kept as plain lists of pages and slots, counted by looking at them."""

    requests = Bundle("requests")

    @initialize(
        page=st.sampled_from((1, 4, 16)),
        slots=st.one_of(st.none(), st.integers(0, 14)),
        rows=st.integers(1, 4),
    )
    def start(self, page: int, slots: int | None, rows: int) -> None:
        self.limits = PoolLimits(
            tokens=page * 24,
            page_size=page,
            rows=rows,
            context=999,
            recurrent_slots=slots,
            slots_per_request=3,
        )
        self.ledger = CapacityLedger(self.limits)
        self.naive: dict[str, Promise] = {}
        self.available = page * 24
        self.count = self.ends = 0

    def pages(self, tokens: int) -> int:
        return sum(1 for _ in range(0, tokens, self.limits.page_size))

    def promised_pages(self) -> int:
        return sum(
            self.pages(p.total) - max(self.pages(p.drawn), self.pages(p.start)) for p in self.naive.values()
        )

    def promised_slots(self) -> int:
        pinned = {p.snapshot for p in self.naive.values()} - {None}
        return 3 * len(self.naive) + len(pinned)

    @rule(
        target=requests,
        start=st.integers(0, 6),
        extra=st.integers(1, 90),
        snapshot=st.one_of(st.none(), st.integers(0, 2)),
    )
    def reserve(self, start: int, extra: int, snapshot: int | None) -> object:
        rid, page = f"r{self.count}", self.limits.page_size
        self.count += 1
        promise = Promise(start * page, start * page + extra, start * page, snapshot)
        slots = self.limits.recurrent_slots
        pays = snapshot is not None and snapshot not in {p.snapshot for p in self.naive.values()}
        fits = (
            len(self.naive) < self.limits.rows
            and (slots is None or self.promised_slots() + 3 + pays <= slots)
            and (self.promised_pages() + self.pages(promise.total) - start) * page <= self.available
        )
        short = self.ledger.reserve(
            rid, endpoint=promise.start, total=promise.total, snapshot=snapshot, available=self.available
        )
        assert (short is None) == fits, short
        if not fits:
            return multiple()
        self.naive[rid] = promise
        return rid

    @rule(rid=requests, upto=st.integers(0, 200))
    def draw(self, rid: str, upto: int) -> None:
        if rid not in self.naive:
            return
        promise = self.naive[rid]
        if self.pages(upto) > self.pages(promise.total):
            with pytest.raises(LedgerError):
                self.ledger.draw(rid, upto)
            return
        before = self.promised_pages()
        promise.drawn = max(promise.drawn, upto)
        self.ledger.draw(rid, upto)
        self.available -= (before - self.promised_pages()) * self.limits.page_size  # the allocation itself

    @rule(rid=requests)
    def unpin(self, rid: str) -> None:
        if rid in self.naive:
            self.naive[rid].snapshot = None
            self.ledger.unpin(rid)

    @rule(rid=consumes(requests))
    def end(self, rid: str) -> None:
        promise = self.naive.pop(rid)
        grown = max(self.pages(promise.drawn) - self.pages(promise.start), 0)
        self.available += grown * self.limits.page_size
        self.ledger.end(rid)
        self.ends += 1

    @invariant()
    def counts_agree_and_nothing_is_negative(self) -> None:
        if not hasattr(self, "ledger"):
            return
        slots = self.limits.recurrent_slots
        assert self.ledger.reserved_tokens == self.promised_pages() * self.limits.page_size
        assert self.ledger.unpromised(self.available) == Unpromised(
            self.available - self.promised_pages() * self.limits.page_size,
            self.limits.rows - len(self.naive),
            None if slots is None else slots - self.promised_slots(),
        )
        self.ledger.check(self.available)
        assert (len(self.ledger), self.ledger.releases) == (len(self.naive), self.ends)


TestAgainstNaive = AgainstNaive.TestCase
TestAgainstNaive.settings = settings(max_examples=50, stateful_step_count=30, deadline=None, derandomize=True)
