"""Histories that random runs rarely meet, step by step; beside each, what happens without the rule that it is about."""

from __future__ import annotations

import pytest
from model.oracle.config import Config
from model.oracle.decide import Outcome, Verdict
from model.oracle.messages import Abort, Held, NoCapacity, Pending, Retract, Wave
from model.oracle.rank import Rank
from model.oracle.request import Request, Stage
from model.oracle.rules import Rules, Violation
from model.oracle.script import Script

pytestmark = pytest.mark.model


def verdicts(outcomes: tuple[Outcome, ...]) -> list[tuple[int, Verdict, int | None]]:
    return [(outcome.rid, outcome.verdict, outcome.endpoint) for outcome in outcomes]


# --- retraction and aborts ----------------------------------------------------------------------------------


def retracted_on_rank_0_only(rules: Rules, *, third: bool = False) -> tuple[Script, int]:
    """Two requests whose outputs outgrow rank 0; the follower has neither the last wave nor the retraction."""
    script = Script(Config(pools=(5, 20), rows=2, batch=2), rules)
    first, second = script.ask([1], 4), script.ask([2], 4)
    script.round()
    assert verdicts(script.round()) == [(first, Verdict.ADMITTED, 0), (second, Verdict.ADMITTED, 0)]
    if third:
        script.ask([3])
    script.do("wave", "command 1", "result", "wave")
    script.round()  # both ask for one more token, and rank 0 has one
    assert script.stat["retracted"] == 1 and script.leader.admitted == [first]
    assert [type(command) for command in script.pending(1)][-2:] == [Wave, Retract]
    return script, second


def abort_of_a_retracted_request(rules: Rules) -> None:
    script, second = retracted_on_rank_0_only(rules)
    script.abort(second)
    script.round()
    script.catch_up()  # the wave with a span of it first
    assert second not in script.ranks[1].requests
    script.finish()


def test_an_abort_waits_where_the_retraction_of_its_request_has_not_been_applied() -> None:
    abort_of_a_retracted_request(Rules())
    with pytest.raises(Violation, match="result for unknown r1"):
        abort_of_a_retracted_request(Rules(aborts_wait_for_retraction=False))


def test_a_doomed_request_keeps_what_it_holds_until_the_retraction_arrives() -> None:
    script, second = retracted_on_rank_0_only(Rules())
    script.abort(second)
    script.round()
    request = script.ranks[1].requests[second]
    assert request.doomed and request.stage is Stage.RUNNING and request.holding.need


def test_a_rank_without_the_retraction_answers_pending() -> None:
    script, second = retracted_on_rank_0_only(Rules())
    script.abort(script.leader.admitted[0])
    script.round()
    assert second not in script.ranks[0].admission, "a hint is pending, so there is no candidate"
    assert script.ranks[1].answers.hints == {second: None}
    script.catch_up()
    script.round()
    assert verdicts(script.round()) == [(second, Verdict.ADMITTED, 1)]
    script.finish()


def test_without_epochs_a_rank_judges_a_request_that_it_still_runs() -> None:
    script, second = retracted_on_rank_0_only(Rules(epochs_in_votes=False))
    script.abort(script.leader.admitted[0])
    script.round()
    assert verdicts(script.round()) == [(second, Verdict.ADMITTED, 0)]
    with pytest.raises(Violation, match="short|leaked|unadmitted|unknown|starts at"):
        script.finish()


def test_an_attempt_of_a_newer_epoch_is_pending_and_holds_nothing() -> None:
    script, second = retracted_on_rank_0_only(Rules())
    script.abort(script.leader.admitted[0])
    script.catch_up()
    script.round()
    script.ranks[1].requests[second].epoch -= 1  # as if the retraction had come after the hint
    script.open_round()
    script.operate(1)
    assert script.ranks[1].answers.attempts == {second: Pending()}
    assert verdicts(script.close_round()) == [(second, Verdict.PENDING, None)]
    assert script.endpoint(0, second) is None


