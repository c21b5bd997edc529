"""Pipelines on SGLang's own trees and pools: whatever is delivered and done in whatever order, no promise is broken."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from model import faults
from model.real.histories import Broken, run_history
from model.real.invariants import check_drained, check_pools, check_promises
from model.real.pipeline import Pipeline
from model.real.rank import Rank
from model.real.world import World, random_world
from sglang.srt.mem_cache.base_prefix_cache import EvictParams

from sglang_wavepp.admission.decision import Verdict
from sglang_wavepp.cache.publishing import publish
from sglang_wavepp.plane.messages import Span

pytestmark = pytest.mark.model

STEPS = 200_000
MET = {
    **dict.fromkeys((verdict.value for verdict in Verdict), 5),
    "finished": 500,
    "withdrawn": 20,
    "aborted": 5,
    "cut short": 10,
    "aborted at admission": 5,
    "admitted with a prefix": 100,
    "wave of several": 50,
    "trims": 50,
    "substituted": 100,
    "evicted": 1000,
    "spared": 100,
    "short of tokens": 50,
    "short of recurrent_slots": 50,
    "short of headroom": 20,
    "short of rows": 5,
    "flushes": 3,
    "held back": 200,
    "published": 500,
    "published inside": 100,
    "left unpublished": 50,
}
"""What the random histories must have met at least so often; what is never met isn't tested."""


def histories(first: int, steps: int) -> Counter[str]:
    seen: Counter[str] = Counter()
    seed = first
    while seen["steps"] < steps:
        seen += run_history(seed)
        seed += 1
    return seen


def test_random_histories_keep_every_promise_and_meet_every_outcome() -> None:
    seen = histories(0, STEPS)
    rare = {what: seen[what] for what, least in MET.items() if seen[what] < least}
    assert not rare, f"hardly ever met: {rare} of {seen}"


@pytest.mark.full
def test_many_random_histories() -> None:
    histories(1_000_000, 3_000_000)


def publish_at_the_end(req: Any, span: Span, tree: Any) -> None:
    """Files the state that a span took inside under the span's end."""
    if span.publish:
        req.kv.mamba_last_track_seqlen = req.extend_end
    publish(req, span, tree)


def test_a_state_that_is_filed_where_it_was_not_taken_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.real.rank.publish", publish_at_the_end)
    monkeypatch.setattr(Rank, "check_published", lambda *_: None)
    with pytest.raises(Broken, match="has seen|with the state of"):
        histories(0, STEPS)


def test_a_rank_that_publishes_where_it_likes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.real.rank.track", lambda *_: None)
    with pytest.raises(Broken, match="not where rank 0 says"):
        histories(0, STEPS)


@pytest.mark.parametrize(
    ("fault", "first", "says"),
    [
        (faults.reads_room_before_the_pin, 6, "promised more than there is"),
        (faults.two_leases_pay_twice, 1, "snapshots that no lease pins"),
        (faults.snapshot_stays_paid_after_the_hand_over, 1, "snapshots that no lease pins"),
        (faults.waits_alone, 23, "nobody ends any more"),
        (faults.says_nothing_of_room_from_checkpoints, 3, "nobody ends any more"),
        (faults.ends_without_giving_back, 0, "booked as promised"),
        (faults.aborts_keep_what_they_held, 0, "has a promise already"),
        (faults.a_lease_keeps_its_lock_after_the_hand_over, 1, "tokens are locked"),
        (faults.claims_are_not_replaced, 24, "is locked and can't be evicted"),
        (faults.claims_are_not_heard, 4, "is in use"),
        (faults.splits_are_not_told, 13, "share 1 tokens"),
        (faults.free_places_back_two_promises, 1, "count the same free places"),
        (faults.tries_behind_one_that_waits, 6, "passed"),
        (faults.releases_what_is_lowered, 0, "held is False"),
        (faults.admits_at_the_least_endpoint_whoever_holds_more, 0, "its first span is at"),
        (faults.holds_before_a_flush_is_applied, 20, "behind a fence"),
        (faults.the_index_keeps_what_has_gone, 0, "too many"),
        (faults.the_index_misses_the_last_block, 0, "is removed 1 times"),
    ],
)
def test_a_fault_in_admission_is_noticed(
    fault: Callable[[pytest.MonkeyPatch], None], first: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    with pytest.raises(Broken, match=says):
        histories(first, 20_000)


# --- histories that random runs rarely meet ---------------------------------------------------------------------


def quiet(**more: object) -> World:
    """Two ranks in which nothing happens by itself."""
    world = World(requests=0, aborts=0, chaos=0, flushes=0, budget=20, longest=12, pools=(40, 40))
    return replace(world, **more)  # type: ignore[arg-type]


def text(seed: int, pages: int, page: int = 4) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(2, 1000) for _ in range(pages * page)]


