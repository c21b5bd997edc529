"""Promises beside a model that compares every two prompts."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from sglang_wavepp.admission.block_hash import block_hashes
from sglang_wavepp.admission.promises import Promises

pytestmark = pytest.mark.model

BLOCK = 4


def chain_of(tokens: list[int]) -> array[int]:
    return block_hashes(array("q", tokens), block=BLOCK, seed=7)


def common(a: list[int], b: list[int]) -> int:
    """Tokens of the full blocks that two prompts share."""
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return same // BLOCK * BLOCK


@dataclass
class OnItsWay:
    tokens: list[int]
    published: int = 0


class PromisesMachine(RuleBasedStateMachine):
    requests = Bundle("requests")

    @initialize()
    def start(self) -> None:
        self.promises = Promises(block=BLOCK)
        self.live: dict[str, OnItsWay] = {}
        self.count = 0
        self.untouched = True
        """Whether nothing has been published or has left, so that the longest common prefix is promised."""

    @rule(target=requests, tokens=st.lists(st.integers(0, 1), max_size=26))
    def enter(self, tokens: list[int]) -> str:
        self.count += 1
        rid = f"r{self.count}"
        self.promises.enter(rid, chain_of(tokens))
        self.live[rid] = OnItsWay(tokens)
        return rid

    @rule(rid=requests, upto=st.integers(0, 30))
    def publish(self, rid: str, upto: int) -> None:
        self.promises.publish(rid, upto)
        request = self.live.get(rid)
        if request is not None:
            self.untouched = False
            request.published = max(request.published, upto)
            if request.published // BLOCK >= len(request.tokens) // BLOCK:
                del self.live[rid]

    @rule(rid=consumes(requests))
    def leave(self, rid: str) -> None:
        self.promises.leave(rid)
        self.untouched &= rid not in self.live
        self.live.pop(rid, None)

    @invariant()
    def a_promise_is_what_an_earlier_request_will_still_compute(self) -> None:
        earlier: list[OnItsWay] = []
        for rid, request in self.live.items():
            promised = self.promises.promised(rid)
            shared = [(common(request.tokens, other.tokens), other) for other in earlier]
            assert promised % BLOCK == 0
            assert not promised or any(
                end >= promised and other.published < promised for end, other in shared
            ), f"nobody before {rid} computes its first {promised} tokens"
            if self.untouched:
                assert promised == max((end for end, _ in shared), default=0)
            earlier.append(request)

    @invariant()
    def the_first_on_its_way_waits_for_nobody_and_nothing_is_left_behind(self) -> None:
        if self.live:
            assert self.promises.promised(next(iter(self.live))) == 0
        assert len(self.promises) <= sum(len(request.tokens) // BLOCK for request in self.live.values())
        assert [rid for rid in self.live if rid not in self.promises] == []


PromisesMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestPromises = PromisesMachine.TestCase


def test_a_request_publishes_piece_by_piece_and_then_is_forgotten() -> None:
    promises = Promises(block=BLOCK)
    shared = list(range(20))
    promises.enter("first", chain_of([*shared, 100, 101, 102, 103]))
    promises.enter("second", chain_of([*shared, 200, 201, 202, 203]))
    assert promises.promised("second") == 20
    promises.publish("first", 12)
    assert promises.promised("second") == 20, "more is still to come"
    promises.publish("first", 21)
    assert promises.promised("second") == 0
    assert "first" in promises
    promises.publish("first", 24)
    assert "first" not in promises and len(promises) == 1, "only what the second has for itself"


def test_who_comes_later_is_never_waited_for() -> None:
    promises = Promises(block=BLOCK)
    shared = list(range(8))
    promises.enter("first", chain_of(shared))
    promises.enter("second", chain_of([*shared, 1, 1, 1, 1]))
    promises.leave("first")
    promises.enter("third", chain_of([*shared, 2, 2, 2, 2]))
    assert promises.promised("second") == 0
    assert promises.promised("third") == 0, "the second didn't come first with these blocks"


def test_entering_twice_is_an_error() -> None:
    promises = Promises(block=BLOCK)
    promises.enter("a", chain_of([1, 2, 3, 4]))
    with pytest.raises(ValueError, match="promises already"):
        promises.enter("a", chain_of([1, 2, 3, 4]))