def finish_that_a_rank_has_not_applied(rules: Rules) -> Script:
    script = Script(Config(pools=(20, 4), rows=2, batch=2), rules)
    short, long = script.ask([1], 2), script.ask([2], 4)
    script.round()
    assert len(script.round()) == 2
    script.do("wave", "command 1", "result", "wave", "command 1", "command 1", "result")
    assert script.leader.admitted == [long], "the first has ended on rank 0"
    assert short in script.ranks[1].requests, "and not on rank 1"
    script.round()
    return script


def test_a_refused_extension_does_not_count_while_a_finish_is_on_its_way() -> None:
    script = finish_that_a_rank_has_not_applied(Rules())
    assert not script.stat["retracted"]
    script.catch_up()
    script.round()
    run = next(iter(script.leader.runs.values()))
    assert run.granted == 3
    script.finish()
    assert not script.stat["retracted"]


@pytest.mark.parametrize("rule", ["always", "after_retractions"])
def test_if_it_counted_a_request_would_be_retracted_that_is_alone(rule: str) -> None:
    script = finish_that_a_rank_has_not_applied(Rules(failed_extension_counts=rule))  # type: ignore[arg-type]
    assert script.stat["retracted_alone"] == 1


def abort_that_overtakes_the_record(rules: Rules) -> Script:
    script = Script(Config(), rules)
    rid = script.ask([1, 2])
    script.do("round")
    script.abort(rid)
    script.catch_up()
    return script


def test_an_abort_in_admission_goes_behind_the_record() -> None:
    abort_that_overtakes_the_record(Rules()).finish()
    script = abort_that_overtakes_the_record(Rules(aborts="commands"))
    assert not script.pending(1), "the abort has come to a rank that does not know the request"
    with pytest.raises(Violation, match="leak"):
        script.finish()


def test_an_admission_stands_when_its_abort_came_during_the_round() -> None:
    script = Script(Config())
    rid = script.ask([1, 2])
    script.round()
    script.open_round()
    script.abort(rid)
    assert verdicts(script.close_round()) == [(rid, Verdict.ADMITTED, 0)]
    (command,) = script.pending(1)
    assert isinstance(command, Abort) and command.rid == rid
    assert script.endpoint(1, rid) == 0
    script.catch_up()
    assert script.endpoint(1, rid) is None
    script.finish()


# --- recurrent snapshots ------------------------------------------------------------------------------------

OTHER = [0, 0]
TEXT = [1, 1, 1, 1, 1, 1, 1]


def trim_at_a_full_slot_pool(rules: Rules) -> tuple[Script, int]:
    script = Script(
        Config(pools=(20, 20), slots=(7, 7), batch=1),
        rules,
        cached=[(0, TEXT, (2, 4)), (1, TEXT, (2, 5))],
    )
    other = script.ask(OTHER)
    rid = script.ask(TEXT)
    script.round()
    assert verdicts(script.round()) == [(other, Verdict.ADMITTED, 0)]
    assert verdicts(script.round()) == [(rid, Verdict.TRIM, 2)]
    assert script.ranks[0].escrows.available_slots() == 0
    return script, rid


def test_a_trim_at_a_full_slot_pool_is_judged_on_its_net_effect() -> None:
    script, rid = trim_at_a_full_slot_pool(Rules())
    assert verdicts(script.round()) == [(rid, Verdict.ADMITTED, 2)]
    script.finish()


def test_if_the_earlier_snapshot_needed_a_spare_slot_the_request_would_wait() -> None:
    script, rid = trim_at_a_full_slot_pool(Rules(trim_on_net_effect=False))
    assert verdicts(script.round()) == [(rid, Verdict.WAIT, None)]


