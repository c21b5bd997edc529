from __future__ import annotations

from collections.abc import Mapping

import pytest
from unit.admission.wording import NOCAP, PENDING, held, record, vote

from sglang_wavepp.admission.decision import Verdict
from sglang_wavepp.admission.leader import UNLIMITED, Admitted, LeaderEvents, RoundsLeader
from sglang_wavepp.admission.messages import AttemptVote, Broadcast

pytestmark = pytest.mark.unit

SLOW, RETRY = 0.02, 0.001


class Rounds:
    """Two ranks: opens rounds at a clock of its own and answers them from a table.

    `answers` maps a request to what rank 0 and rank 1 vote; who isn't in it is held at the candidate. `hints` maps a
    request to both ranks' hints, 8 if missing.
    """

    def __init__(self, *, batch: int = 4, rows: int = 9, wanted: int = UNLIMITED) -> None:
        self.leader = RoundsLeader(ranks=2, max_batch=batch, slow_interval=SLOW, retry_interval=RETRY)
        self.now = 100.0
        self.rows = rows
        self.wanted = wanted
        self.releases = [0, 0]

    def announce(self, *rids: str) -> Rounds:
        for rid in rids:
            self.leader.announce(record(rid))
        return self

    def due_in(self) -> float | None:
        due = self.leader.next_due(self.now, free_rows=self.rows, wanted=self.wanted)
        return None if due is None else due - self.now

    def open(self) -> Broadcast:
        opened = self.leader.next_broadcast(self.now, free_rows=self.rows, wanted=self.wanted)
        assert opened is not None
        return opened

    def answer(
        self,
        opened: Broadcast,
        answers: Mapping[str, tuple[AttemptVote, AttemptVote]] | None = None,
        hints: Mapping[str, tuple[int | None, int | None]] | None = None,
    ) -> LeaderEvents:
        votes = [
            vote(
                rank,
                opened.round,
                releases=self.releases[rank],
                hints={rid: (hints or {}).get(rid, (8, 8))[rank] for rid, _ in opened.hints},
                **{
                    a.rid: (answers or {}).get(a.rid, (held(a.candidate, a.candidate),) * 2)[rank]
                    for a in opened.attempts
                },
            )
            for rank in (0, 1)
        ]
        return self.leader.on_votes(votes)

    def round(
        self,
        answers: Mapping[str, tuple[AttemptVote, AttemptVote]] | None = None,
        hints: Mapping[str, tuple[int | None, int | None]] | None = None,
    ) -> tuple[list[str], list[str], LeaderEvents]:
        """Names of the attempts, of the hints, and what came of it."""
        opened = self.open()
        events = self.answer(opened, answers, hints)
        return [a.rid for a in opened.attempts], [rid for rid, _ in opened.hints], events


def test_a_request_is_announced_and_hinted_then_admitted_at_the_lowest_hint() -> None:
    rounds = Rounds().announce("a")
    assert rounds.due_in() == 0
    first = rounds.open()
    assert ([r.rid for r in first.records], first.attempts, first.hints) == (["a"], (), (("a", 0),))
    assert rounds.due_in() is None, "one round at a time"
    rounds.answer(first, hints={"a": (8, 5)})
    assert rounds.due_in() == 0
    second = rounds.open()
    assert [(a.rid, a.candidate) for a in second.attempts] == [("a", 5)]
    assert (second.records, second.hints) == ((), ())
    assert rounds.answer(second).admitted == (Admitted("a", 0, 5, suffix=5),)
    assert rounds.leader.idle()
    assert rounds.due_in() is None


def test_nobody_is_attempted_before_tokens_are_wanted() -> None:
    rounds = Rounds(wanted=3).announce("a", "b", "c")
    rounds.round()
    assert rounds.round()[0] == ["a", "b"], (
        "2 tokens of each are left to compute: the second covers what is wanted"
    )
    rounds.wanted = 0
    assert rounds.due_in() is None, "nothing is asked until rank 0 has planned some"
    rounds.wanted = 1
    assert rounds.due_in() == 0
    assert rounds.round()[:2] == ([], ["c"]), "the hint may have grown old meanwhile"
    assert rounds.round()[0] == ["c"]