def end(pipeline: Pipeline) -> None:
    """Let everything finish and look for leaks."""
    pipeline.until(pipeline.done)
    pipeline.check_drained()


def submit(pipeline: Pipeline, tokens: list[int], output: int = 1) -> str:
    rid = pipeline.head.submit(tokens, output)
    assert rid is not None
    return rid


def forget_behind(pipeline: Pipeline, rank: int, rid: str, keep: int) -> None:
    """Evict all that a rank can, but for the first `keep` tokens of a request's prompt."""
    k = pipeline.ranks[rank]
    found = k.tree.match(pipeline.head.bookings[rid].record, keep)
    assert found.endpoint == keep
    receipt = k.tree.lock(found.node)
    k.cache.evict(EvictParams(num_tokens=1000, mamba_num=1000))
    k.tree.unlock(receipt)
    pipeline.check(rank)


def in_round(pipeline: Pipeline, *, attempts: bool) -> bool:
    opened = pipeline.leader._open
    return opened is not None and bool(opened.attempts) == attempts


def hold_other(pipeline: Pipeline, pages: int = 2) -> str:
    """A request that is admitted, decodes nothing and stays."""
    rid = submit(pipeline, text(77, pages))
    pipeline.until(
        lambda: pipeline.head.bookings[rid].next == 0 and bool(pipeline.head.unplanned()), "prefill"
    )
    return rid


def test_trim_at_a_full_slot_pool() -> None:
    pipeline = Pipeline(quiet(slots=(9, 20)))
    tokens = text(1, 10)
    for rank in pipeline.ranks:
        rank.warm(tokens, [16, 32])
    hold_other(pipeline)
    rid = submit(pipeline, tokens)
    pipeline.until(lambda: in_round(pipeline, attempts=True), "prefill")
    forget_behind(pipeline, 1, rid, 16)
    pipeline.until(lambda: pipeline.ranks[0].admission.figures.trims > 0, "prefill")
    assert pipeline.ranks[0].admission.take(rid).endpoint == 16
    assert pipeline.verdicts[Verdict.WAIT.value] == 0, "one snapshot takes the other's place"
    end(pipeline)


def test_a_trim_that_would_need_another_slot_lets_go_and_waits() -> None:
    pipeline = Pipeline(quiet(slots=(20, 9), budget=2))
    tokens = text(1, 14)
    for rank in pipeline.ranks:
        rank.warm(tokens, [16, 32])
    submit(pipeline, tokens)
    pipeline.until(lambda: bool(pipeline.head.unplanned()), "prefill")
    pipeline.step("prefill")
    pipeline.finish_work()  # on rank 0 the first moves on, on rank 1 its lease still pins 32
    second = submit(pipeline, tokens)
    entry = pipeline.leader._queue
    pipeline.until(lambda: second in entry and entry[second].candidate == 32, "prefill", "loop 1")
    forget_behind(pipeline, 0, second, 16)
    pipeline.until(lambda: pipeline.ranks[1].admission.figures.trims > 0, "prefill", "loop 1")
    assert not pipeline.ranks[1].admission.holds(second), "32 is the first's as well, so 16 would be one more"
    assert pipeline.ranks[1].admission.take("r0").endpoint == 32
    end(pipeline)
    assert pipeline.verdicts[Verdict.WAIT.value] > 0
    assert pipeline.head.stat["finished"] == 2


def test_an_abort_command_overtakes_the_gather_that_admits() -> None:
    pipeline = Pipeline(quiet())
    rid = submit(pipeline, text(1, 6))
    pipeline.until(lambda: in_round(pipeline, attempts=True), "prefill")
    pipeline.begin(pipeline.head.abort(rid))
    pipeline.finish_work()
    # The follower votes, and then hears nothing more of the rounds until it has applied the abort.
    pipeline.until(lambda: bool(pipeline.to_leader[1]), "prefill")
    pipeline.until(lambda: pipeline.ranks[1].handover.last_applied_command == 1, "message 1")
    assert rid not in pipeline.ranks[1].jobs and not pipeline.ranks[1].admission.holds(rid)
    assert len(pipeline.to_followers[1]) == 1, "the gather is still on its way"
    end(pipeline)
    assert pipeline.head.stat["aborted at admission"] == 1


def test_an_abort_command_arrives_before_the_loop_has_looked_at_the_installation() -> None:
    pipeline = Pipeline(quiet())
    rid = submit(pipeline, text(1, 6))
    pipeline.until(
        lambda: rid in pipeline.head.bookings and bool(pipeline.head.unplanned()), "prefill", "loop 1"
    )
    pipeline.begin(pipeline.head.abort(rid))
    pipeline.finish_work()
    assert rid not in pipeline.ranks[1].jobs
    pipeline.until(lambda: bool(pipeline.loops[0].mail), "loop 1")
    end(pipeline)
    assert pipeline.head.stat["aborted"] == 1