def shared_snapshot_whose_runner_moves_on(rules: Rules) -> tuple[Script, int]:
    """On rank 1 the runner still pins its snapshot at 2, on rank 0 it has moved on to 4."""
    script = Script(Config(pools=(20, 20), slots=(8, 6), chunk=2), rules)
    script.ask(TEXT)
    script.round()
    script.round()
    script.do("wave", "command 1", "wave")
    rid = script.ask([1, 1, 5, 5])
    script.round()
    assert script.leader.rank.admission[rid].candidate == 2
    return script, rid


def test_a_lease_pays_for_a_snapshot_that_a_runner_pins() -> None:
    script, rid = shared_snapshot_whose_runner_moves_on(Rules())
    assert verdicts(script.round()) == [(rid, Verdict.WAIT, None)]
    script.do("command 1")
    script.finish()
    assert script.stat["finished"] == 2


def test_if_it_did_not_pay_slots_would_be_short_when_the_runner_moves_on() -> None:
    script, rid = shared_snapshot_whose_runner_moves_on(Rules(slots="dynamic"))
    assert verdicts(script.round()) == [(rid, Verdict.ADMITTED, 2)]
    with pytest.raises(Violation, match="recurrent slots are short"):
        script.do("command 1")


def test_two_leases_of_one_snapshot_pay_once() -> None:
    script = Script(Config(pools=(20, 20), slots=(7, 7)), cached=[(0, TEXT, (2,)), (1, TEXT, (2,))])
    first, second = script.ask([1, 1, 7]), script.ask([1, 1, 8])
    script.round()
    assert verdicts(script.round()) == [(first, Verdict.ADMITTED, 2), (second, Verdict.ADMITTED, 2)]
    assert script.ranks[0].escrows.available_slots() == 0
    script.finish()


def test_a_lease_that_finds_no_slot_takes_an_earlier_snapshot_that_another_pays_for() -> None:
    script = Script(Config(pools=(20, 20), slots=(7, 7)), cached=[(0, TEXT, (2, 4)), (1, TEXT, (2, 4))])
    first, second = script.ask([1, 1, 7]), script.ask(TEXT)
    script.round()
    outcomes = verdicts(script.round())
    assert outcomes == [(first, Verdict.ADMITTED, 2), (second, Verdict.TRIM, 2)]
    assert verdicts(script.round()) == [(second, Verdict.ADMITTED, 2)]
    script.finish()


def waits_where_nothing_is_alive(rules: Rules) -> tuple[Script, int]:
    script = Script(
        Config(pools=(9, 9), slots=(7, 3), patience=500), rules, cached=[(0, TEXT, (2,)), (1, TEXT, (2,))]
    )
    rid = script.ask([1, 1, 1])
    script.round()
    assert script.leader.rank.admission[rid].candidate == 2
    return script, rid


def test_a_request_does_not_wait_where_nothing_else_is_alive() -> None:
    script, rid = waits_where_nothing_is_alive(Rules())
    assert verdicts(script.round()) == [(rid, Verdict.TRIM, 0)], (
        "three slots hold no snapshot beside a request"
    )
    assert verdicts(script.round()) == [(rid, Verdict.ADMITTED, 0)]
    script.finish()


def test_if_it_waited_it_would_wait_for_ever() -> None:
    script, rid = waits_where_nothing_is_alive(Rules(lone_goes_lower=False))
    assert verdicts(script.round()) == [(rid, Verdict.WAIT, None)]
    with pytest.raises(Violation, match="no request ended"):
        script.finish()


# --- tokens -------------------------------------------------------------------------------------------------


def two_escrows_on_one_path(rules: Rules) -> Script:
    path = [1, 2, 3, 4]
    script = Script(
        Config(pools=(8, 8), rows=2, batch=2, chunk=2), rules, cached=[(0, path, ()), (1, path, ())]
    )
    below, above = script.ask([5, 5, 5, 5, 5, 5]), script.ask([6, 6])
    script.round()
    assert len(script.round()) == 2
    holdings = [script.ranks[0].requests[rid].holding for rid in (below, above)]
    assert [holding.victims for holding in holdings] == [[(1, 2, 3, 4), (1, 2, 3)], [(1, 2), (1,)]]
    script.do("wave")  # the second has to evict below what it holds
    assert holdings[0].victims == [] and holdings[0].credit == holdings[0].need == 4
    return script


