"""The product's decision, ledger, leases and escrows against the executable model, step by step."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from model import faults
from model.oracle.config import FAMILIES, Config, deep_config, random_config
from model.oracle.decide import Outcome, Verdict
from model.oracle.decide import decide as model_decides
from model.oracle.messages import Answer, Attempt, Held, NoCapacity, Pending
from model.oracle.rules import Rules
from model.shadow import (
    MakeProduct,
    ShadowedRank,
    ShadowedScript,
    ShadowedSimulation,
    in_words_of_the_product,
    lease,
    name,
    outcomes_of_the_product,
    two_walk,
)

from sglang_wavepp.admission import decision, messages
from sglang_wavepp.cache.escrow import EscrowBook
from sglang_wavepp.cache.lease import LeaseAdmission

pytestmark = pytest.mark.model


# --- the decision -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_combination_of_votes_is_decided_alike(ranks: int) -> None:
    candidate = 2
    answers: list[Answer] = [
        Pending(),
        NoCapacity(0),
        *(Held(e, e == candidate) for e in range(candidate + 1)),
    ]
    attempt = Attempt(0, 0, False, candidate)
    said = messages.Attempt(rid="r0", epoch=0, candidate=candidate)
    for votes in itertools.product(answers, repeat=ranks):
        outcome = decision.decide(
            [said],
            [
                messages.Vote(
                    round=1,
                    rank=rank,
                    applied_command=0,
                    releases=0,
                    hints={},
                    attempts={"r0": in_words_of_the_product(answer)},
                )
                for rank, answer in enumerate(votes)
            ],
        )
        expected = model_decides([attempt], [{0: answer} for answer in votes], Rules())
        assert outcome == outcomes_of_the_product(expected), votes


# --- random histories ---------------------------------------------------------------------------------------


def histories(
    make: MakeProduct, *, members: bool, counts: dict[str, int], headroom: int = 0, first: int = 0
) -> Counter[str]:
    """How often what happened, in histories of these families."""
    seen: Counter[str] = Counter()
    for family, count in counts.items():
        for seed in range(first, first + count):
            config = FAMILIES[family](random.Random(f"{family}/{seed}"))
            if headroom:  # the product never asks for more than the largest request would leave
                config = replace(config, pools=tuple(pool + headroom + 4 for pool in config.pools))
            simulation = ShadowedSimulation(config, seed, make=make, members=members, headroom=headroom)
            try:
                seen += simulation.run()
            except Exception as failure:
                raise AssertionError(f"{family} {seed}, {config}, step {simulation.steps}") from failure
            seen["steps"] += simulation.steps
    return seen


def test_leases_do_what_the_model_does() -> None:
    seen = histories(lease, members=False, counts={"mixed": 40, "growing": 10, "deep": 15, "warm": 15})
    assert seen["steps"] > 20_000
    for what in ("admitted", "wait", "trim", "finished", "aborted"):
        assert seen[what] > 5, f"{what} was hardly ever met, so it was not tested: {seen}"


def test_members_vote_as_the_model_does() -> None:
    seen = histories(
        lease, members=True, counts={"mixed": 40, "growing": 5, "deep": 10, "warm": 15}, first=1000
    )
    for what in ("admitted", "wait", "trim", "finished", "aborted"):
        assert seen[what] > 5, f"{what} was hardly ever met, so it was not tested: {seen}"


def test_leases_with_headroom_do_what_the_model_does() -> None:
    seen = histories(lease, members=False, counts={"mixed": 25, "deep": 5}, headroom=3)
    assert seen["wait"] > 5


@pytest.mark.parametrize("members", [False, True])
def test_two_walks_do_what_the_model_does(members: bool) -> None:
    seen = histories(two_walk, members=members, counts={"mixed": 30, "deep": 5, "warm": 8}, first=2000)
    assert seen["wait"] > 5


# --- histories written by hand ------------------------------------------------------------------------------

TEXT = [1, 1, 1, 1, 1, 1, 1]


def verdicts(outcomes: Sequence[Outcome]) -> list[tuple[int, Verdict, int | None]]:
    return [(outcome.rid, outcome.verdict, outcome.endpoint) for outcome in outcomes]


def escrows_of(script: ShadowedScript, rank: int) -> EscrowBook:
    shadowed = script.ranks[rank]
    assert isinstance(shadowed, ShadowedRank) and isinstance(shadowed.product.admission, LeaseAdmission)
    return shadowed.product.admission.escrows


def test_the_product_trims_at_a_full_slot_pool() -> None:
    script = ShadowedScript(
        Config(pools=(20, 20), slots=(7, 7), batch=1), cached=[(0, TEXT, (2, 4)), (1, TEXT, (2, 5))]
    )
    script.ask([0, 0])
    rid = script.ask(TEXT)
    script.round()
    script.round()
    assert verdicts(script.round()) == [(rid, Verdict.TRIM, 2)]
    assert script.ranks[0].escrows.available_slots() == 0
    assert verdicts(script.round()) == [(rid, Verdict.ADMITTED, 2)]
    script.run()


def test_a_lease_of_the_product_pays_for_a_snapshot_that_a_runner_pins() -> None:
    script = ShadowedScript(Config(pools=(20, 20), slots=(8, 6), chunk=2))
    script.ask(TEXT)
    script.round()
    script.round()
    script.do("wave", "command 1", "wave")
    rid = script.ask([1, 1, 5, 5])
    script.round()
    assert verdicts(script.round()) == [(rid, Verdict.WAIT, None)]
    script.do("command 1")
    script.run()


def test_the_product_takes_an_earlier_snapshot_that_another_lease_pays_for() -> None:
    script = ShadowedScript(
        Config(pools=(20, 20), slots=(7, 7)), cached=[(0, TEXT, (2, 4)), (1, TEXT, (2, 4))]
    )
    first, second = script.ask([1, 1, 7]), script.ask(TEXT)
    script.round()
    assert verdicts(script.round()) == [(first, Verdict.ADMITTED, 2), (second, Verdict.TRIM, 2)]
    assert verdicts(script.round()) == [(second, Verdict.ADMITTED, 2)]
    script.run()


def test_the_product_does_not_wait_where_nothing_else_is_alive() -> None:
    script = ShadowedScript(Config(pools=(9, 9), slots=(7, 3)), cached=[(0, TEXT, (2,)), (1, TEXT, (2,))])
    rid = script.ask([1, 1, 1])
    script.round()
    assert verdicts(script.round()) == [(rid, Verdict.TRIM, 0)]
    assert verdicts(script.round()) == [(rid, Verdict.ADMITTED, 0)]
    script.run()


def test_a_lease_of_the_product_that_would_leave_an_escrow_short_waits() -> None:
    script = ShadowedScript(
        Config(pools=(8, 8), rows=2, batch=2, chunk=6),
        cached=[(rank, text, ()) for text in ([1, 2, 3], [4]) for rank in (0, 1)],
    )
    first, claimer = script.ask([5] * 6), script.ask([1, 2, 3, 9])
    script.round()
    assert verdicts(script.round()) == [(first, Verdict.ADMITTED, 0), (claimer, Verdict.WAIT, None)]
    script.run()


def test_the_product_replaces_a_claimed_victim() -> None:
    script = ShadowedScript(
        Config(pools=(9, 9), rows=2, batch=2, chunk=6),
        cached=[(rank, text, ()) for text in ([1, 2], [4, 5]) for rank in (0, 1)],
    )
    rid, claimer = script.ask([5] * 6), script.ask([1, 2, 9])
    script.round()
    script.open_round()
    script.do("operate 0")
    assert escrows_of(script, 0).holders() == {(1, 2): {name(rid): 1}}
    script.do("operate 0")
    assert escrows_of(script, 0).holders() == {(4, 5): {name(rid): 1}, (4,): {name(claimer): 1}}
    assert script.endpoint(0, claimer) == 2
    script.close_round()
    script.run()


def test_two_escrows_of_the_product_lie_on_one_path() -> None:
    path = [1, 2, 3, 4]
    script = ShadowedScript(
        Config(pools=(8, 8), rows=2, batch=2, chunk=2), cached=[(0, path, ()), (1, path, ())]
    )
    below, above = script.ask([5] * 6), script.ask([6, 6])
    script.round()
    assert len(script.round()) == 2
    assert escrows_of(script, 1).holders() == {
        tuple(path[:end]): {name(below if end > 2 else above): 1} for end in (4, 3, 2, 1)
    }
    script.do("wave", "command 1")
    script.run()


def test_a_lower_endpoint_raises_what_the_product_reserves() -> None:
    """200 tokens: 112 of them cached, then 96, so 88 and then 104 to compute."""
    text = list(range(200))
    script = ShadowedScript(
        Config(pools=(250, 250), batch=1), cached=[(0, text[:112], ()), (1, text[:112], ())]
    )
    rid = script.ask(text)
    script.round()
    for _ in range(16):
        script.lose_content(script.ranks[1])
    assert verdicts(script.round()) == [(rid, Verdict.TRIM, 96)]
    assert [rank.requests[rid].holding.need for rank in script.ranks] == [88, 104]
    assert verdicts(script.round()) == [(rid, Verdict.ADMITTED, 96)]
    assert [escrows_of(script, rank).needs() for rank in (0, 1)] == [{name(rid): 104}] * 2


def test_the_product_settles_on_the_deepest_snapshot_that_all_have() -> None:
    text = list(range(100))
    script = ShadowedScript(
        Config(pools=(110, 110), slots=(9, 9)),
        cached=[(0, text[:95], (64, 72, 90)), (1, text[:95], (64, 80))],
    )
    rid = script.ask(text)
    script.round()
    found = [script.round() for _ in range(3)]
    assert verdicts(found[-1]) == [(rid, Verdict.ADMITTED, 64)]


def test_an_abort_after_the_admission_ends_what_the_product_holds() -> None:
    script = ShadowedScript(Config())
    rid = script.ask([1, 2])
    script.round()
    script.open_round()
    script.abort(rid)
    assert verdicts(script.close_round()) == [(rid, Verdict.ADMITTED, 0)]
    assert script.endpoint(1, rid) == 0
    script.catch_up()
    script.run()


# --- any interleaving ---------------------------------------------------------------------------------------


class AnyInterleaving(RuleBasedStateMachine):
    """The model and the product, with Hypothesis in the place of the network and the clients."""

    @initialize(seed=st.integers(0, 1 << 32), deep=st.booleans(), members=st.booleans())
    def start(self, seed: int, deep: bool, members: bool) -> None:
        config = (deep_config if deep else random_config)(random.Random(seed))
        quiet = replace(config, requests=0, aborts=0.0, chaos=0.0)
        self.history = ShadowedSimulation(quiet, seed, members=members)

    @rule(text=st.lists(st.integers(0, 1), min_size=1, max_size=8), output=st.integers(1, 3))
    def submit(self, text: list[int], output: int) -> None:
        self.history.submit(text, output)

    @precondition(lambda self: self.history.leader.live())
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.history.abort(data.draw(st.sampled_from(self.history.leader.live())))
        self.history.check()

    @rule(rank=st.integers(0, 3))
    def lose_content(self, rank: int) -> None:
        self.history.lose_content(self.history.ranks[rank % len(self.history.ranks)])
        self.history.check()

    @precondition(lambda self: self.history.enabled())
    @rule(data=st.data(), times=st.integers(1, 4))
    def act(self, data: st.DataObject, times: int) -> None:
        for _ in range(times):
            names = [step for step, _ in self.history.enabled()]
            if names:
                self.history.do(data.draw(st.sampled_from(names)))

    def teardown(self) -> None:
        if hasattr(self, "history"):
            self.history.run()


TestAnyInterleaving = AnyInterleaving.TestCase
TestAnyInterleaving.settings = settings(
    max_examples=30,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


# --- what the comparison would notice -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "members"),
    [
        (faults.reads_room_before_the_pin, False),
        (faults.two_leases_pay_twice, False),
        (faults.snapshot_stays_paid_after_the_hand_over, False),
        (faults.waits_alone, False),
        (faults.trims_to_nothing, False),
        (faults.ends_without_giving_back, False),
        (faults.says_nothing_of_room_from_checkpoints, False),
        (faults.claims_are_not_replaced, False),
        (faults.hints_too_far, False),
        (faults.tries_behind_one_that_waits, True),
        (faults.releases_what_is_lowered, True),
        (faults.aborts_keep_what_they_held, True),
    ],
)
def test_the_comparison_notices(
    fault: Callable[[pytest.MonkeyPatch], None], members: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError, match="step"):
        histories(lease, members=members, counts={"mixed": 60, "deep": 60})


@pytest.mark.full
def test_many_histories() -> None:
    for make, members in itertools.product((lease, two_walk), (False, True)):
        histories(make, members=members, counts=dict.fromkeys(FAMILIES, 400), first=10_000)


def test_a_config_needs_as_many_slots_as_pools() -> None:
    with pytest.raises(ValueError, match="2 ranks"):
        Config(pools=(4, 4), slots=(0,))
