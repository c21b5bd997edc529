from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.admission.wording import NOCAP, PENDING, attempt, held, vote

from sglang_wavepp.admission.decision import Outcome, Verdict, VoteError, decide
from sglang_wavepp.admission.messages import AttemptVote

pytestmark = pytest.mark.unit

CANDIDATE = 64
ANSWERS = st.one_of(
    st.just(NOCAP), st.just(PENDING), st.integers(0, CANDIDATE).map(lambda e: held(e, CANDIDATE))
)


def outcome_of(*answers: AttemptVote) -> Outcome:
    votes = [vote(rank, r=answer) for rank, answer in enumerate(answers)]
    return decide([attempt("r", CANDIDATE)], votes)[0]


@pytest.mark.parametrize(
    ("answers", "verdict", "endpoint"),
    [
        ((held(64, 64), held(64, 64)), Verdict.ADMITTED, 64),
        ((held(64, 64),), Verdict.ADMITTED, 64),
        ((held(64, 64), held(48, 64)), Verdict.LOWER, 48),
        ((held(48, 64), held(48, 64)), Verdict.LOWER, 48),
        ((held(32, 64), held(48, 64), held(64, 64)), Verdict.LOWER, 32),
        ((held(64, 64), NOCAP), Verdict.WAIT, None),
        ((held(32, 64), NOCAP), Verdict.WAIT, None),
        ((PENDING, NOCAP), Verdict.PENDING, None),
        ((held(64, 64), PENDING), Verdict.PENDING, None),
    ],
)
def test_the_table_of_outcomes(
    answers: tuple[AttemptVote, ...], verdict: Verdict, endpoint: int | None
) -> None:
    assert outcome_of(*answers) == Outcome("r", 0, verdict, endpoint)


@given(st.lists(ANSWERS, min_size=1, max_size=6))
def test_only_the_same_endpoint_held_by_all_admits_and_lower_falls(answers: list[AttemptVote]) -> None:
    outcome = outcome_of(*answers)
    assert (outcome.verdict is Verdict.ADMITTED) == all(a == held(CANDIDATE, CANDIDATE) for a in answers)
    if outcome.verdict is Verdict.LOWER:
        assert outcome.endpoint == min(a.endpoint for a in answers) < CANDIDATE


@given(st.lists(ANSWERS, min_size=2, max_size=5), st.randoms())
def test_it_does_not_matter_who_votes_what(answers: list[AttemptVote], rng: object) -> None:
    mixed = list(answers)
    rng.shuffle(mixed)  # type: ignore[attr-defined]
    assert outcome_of(*answers) == outcome_of(*mixed)


def test_each_attempt_is_decided_by_its_own_votes() -> None:
    attempts = [attempt("a", 8), attempt("b", 16, epoch=2), attempt("c", 0)]
    votes = [
        vote(0, a=held(8, 8), b=held(16, 16), c=held(0, 0)),
        vote(1, a=held(4, 8), b=held(16, 16), c=NOCAP),
    ]
    assert decide(attempts, votes) == (
        Outcome("a", 0, Verdict.LOWER, 4),
        Outcome("b", 2, Verdict.ADMITTED, 16),
        Outcome("c", 0, Verdict.WAIT),
    )


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (AttemptVote(kind="held", endpoint=65, committed=False), "more than the candidate 64"),
        (AttemptVote(kind="held", endpoint=64, committed=False), "committed=False"),
        (AttemptVote(kind="held", endpoint=63, committed=True), "committed=True"),
    ],
)
def test_votes_that_no_rank_may_send_are_named(bad: AttemptVote, says: str) -> None:
    with pytest.raises(VoteError, match=says):
        outcome_of(held(64, 64), bad)


def test_a_rank_that_leaves_an_attempt_out_is_named() -> None:
    with pytest.raises(VoteError, match="rank 1 did not answer the attempt of r"):
        decide([attempt("r", 4)], [vote(0, r=held(4, 4)), vote(1)])