def test_who_evicts_a_victim_credits_those_who_hold_what_is_below() -> None:
    two_escrows_on_one_path(Rules(victims="concrete")).finish()
    with pytest.raises(Violation, match="has a child held by"):
        two_escrows_on_one_path(Rules(victims="concrete", held_child="error"))


def claim_on_victims(rules: Rules) -> tuple[Script, tuple[Outcome, ...]]:
    """8 places: 3 with the oldest content, 1 with other content, 4 free."""
    script = Script(Config(pools=(8, 8), rows=2, batch=2, chunk=6), rules)
    for rank in script.ranks:
        rank.warm([1, 2, 3])
        rank.warm([4])
    script.ask([5, 5, 5, 5, 5, 5])
    script.ask([1, 2, 3, 9])
    script.round()
    return script, script.round()


@pytest.mark.parametrize("victims", ["counted", "concrete"])
def test_a_lease_that_would_leave_an_escrow_short_waits(victims: str) -> None:
    script, outcomes = claim_on_victims(Rules(victims=victims))  # type: ignore[arg-type]
    assert verdicts(outcomes) == [(0, Verdict.ADMITTED, 0), (1, Verdict.WAIT, None)]
    script.finish()
    assert script.stat["finished"] == 2


def test_if_escrows_looked_only_at_commit_the_admitted_one_would_run_short() -> None:
    script, outcomes = claim_on_victims(Rules(victims="concrete", claims="recheck_at_commit"))
    assert verdicts(outcomes) == [(0, Verdict.ADMITTED, 0), (1, Verdict.ADMITTED, 3)]
    with pytest.raises(Violation, match="runs short"):
        script.do("wave")


def test_a_claimed_victim_is_replaced_before_the_claim_is_complete() -> None:
    script = Script(Config(pools=(9, 9), rows=2, batch=2, chunk=6), Rules(victims="concrete"))
    for rank in script.ranks:
        rank.warm([1, 2])
        rank.warm([4, 5])
    rid, claimer = script.ask([5, 5, 5, 5, 5, 5]), script.ask([1, 2, 9])
    script.round()
    script.open_round()
    script.do("operate 0")
    holding = script.ranks[0].requests[rid].holding
    assert holding.victims == [(1, 2)]
    script.do("operate 0")
    assert holding.victims == [(4, 5)] and holding.credit == 5
    assert script.endpoint(0, claimer) == 2
    script.close_round()
    script.finish()


def test_a_lower_endpoint_raises_the_demand() -> None:
    """200 tokens: 112 of them cached, then 96, so 88 and then 104 to compute."""
    text = list(range(200))
    script = Script(Config(pools=(250, 250), batch=1), cached=[(0, text[:112], ()), (1, text[:112], ())])
    rid = script.ask(text)
    script.round()
    for _ in range(16):
        script.lose_content(script.ranks[1])
    assert verdicts(script.round()) == [(rid, Verdict.TRIM, 96)]
    needs = [rank.requests[rid].holding.need for rank in script.ranks]
    assert needs == [88, 104]
    assert verdicts(script.round()) == [(rid, Verdict.ADMITTED, 96)]
    assert [rank.requests[rid].holding.need for rank in script.ranks] == [104, 104]


def test_snapshots_settle_on_the_deepest_that_all_have() -> None:
    text = list(range(100))
    script = Script(
        Config(pools=(110, 110), slots=(9, 9)),
        cached=[(0, text[:95], (64, 72, 90)), (1, text[:95], (64, 80))],
    )
    rid = script.ask(text)
    script.round()
    assert verdicts(script.round()) == [(rid, Verdict.TRIM, 72)]
    assert verdicts(script.round()) == [(rid, Verdict.TRIM, 64)]
    assert verdicts(script.round()) == [(rid, Verdict.ADMITTED, 64)]


