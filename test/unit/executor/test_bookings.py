from dataclasses import dataclass, field
from typing import Any

import pytest

from sglang_wavepp.executor.bookings import Bookings, Phase
from sglang_wavepp.executor.keys import give_key, make_key
from sglang_wavepp.planning.spans import PlannedSpan


@dataclass
class FakeReq:
    rid: str
    origin_input_ids: list[int] = field(default_factory=lambda: [0] * 100)


def arrive(bookings: Bookings, arrival: int, rid: str) -> Any:
    req = FakeReq(rid)
    give_key(req, make_key(arrival, rid))
    return bookings.arrive(req)


def test_spans_are_planned_in_the_order_of_admission_and_advance_only_by_launches() -> None:
    bookings = Bookings(settled=lambda tokens: None)
    a, b = arrive(bookings, 1, "a"), arrive(bookings, 2, "b")
    assert not bookings.has_unplanned()
    bookings.admit(a.key, 40)
    bookings.admit(b.key, 0)
    assert [(r.rid, r.start, r.prompt) for r in bookings.remainders()] == [("1:a", 40, 100), ("2:b", 0, 100)]
    bookings.launch(1, (PlannedSpan("1:a", 40, 60),), command=1)
    assert a.planned and a.in_flight == 1
    assert [r.rid for r in bookings.remainders()] == ["2:b"]


def test_a_span_that_leaves_a_gap_is_an_error() -> None:
    bookings = Bookings(settled=lambda tokens: None)
    a = arrive(bookings, 1, "a")
    bookings.admit(a.key, 0)
    with pytest.raises(RuntimeError, match="is at 0 of 100"):
        bookings.launch(2, (PlannedSpan(a.key, 10, 5),), command=1)


def test_the_same_client_id_may_come_twice() -> None:
    bookings = Bookings(settled=lambda tokens: None)
    first, second = arrive(bookings, 1, "same"), arrive(bookings, 2, "same")
    assert {b.key for b in bookings.matching("same", everything=False)} == {first.key, second.key}
    bookings.end(first.key)
    assert bookings.get(second.key) is second and bookings.get(first.key) is None


def test_aborts_match_ids_by_prefix_or_all() -> None:
    bookings = Bookings(settled=lambda tokens: None)
    for number, rid in enumerate(("job-1", "job-2", "other")):
        arrive(bookings, number, rid)
    assert [b.req.rid for b in bookings.matching("job", everything=False)] == ["job-1", "job-2"]
    assert len(bookings.matching("", everything=True)) == 3


def test_an_aborted_request_gets_no_more_spans() -> None:
    bookings = Bookings(settled=lambda tokens: None)
    a = arrive(bookings, 1, "a")
    bookings.admit(a.key, 0)
    assert a.phase is Phase.PREFILL
    bookings.stop_planning(a.key)
    assert not bookings.has_unplanned() and len(bookings) == 1


def test_every_token_that_was_admitted_is_settled_once() -> None:
    settled: list[int] = []
    bookings = Bookings(settled=settled.append)
    a, b, c = (arrive(bookings, number, "x") for number in range(3))
    bookings.admit(a.key, 40)
    bookings.launch(3, (PlannedSpan(a.key, 40, 50),), command=1)
    bookings.launch(4, (PlannedSpan(a.key, 90, 10),), command=1)
    bookings.end(a.key)
    assert settled == [50, 10]
    bookings.admit(b.key, 64)
    bookings.launch(5, (PlannedSpan(b.key, 64, 6),), command=1)
    bookings.stop_planning(b.key)
    bookings.end(b.key)
    assert settled == [50, 10, 6, 30]
    bookings.end(c.key)
    assert sum(settled) == 60 + 36, "what was never admitted is not settled"


def test_of_a_long_request_only_the_last_tokens_count() -> None:
    settled: list[int] = []
    bookings = Bookings(settled=settled.append, counted=30)
    a, b = arrive(bookings, 1, "a"), arrive(bookings, 2, "b")
    bookings.admit(a.key, 0)
    bookings.launch(1, (PlannedSpan(a.key, 0, 60),), command=1)
    assert settled == [] and bookings.unplanned_tokens == 40
    bookings.launch(2, (PlannedSpan(a.key, 60, 25),), command=2)
    assert settled == [15]
    bookings.stop_planning(a.key)
    assert settled == [15, 15], "thirty tokens counted"
    bookings.admit(b.key, 80)
    bookings.end(b.key)
    assert settled == [15, 15, 20]


def test_what_flies_and_what_is_left_is_counted() -> None:
    bookings = Bookings(settled=lambda tokens: None)
    a, b = arrive(bookings, 1, "a"), arrive(bookings, 2, "b")
    assert bookings.in_admission == 2 and bookings.unplanned_tokens == 0
    bookings.admit(a.key, 40)
    assert bookings.in_admission == 1 and bookings.unplanned_tokens == 60
    first = (PlannedSpan(a.key, 40, 50),)
    second = (PlannedSpan(a.key, 90, 10),)
    assert bookings.launch(7, first, command=70) == [a] and bookings.launch(8, second, command=71) == [a]
    assert bookings.flying() == (first, second) and bookings.unplanned_tokens == 0
    assert bookings.land(7) == (first, 70) and bookings.flying() == (second,)
    bookings.end(b.key)
    assert bookings.in_admission == 0
    with pytest.raises(RuntimeError, match="isn't known"):
        bookings.launch(9, (PlannedSpan(b.key, 0, 1),), command=1)