def test_a_long_request_is_not_all_that_is_wanted() -> None:
    rounds = Rounds(wanted=3)
    rounds.leader = RoundsLeader(ranks=2, max_batch=4, counted=1)
    rounds.announce("a", "b", "c", "d")
    rounds.round()
    assert rounds.round()[0] == ["a", "b", "c"], "one token of each counts"


def test_an_arrival_is_announced_also_when_no_tokens_are_wanted() -> None:
    rounds = Rounds(wanted=0).announce("a")
    assert rounds.due_in() == 0
    assert rounds.round()[1] == ["a"]
    assert rounds.due_in() is None


def test_what_goes_on_lower_is_attempted_whatever_is_wanted() -> None:
    rounds = Rounds(wanted=1).announce("a")
    rounds.round()
    rounds.round({"a": (held(8, 8), held(4, 8))})
    rounds.wanted = 0
    assert rounds.due_in() == 0, "ranks hold room for it"
    assert rounds.round()[0] == ["a"]


def test_attempts_keep_arrival_order_within_batch_and_rows() -> None:
    rounds = Rounds(batch=2, rows=9).announce("a", "b", "c")
    rounds.round()
    assert rounds.round()[:2] == (["a", "b"], ["c"])
    rounds = Rounds(batch=9, rows=1).announce("a", "b", "c")
    rounds.round()
    assert rounds.round()[0] == ["a"]


def test_without_a_free_row_only_the_head_is_asked_about_and_slowly() -> None:
    rounds = Rounds(rows=0).announce("a", "b")
    rounds.round()
    assert rounds.due_in() == pytest.approx(SLOW)
    rounds.now += SLOW
    assert rounds.round()[:2] == ([], ["a"])
    assert rounds.due_in() == pytest.approx(SLOW)
    rounds.rows = 1
    assert rounds.due_in() == 0
    assert rounds.round()[0] == ["a"]


def test_nobody_is_attempted_behind_a_waiting_head() -> None:
    rounds = Rounds().announce("a", "b")
    rounds.round()
    _, _, events = rounds.round({"a": (held(8, 8), NOCAP), "b": (held(8, 8), NOCAP)})
    assert events.waits == {Verdict.WAIT: 2}
    assert rounds.leader.waiting() == 2
    rounds.announce("c")
    for _ in range(3):
        attempts, hints, _ = rounds.round()
        assert attempts == []
        assert hints[0] == "a"


def test_the_head_is_tried_again_when_every_rank_that_had_no_room_got_some_back() -> None:
    rounds = Rounds().announce("a")
    rounds.releases = [3, 5]
    rounds.round()
    rounds.round({"a": (NOCAP, NOCAP)})
    assert rounds.due_in() == pytest.approx(SLOW)
    for releases in ([9, 5], [3, 9]):
        rounds.releases = releases
        rounds.now += SLOW
        assert rounds.round()[:2] == ([], ["a"]), "one of the two still has no room"
    rounds.releases = [4, 6]
    rounds.now += SLOW
    rounds.round(hints={"a": (9, 9)})
    assert rounds.due_in() == 0
    opened = rounds.open()
    assert [(a.rid, a.candidate) for a in opened.attempts] == [("a", 9)], "from the fresh hint"


def test_ranks_that_had_room_are_not_waited_for() -> None:
    rounds = Rounds().announce("a")
    rounds.round()
    rounds.round({"a": (held(8, 8), NOCAP)})
    rounds.releases = [0, 1]
    rounds.round()
    assert rounds.round()[0] == ["a"]


def test_capacity_of_rank_0_hurries_the_question_but_does_not_answer_it() -> None:
    rounds = Rounds().announce("a")
    rounds.round()
    rounds.round({"a": (held(8, 8), NOCAP)})
    rounds.leader.capacity_changed()
    assert rounds.due_in() == pytest.approx(RETRY)
    rounds.now += RETRY
    assert rounds.round()[0] == []
    assert rounds.due_in() == pytest.approx(SLOW), "one early question, not a storm"


def test_who_waited_behind_a_head_that_is_aborted_is_next() -> None:
    rounds = Rounds().announce("a", "b")
    rounds.round()
    rounds.round({"a": (held(8, 8), NOCAP), "b": (held(8, 8), NOCAP)})
    assert rounds.leader.abort("a")
    assert rounds.due_in() == 0
    assert rounds.round()[2].withdrawn == ("a",)
    assert rounds.round()[0] == ["b"], "rank 1 never tried b, so it will never report a release for it"