def test_one_stage_bounds_what_all_pin() -> None:
    text = list(range(100))
    script = Script(
        Config(pools=(120, 120, 120), slots=(0, 0, 0)),
        cached=[(0, text[:96], ()), (1, text[:32], ()), (2, text[:80], ())],
    )
    rid = script.ask(text)
    script.round()
    assert verdicts(script.round()) == [(rid, Verdict.ADMITTED, 32)]
    for rank in script.ranks:
        assert sum(node.locks > 0 for node in rank.pool.nodes.values()) == 32


def test_a_hold_that_is_being_lowered_stays_against_later_requests() -> None:
    script = Script(Config(pools=(12, 12), rows=3, batch=2), cached=[(0, [1, 2, 3], ()), (1, [1, 2, 3], ())])
    rid = script.ask([1, 2, 3, 4, 4, 4])
    script.round()
    script.lose_content(script.ranks[1])
    later = script.ask([7] * 7)
    assert verdicts(script.round()) == [(rid, Verdict.TRIM, 2)]
    assert script.ranks[0].requests[rid].holding.need == 3, "kept until it is trimmed"
    assert verdicts(script.round()) == [(rid, Verdict.ADMITTED, 2), (later, Verdict.WAIT, None)]
    script.finish()


# --- order and waiting --------------------------------------------------------------------------------------


def wakes_up_when_the_rank_that_refused_has_room(rules: Rules) -> Script:
    script = Script(Config(pools=(20, 4), rows=2, batch=1, chunk=4, patience=500), rules)
    first, waits = script.ask([1, 1, 1]), script.ask([2, 2])
    script.round()
    script.round()
    assert verdicts(script.round()) == [(waits, Verdict.WAIT, None)]
    script.do("wave", "command 1", "result")
    assert first not in script.ranks[0].requests and first in script.ranks[1].requests
    script.round()
    script.round()
    script.finish()
    return script


def test_a_request_is_tried_again_when_the_rank_that_refused_has_released_something() -> None:
    assert wakes_up_when_the_rank_that_refused_has_room(Rules()).stat["finished"] == 2
    with pytest.raises(Violation, match="no request ended"):
        wakes_up_when_the_rank_that_refused_has_room(Rules(retry="rank0"))


def test_behind_a_request_that_finds_no_room_a_rank_tries_nobody() -> None:
    script = Script(Config(pools=(8, 8), rows=3, batch=3))
    first, large, small = script.ask([1] * 4), script.ask([2] * 6), script.ask([3])
    script.round()
    assert verdicts(script.round()) == [
        (first, Verdict.ADMITTED, 0),
        (large, Verdict.WAIT, None),
        (small, Verdict.WAIT, None),
    ]
    assert isinstance(script.ranks[1].answers.attempts[small], NoCapacity)
    assert script.round() == (), "nothing is named behind the one that waits"
    script.finish()


def small_ones_keep_coming(rules: Rules) -> Script:
    """There is never a moment without a small request that runs."""
    script = Script(Config(pools=(8, 8), rows=3, batch=3, chunk=3), rules)
    script.ask([1, 1, 1])
    script.round()
    script.round()
    script.ask([2] * 8)
    for kind in range(3, 23):
        script.do("wave", "command 1")
        script.ask([kind] * 3)
        script.round()
        script.round()
        script.do("result")
        script.catch_up()
        if not script.leader.admitted:
            break
    return script


def test_a_large_request_is_not_overtaken_however_many_small_ones_come() -> None:
    strict = small_ones_keep_coming(Rules())
    assert not strict.leader.overtaken
    strict.finish()
    assert small_ones_keep_coming(Rules(order="bypass")).leader.overtaken[1] == 20