def test_a_span_waits_for_the_installation_that_it_overtook() -> None:
    pipeline = Pipeline(quiet())
    rid = submit(pipeline, text(1, 6))
    pipeline.until(lambda: bool(pipeline.loops[0].mail), "loop 1")
    assert pipeline.head.bookings[rid].planned and rid not in pipeline.ranks[1].jobs
    end(pipeline)
    assert pipeline.head.stat["finished"] == 1


def test_a_shared_snapshot_stays_for_the_lease_when_its_runner_moves_on() -> None:
    pipeline = Pipeline(quiet(slots=(9, 9), output=1))
    tokens = text(1, 10)
    for rank in pipeline.ranks:
        rank.warm(tokens, [16])
    runner = submit(pipeline, tokens)
    leased = submit(pipeline, tokens[:24] + text(5, 1))
    pipeline.until(lambda: len(pipeline.head.unplanned()) == 2, "prefill")
    lead = pipeline.ranks[0]
    snapshot = lead.admission.take(leased).node
    assert snapshot == lead.admission.take(runner).node
    pipeline.head.bookings[leased].aborting = True  # keeps its spans from being planned
    pipeline.until(lambda: runner in pipeline.head.ended)
    pipeline.head.bookings[leased].aborting = False
    for rank in pipeline.ranks:
        rank.cache.evict(EvictParams(num_tokens=1000, mamba_num=1000))
        check_promises(rank)
        lease = rank.admission.take(leased)
        assert lease.endpoint == 16 and rank.admission._ledger.pins(lease.node)
    end(pipeline)


def test_two_escrows_on_one_path() -> None:
    """Who holds the parent draws first and so evicts the other's child: its places back the other's promise."""
    pipeline = Pipeline(quiet(pools=(10, 10)))
    path = text(1, 10)
    for rank in pipeline.ranks:
        rank.warm(path, [20, 40])
    first = submit(pipeline, text(2, 5))
    second = submit(pipeline, text(3, 5))
    pipeline.until(lambda: len(pipeline.head.unplanned()) == 2, "prefill")
    lead = pipeline.ranks[0]
    held = lead.admission.escrows.holders()
    assert sorted(map(tuple, held.values())) == [(first,), (second,)]
    with lead.cache.mutex:
        lead.admission.escrows._evict(second, lead.admission.escrows._escrows[second], 1)
    check_promises(lead)
    assert lead.admission.escrows.victims == 0, "nothing of the path is left"
    check_pools(lead)
    end(pipeline)
    assert pipeline.head.stat["finished"] == 2


def test_a_request_does_not_wait_on_a_rank_where_nothing_else_is_alive() -> None:
    pipeline = Pipeline(quiet(slots=(20, 4)))
    tokens = text(1, 10)
    for rank in pipeline.ranks:
        rank.warm(tokens, [16])
    rid = submit(pipeline, tokens)
    # Rank 1 has 4 slots: a pinned snapshot would be one too many, and nobody will ever give one back.
    pipeline.until(lambda: bool(pipeline.head.unplanned()), "prefill")
    assert pipeline.head.bookings[rid].next == 0
    assert pipeline.verdicts[Verdict.WAIT.value] == 0
    end(pipeline)


def test_alone_on_one_rank_and_waiting_on_another() -> None:
    """Rank 1 has no room while another request runs; rank 0 lets go in every round, and tells of it as it should."""
    pipeline = Pipeline(quiet(pools=(40, 12)))
    big = submit(pipeline, text(1, 9))
    pipeline.until(lambda: bool(pipeline.head.unplanned()), "prefill")
    waits = submit(pipeline, text(2, 6))
    pipeline.until(lambda: pipeline.leader.waiting() == 1, "prefill")
    before = pipeline.leader.round
    pipeline.settle("prefill")
    assert pipeline.leader.round <= before + 1, "nothing came back, so nothing is tried again"
    end(pipeline)
    assert pipeline.head.stat["finished"] == 2 and big != waits


def test_nothing_is_held_behind_a_flush_that_a_rank_has_not_applied() -> None:
    pipeline = Pipeline(quiet())
    tokens = text(1, 6)
    submit(pipeline, tokens)
    end(pipeline)
    pipeline.begin(pipeline.head.flush())
    pipeline.finish_work()
    rid = submit(pipeline, tokens)
    pipeline.until(lambda: pipeline.verdicts[Verdict.PENDING.value] > 3, "command 1")
    assert pipeline.ranks[1].tree.available() == 160 and not pipeline.ranks[1].admission.holds(rid)
    end(pipeline)
    assert pipeline.head.stat["finished"] == 2