def test_a_lower_endpoint_is_the_next_candidate_without_a_new_hint() -> None:
    rounds = Rounds().announce("a")
    rounds.round()
    rounds.round({"a": (held(8, 8), held(4, 8))})
    assert rounds.due_in() == 0
    opened = rounds.open()
    assert [(a.rid, a.candidate) for a in opened.attempts] == [("a", 4)]
    assert opened.hints == ()
    rounds.answer(opened, {"a": (held(2, 4), held(4, 4))})
    assert [a.candidate for a in rounds.open().attempts] == [2]


def test_a_request_that_was_passed_is_not_passed_by_new_ones() -> None:
    rounds = Rounds(batch=2).announce("a", "b", "c")
    rounds.round()
    lower = {"a": (held(8, 8), held(4, 8))}
    attempts, _, events = rounds.round(lower)
    assert attempts == ["a", "b"]
    assert [x.rid for x in events.admitted] == ["b"], "b was held beside a, everywhere"
    attempts, _, events = rounds.round({"a": (held(4, 4), NOCAP)})
    assert attempts == ["a"]
    rounds.releases = [1, 1]
    rounds.round()
    attempts, _, events = rounds.round(lower)
    assert attempts == ["a"], "c must not pass it as b did"
    attempts, _, events = rounds.round()
    assert [x.rid for x in events.admitted] == ["a"]
    attempts = rounds.round()[0]
    assert attempts == ["c"]


def test_requests_that_go_on_lower_are_named_together() -> None:
    rounds = Rounds().announce("a", "b", "c")
    rounds.round()
    lower = (held(8, 8), held(4, 8))
    rounds.round({"a": lower, "b": lower})
    assert rounds.round()[0] == ["a", "b"]


def test_requests_that_go_on_lower_count_as_attempts() -> None:
    rounds = Rounds(batch=2).announce("a", "b", "c")
    rounds.round()
    lower = (held(8, 8), held(4, 8))
    assert rounds.round({"a": lower, "b": lower})[:2] == (["a", "b"], ["c"])
    assert rounds.round()[:2] == (["a", "b"], ["c"]), "three would be more than a batch"
    assert rounds.round()[0] == ["c"]


def test_what_a_rank_cannot_judge_is_asked_again_soon_with_the_same_candidate() -> None:
    rounds = Rounds().announce("a")
    rounds.leader.fence(12)
    rounds.round(hints={"a": (7, 9)})
    for _ in range(3):
        opened = rounds.open()
        assert [(a.rid, a.candidate) for a in opened.attempts] == [("a", 7)]
        assert opened.after_command == 12
        rounds.answer(opened, {"a": (PENDING, held(7, 7))})
        assert rounds.due_in() == pytest.approx(RETRY), "at once would be a storm of rounds"
        rounds.now += RETRY
    assert [x.endpoint for x in rounds.round()[2].admitted] == [7]


def test_a_request_that_a_rank_still_builds_is_asked_about_slowly() -> None:
    rounds = Rounds().announce("a")
    rounds.round(hints={"a": (7, None)})
    assert rounds.due_in() == pytest.approx(SLOW)
    assert rounds.round(hints={"a": (7, 6)})[:2] == ([], ["a"])
    assert rounds.due_in() == 0
    assert [a.candidate for a in rounds.open().attempts] == [6]


def test_a_request_that_a_rank_still_builds_is_in_nobodys_way() -> None:
    rounds = Rounds(batch=2).announce("a", "b")
    rounds.round(hints={"a": (7, None), "b": (5, 5)})
    assert rounds.due_in() == 0
    attempts, hints, events = rounds.round(hints={"a": (7, None)})
    assert (attempts, hints, [x.rid for x in events.admitted]) == (["b"], ["a"], ["b"])
    rounds.announce("c")
    assert rounds.round(hints={"a": (7, 7), "c": (5, 5)})[:2] == ([], ["c", "a"])
    assert rounds.round()[0] == ["a", "c"], "its place is that of its arrival"