def test_a_retracted_request_keeps_its_place() -> None:
    for join, overtaken in (("arrival", 0), ("tail", 1)):
        rules = Rules(retracted_join=join)  # type: ignore[arg-type]
        script, second = retracted_on_rank_0_only(rules, third=True)
        script.catch_up()
        script.finish()
        assert script.leader.overtaken[second] == overtaken


def test_waiting_requests_are_hinted_again_so_that_they_reuse_what_the_ones_before_left() -> None:
    reused = {}
    for refresh in (True, False):
        script = Script(Config(pools=(40, 40), rows=1, batch=1), Rules(refresh_hints=refresh))
        for index in range(10):
            script.ask([0, 0, 0, 0, 0, 0, index + 1])
        script.finish()
        outcomes = [event[2] for event in script.log if event[1] == "decision"]
        admitted = [o for o in outcomes if isinstance(o, Outcome) and o.verdict is Verdict.ADMITTED]
        reused[refresh] = sum(outcome.endpoint or 0 for outcome in admitted)
    assert reused[True] >= 8 * 6 and reused[False] < 3 * 6, reused


def test_headroom_never_stops_a_request_that_is_alone() -> None:
    for lone, ends in ((True, True), (False, False)):
        script = Script(Config(pools=(6, 6), patience=300), Rules(headroom=3, lone_ignores_headroom=lone))
        script.ask([1] * 5)
        if ends:
            script.finish()
        else:
            with pytest.raises(Violation, match="no request ended"):
                script.finish()


def test_headroom_throttles_how_many_run_together() -> None:
    most = {}
    for headroom in (0, 12):
        script = Script(Config(pools=(24, 24), rows=4, batch=4), Rules(headroom=headroom))
        for index in range(8):
            script.ask([index + 5] * 7)
        seen = 0
        while not script.done():
            script.step()
            seen = max(seen, len(script.leader.runs))
        most[headroom] = seen
    assert most == {0: 3, 12: 1}


# --- arithmetic of a dense prepare --------------------------------------------------------------------------


def test_a_shorter_endpoint_never_rescues_a_dense_prepare() -> None:
    """All small pools, cached depths, prefixes pinned by another and reservations: so a rank may answer at once."""
    tried = 0
    for tokens in range(1, 8):
        for depth in range(tokens + 1):
            for pinned in range(depth + 1):
                for reserved in range(tokens - depth + 1):
                    tried += _dense_case(tokens, depth, pinned, reserved)
    assert tried > 500


def _dense_case(tokens: int, depth: int, pinned: int, reserved: int) -> int:
    config = Config(pools=(tokens,), slots=(0,), requests=0)
    text = tuple(range(tokens + 1))
    tried = 0
    for length in range(1, tokens + 1):
        fits = []
        for endpoint in range(min(depth, length - 1) + 1):
            rank = Rank(0, Rules(), config)
            rank.warm(text[:depth])
            other = rank.requests[0] = Request(0, text, 1)
            rank.escrows.lock(other, 0, pinned)
            other.holding.locked = pinned
            rank.escrows.reserve(other, reserved)
            if rank.escrows.available() < 0:
                return tried
            request = rank.requests[1] = Request(1, text[:length], 1)
            fits.append(rank.leases.prepare(request, endpoint))
            tried += 1
        assert fits == sorted(fits), (tokens, depth, pinned, reserved, length, fits)
    return tried


def test_votes_of_a_held_request_say_whether_it_is_the_candidate() -> None:
    script = Script(Config(pools=(9, 9)), cached=[(0, [1, 2], ()), (1, [1, 2, 3], ())])
    rid = script.ask([1, 2, 3, 4])
    script.round()
    script.lose_content(script.ranks[0])
    script.round()
    assert script.ranks[0].answers.attempts[rid] == Held(1, False)
    assert script.ranks[1].answers.attempts[rid] == Held(2, True)