def test_a_wave_of_several_draws_for_all_before_it_allocates() -> None:
    pipeline = Pipeline(quiet(page=1, block=1, pools=(12, 12), budget=8))
    for rank in pipeline.ranks:
        rank.warm(text(1, 4, page=1), [4])
        rank.warm(text(2, 8, page=1), [8])
    for n in range(3):
        submit(pipeline, text(3 + n, 4, page=1))
    pipeline.until(lambda: len(pipeline.head.unplanned()) == 3, "prefill")
    # The first span evicts the older text; the second's victims are the third's as well, so that only an escrow can
    # evict them, and the allocation could not.
    pipeline.begin(pipeline.head.launch([Span(rid=rid, start=0, length=4) for rid in ("r0", "r1")]))
    end(pipeline)
    assert pipeline.head.stat["finished"] == 3


@pytest.mark.parametrize("slots", [None, (20, 20)])
@pytest.mark.parametrize(("gain", "reused"), [(None, 0), ((4, 4), 24), ((4, 28), 0)])
def test_a_request_starts_where_an_earlier_one_is_about_to_come(
    slots: tuple[int, ...] | None, gain: tuple[int, int] | None, reused: int
) -> None:
    pipeline = Pipeline(quiet(gain=gain, slots=slots))
    begin = text(1, 6)
    for seed in (2, 3):
        assert pipeline.head.submit([*begin, *text(seed, 2)], 1) is not None
    pipeline.until(lambda: pipeline.leader.idle() or pipeline.leader.holds_back > 0)
    end(pipeline)
    assert pipeline.head.stat["reused"] == reused


def test_who_waited_for_an_aborted_request_goes_on() -> None:
    pipeline = Pipeline(quiet(gain=(4, 4), budget=1))
    begin = text(1, 6)
    first = pipeline.head.submit([*begin, *text(2, 2)], 1)
    assert first is not None and pipeline.head.submit([*begin, *text(3, 2)], 1) is not None
    pipeline.until(lambda: pipeline.head.bookings[first].next >= 8)
    pipeline.finish_work()
    pipeline.begin(pipeline.head.abort(first))
    end(pipeline)
    assert pipeline.head.stat["finished"] == 1
    assert 0 < pipeline.head.stat["reused"] < 24, "what had been computed until then"


# --- any order, by Hypothesis -----------------------------------------------------------------------------------


class AnyOrder(RuleBasedStateMachine):
    """The same pipeline, with Hypothesis in the place of the network, the clients and the clock."""

    @initialize(seed=st.integers(0, 1 << 32))
    def start(self, seed: int) -> None:
        world = random_world(random.Random(seed), requests=0)
        self.pipeline = Pipeline(
            replace(world, pools=world.pools[:3], slots=world.slots and world.slots[:3]), seed
        )

    @precondition(lambda self: self.pipeline.work is None)
    @rule()
    def arrive(self) -> None:
        self.pipeline.head.arrive()

    @precondition(lambda self: self.pipeline.work is None and self.pipeline.head.bookings)
    @rule()
    def abort(self) -> None:
        self.pipeline.begin(self.pipeline.head.abort_any())

    @precondition(lambda self: self.pipeline.work is None and self.pipeline.head.is_idle())
    @rule()
    def flush(self) -> None:
        self.pipeline.begin(self.pipeline.head.flush())

    @rule(rank=st.integers(0, 2))
    def evict(self, rank: int) -> None:
        self.pipeline.evict(self.pipeline.ranks[rank % len(self.pipeline.ranks)])

    @precondition(lambda self: self.pipeline.enabled())
    @rule(data=st.data(), times=st.integers(1, 8))
    def act(self, data: st.DataObject, times: int) -> None:
        for _ in range(times):
            names = sorted({name for name, _, _ in self.pipeline.enabled()})
            if names:
                self.pipeline.step(data.draw(st.sampled_from(names)))

    @precondition(lambda self: not self.pipeline.enabled() and self.pipeline._sleeps())
    @rule()
    def let_time_pass(self) -> None:
        self.pipeline.tick()

    @invariant()
    def all_promises_can_be_kept(self) -> None:
        if hasattr(self, "pipeline"):
            for rank in self.pipeline.ranks:
                check_promises(rank)

    def teardown(self) -> None:
        if hasattr(self, "pipeline"):
            self.pipeline.until(self.pipeline.done, most=20_000)
            for rank in self.pipeline.ranks:
                check_drained(rank)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(
    max_examples=25,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