def test_many_requests_that_are_built_keep_no_hint_from_others() -> None:
    rounds = Rounds(batch=2).announce("a", "b", "c")
    rounds.round(hints=dict.fromkeys("ab", (None, None)))
    rounds.round(hints=dict.fromkeys("ab", (None, None)) | {"c": (5, 5)})
    assert rounds.round(hints=dict.fromkeys("ab", (None, None)))[0] == ["c"]


def test_fences_only_move_forward() -> None:
    rounds = Rounds().announce("a")
    rounds.leader.fence(12)
    rounds.leader.fence(3)
    assert rounds.open().after_command == 12


def test_an_abort_before_any_broadcast_needs_no_round() -> None:
    rounds = Rounds().announce("a")
    assert rounds.leader.abort("a")
    assert not rounds.leader.idle()
    assert rounds.leader.take_withdrawn() == ("a",)
    assert rounds.leader.idle()
    assert rounds.due_in() is None


def test_an_abort_is_in_the_next_broadcast_and_ends_with_its_votes() -> None:
    rounds = Rounds().announce("a", "b")
    rounds.round()
    rounds.leader.abort("a")
    opened = rounds.open()
    assert opened.aborts == (("a", 0),)
    assert [a.rid for a in opened.attempts] == ["b"]
    assert rounds.leader.take_withdrawn() == ()
    assert rounds.answer(opened).withdrawn == ("a",)


def test_an_admission_stands_while_its_abort_waits() -> None:
    rounds = Rounds().announce("a")
    rounds.round()
    opened = rounds.open()
    assert rounds.leader.abort("a")
    events = rounds.answer(opened)
    assert events.admitted == (Admitted("a", 0, 8, suffix=2, aborted=True),)
    assert events.withdrawn == ()
    assert rounds.leader.idle()


def test_an_abort_while_the_attempt_fails_goes_into_the_next_broadcast() -> None:
    rounds = Rounds().announce("a")
    rounds.round()
    opened = rounds.open()
    rounds.leader.abort("a")
    assert rounds.answer(opened, {"a": (held(4, 8), held(8, 8))}).admitted == ()
    assert rounds.due_in() == 0
    after = rounds.open()
    assert (after.aborts, after.attempts, after.hints) == ((("a", 0),), (), ())
    assert rounds.answer(after).withdrawn == ("a",)
    assert rounds.leader.idle()


def test_an_abort_of_an_admitted_request_is_not_admissions_business() -> None:
    rounds = Rounds().announce("a")
    rounds.round()
    rounds.round()
    assert not rounds.leader.abort("a")


def test_a_hint_grows_old() -> None:
    rounds = Rounds(batch=1).announce("a", "b")
    rounds.round(hints={"b": (3, 3)})
    rounds.round({"a": (NOCAP, NOCAP)}, hints={"b": (4, 4)})
    assert rounds.round()[:2] == ([], ["a"])
    rounds.leader.abort("a")
    assert rounds.round()[:2] == ([], ["b"]), "its hint is of an earlier round"
    assert [a.candidate for a in rounds.open().attempts] == [8]


def test_a_long_queue_is_not_hinted_as_a_whole() -> None:
    rounds = Rounds(batch=2).announce(*(f"r{n}" for n in range(50)))
    attempts, hints, _ = rounds.round()
    assert (attempts, hints) == ([], ["r0", "r1"])
    assert rounds.round()[:2] == (["r0", "r1"], ["r2", "r3"])


def test_a_request_of_an_id_in_admission_is_refused() -> None:
    rounds = Rounds().announce("a")
    with pytest.raises(ValueError, match="a is in admission already"):
        rounds.announce("a")


def test_votes_must_be_those_of_all_ranks_for_the_open_round() -> None:
    rounds = Rounds().announce("a")
    with pytest.raises(RuntimeError, match="do not close round None"):
        rounds.leader.on_votes([])
    opened = rounds.open()
    with pytest.raises(RuntimeError, match="do not close round 1"):
        rounds.leader.on_votes([vote(0, opened.round, hints={"a": 1})])
    with pytest.raises(RuntimeError, match="still open"):
        rounds.open()


def test_an_idle_leader_has_nothing_to_say() -> None:
    rounds = Rounds()
    assert rounds.due_in() is None
    assert rounds.leader.next_broadcast(rounds.now, free_rows=1) is None
