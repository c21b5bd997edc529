"""Requests that wait until an earlier one has computed a prefix of theirs."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest
from unit.admission.wording import PENDING, held, record, vote

from sglang_wavepp.admission.leader import Arriving, LeaderEvents, RoundsLeader
from sglang_wavepp.admission.messages import AttemptVote, Broadcast, InstallRecord

pytestmark = pytest.mark.unit

BLOCK = 2
SLOW, RETRY = 0.02, 0.001


class Chains:
    """Two ranks; a prompt is a string, each block of which has a hash of its own."""

    def __init__(self, *, patience: int = BLOCK) -> None:
        self.prompts: dict[str, str] = {}
        self.patience = patience
        self.leader = RoundsLeader(
            ranks=2, max_batch=9, slow_interval=SLOW, retry_interval=RETRY, chain=self.chain, block=BLOCK
        )
        self.now = 100.0
        self.cached: dict[str, int] = {}
        self.applied = [0, 0]
        self.pending: set[str] = set()

    def chain(self, rid: str) -> Sequence[int]:
        prompt = self.prompts[rid]
        return array("Q", [abs(hash(prompt[:end])) for end in range(BLOCK, len(prompt) + 1, BLOCK)])

    def announce(self, rid: str, prompt: str) -> None:
        self.prompts[rid] = prompt
        tokens = array("q", [ord(letter) for letter in prompt])
        like = record(rid)
        self.leader.announce(
            InstallRecord(
                rid=rid,
                epoch=0,
                token_ids=tokens,
                max_new_tokens=1,
                cache_limit=len(tokens) - 1,
                extra_key=like.extra_key,
                cache_salt=like.cache_salt,
                request=like.request,
            )
        )

    def due_in(self) -> float | None:
        due = self.leader.next_due(self.now, free_rows=9, patience=self.patience)
        return None if due is None else due - self.now

    def round(self) -> tuple[list[str], LeaderEvents]:
        opened = self.leader.next_broadcast(self.now, free_rows=9, patience=self.patience)
        assert opened is not None
        return [attempt.rid for attempt in opened.attempts], self.answer(opened)

    def answer(self, opened: Broadcast) -> LeaderEvents:
        def answered(rid: str, candidate: int) -> AttemptVote:
            return PENDING if rid in self.pending else held(candidate, candidate)

        return self.leader.on_votes(
            [
                vote(
                    rank,
                    opened.round,
                    applied_command=self.applied[rank],
                    hints={rid: self.cached.get(rid, 0) for rid, _ in opened.hints},
                    **{a.rid: answered(a.rid, a.candidate) for a in opened.attempts},
                )
                for rank in (0, 1)
            ]
        )


def two(patience: int = BLOCK) -> Chains:
    """The second shares six tokens with the first."""
    rounds = Chains(patience=patience)
    rounds.announce("first", "abcdefgh")
    rounds.announce("second", "abcdefxyz")
    rounds.round()
    return rounds


def test_the_second_is_held_back_and_others_pass_it() -> None:
    rounds = two()
    rounds.announce("other", "1234")
    assert rounds.round()[0] == ["first"]
    assert rounds.round()[0] == ["other"]
    assert rounds.leader.holds_back == 1
    assert rounds.leader.arriving(at_most=100, patience=BLOCK) == Arriving(tokens=0, blocked=1)
    assert rounds.due_in() == pytest.approx(SLOW), "nothing is urgent"


def test_it_comes_when_all_ranks_have_what_was_computed() -> None:
    rounds = two()
    rounds.round()
    rounds.leader.computed("first", 8, 5)
    assert rounds.due_in() == pytest.approx(RETRY)
    rounds.applied = [5, 4]
    rounds.cached = {"second": 6}
    assert rounds.round()[0] == []
    assert rounds.round()[0] == ["second"], "the hint tells that the prefix is there"


def test_a_prefix_that_was_lost_meanwhile_is_not_waited_for() -> None:
    rounds = two()
    rounds.round()
    rounds.leader.computed("first", 8, 5)
    rounds.applied = [5, 4]
    assert rounds.round()[0] == []
    assert rounds.round()[0] == [], "one rank has not applied the command, so it may still come"
    rounds.applied = [5, 5]
    assert rounds.round()[0] == []
    assert rounds.round()[0] == ["second"]


def test_what_lies_behind_the_common_prefix_is_not_waited_for() -> None:
    rounds = two()
    rounds.round()
    rounds.leader.computed("first", 4, 5)
    rounds.applied = [5, 5]
    rounds.round()
    assert rounds.round()[0] == []
    rounds.leader.computed("first", 6, 5)
    rounds.round()
    assert rounds.round()[0] == ["second"]


def test_who_gains_less_than_the_patience_is_not_held_back() -> None:
    assert two(patience=6).round()[0] == ["first"]
    assert two(patience=7).round()[0] == ["first", "second"]


def test_patience_may_run_out() -> None:
    rounds = two()
    rounds.round()
    assert rounds.round()[0] == []
    rounds.patience = 7
    assert rounds.due_in() == 0
    assert rounds.round()[0] == ["second"]
    assert rounds.leader.arriving(at_most=100, patience=7) == Arriving()


def test_an_earlier_request_that_ends_in_admission_is_not_waited_for() -> None:
    rounds = two()
    rounds.leader.abort("first")
    assert rounds.round()[1].withdrawn == ("first",)
    assert [each.rid for each in rounds.round()[1].admitted] == ["second"]
    assert rounds.leader.idle()


def test_a_held_back_request_can_be_aborted() -> None:
    rounds = two()
    rounds.round()
    rounds.leader.abort("second")
    assert rounds.round()[1].withdrawn == ("second",)
    assert rounds.leader.idle()


def test_an_attempt_under_way_is_not_held_back_any_more() -> None:
    rounds = two(patience=7)
    rounds.pending = {"second"}
    assert rounds.round()[0] == ["first", "second"]
    rounds.pending.clear()
    rounds.patience = BLOCK
    assert rounds.round()[0] == ["second"], "a rank could not judge it; the same attempt follows"


def test_a_round_does_not_grow_with_the_queue() -> None:
    rounds = Chains()
    for number in range(40):
        rounds.announce(f"{number}", "abcdefgh")
    for _ in range(5):
        rounds.round()
    opened = rounds.leader.next_broadcast(rounds.now, free_rows=9, patience=BLOCK)
    assert opened is not None and len(opened.hints) == 9 == rounds.leader.holds_back
    assert rounds.leader.arriving(at_most=1000, patience=BLOCK).blocked == 17, (
        "of eighteen, one not hinted yet"
    )


def test_what_arrives_counts_what_hints_left_up_to_who_waits() -> None:
    rounds = Chains()
    for rid, prompt in (("a", "1234"), ("b", "56789"), ("c", "abc")):
        rounds.announce(rid, prompt)
    assert rounds.leader.arriving(at_most=100) == Arriving(0, 0), "nothing is hinted yet"
    rounds.cached = {"b": 2}
    rounds.round()
    assert rounds.leader.arriving(at_most=100) == Arriving(4 + 3 + 3, 0)
    assert rounds.leader.arriving(at_most=5) == Arriving(4 + 3, 0), "enough is known"
