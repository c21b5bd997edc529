"""Leases on SGLang's own trees and pools: hint, bounded walk, pin, promise, escrow, trim, hand-over, end.

Lengths of the examples are those of the specification; a `K` is two tokens here.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Hashable
from typing import Any

import pytest
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from torch.utils._python_dispatch import TorchDispatchMode
from unit.cache.real_rank import RealRank, record
from unit.cache.test_two_walk import KINDS, histories, ids, text

from sglang_wavepp.admission.hint import Hint
from sglang_wavepp.admission.hold import Hold, Shortage
from sglang_wavepp.admission.leader import LeaderEvents, RoundsLeader
from sglang_wavepp.admission.member import RoundsMember
from sglang_wavepp.admission.messages import Broadcast, Gather, InstallRecord, Vote
from sglang_wavepp.cache.escrow import EscrowError
from sglang_wavepp.cache.ledger import LedgerError

pytestmark = pytest.mark.unit

K = 2
PAGE = 4


def rank_of(
    page: int = PAGE, hybrid: bool = False, *, pages: int = 32, slots: int = 24, **more: Any
) -> RealRank:
    return RealRank(page=page, tokens=page * pages, slots=slots if hybrid else None, leases=True, **more)


class Agreement:
    """All ranks' rounds, delivered at once."""

    def __init__(self, *ranks: RealRank) -> None:
        self.ranks = ranks
        self.leader = RoundsLeader(ranks=len(ranks), max_batch=4)
        self.members = [RoundsMember(rank=i, cache=rank.admission) for i, rank in enumerate(ranks)]

    def open(self) -> Broadcast:
        opened = self.leader.next_broadcast(0.0, free_rows=self.ranks[0].admission.free_rows)
        assert opened is not None
        return opened

    def close(self, opened: Broadcast) -> tuple[tuple[Vote, ...], LeaderEvents]:
        votes = tuple(member.on_broadcast(opened, applied_command=0) for member in self.members)
        for member in self.members:
            member.on_gather(Gather(round=opened.round, votes=votes))
        for rank in self.ranks:
            rank.check()
        return votes, self.leader.on_votes(votes)

    def admit(self, request: InstallRecord) -> tuple[int, list[list[int]]]:
        """Endpoint, and what each rank held in each round of attempts before."""
        self.leader.announce(request)
        held: list[list[int]] = []
        for _ in range(8):
            votes, events = self.close(self.open())
            if votes[0].attempts:
                held.append([vote.attempts[request.rid].endpoint for vote in votes])
            if events.admitted:
                return events.admitted[0].endpoint, held
        raise AssertionError(f"{request.rid} was not admitted: {held}")

    def end(self, rid: str) -> None:
        for rank in self.ranks:
            rank.admission.end(rid)
            rank.check_drained()


# --- the specification's examples -------------------------------------------------------------------------------


def test_snapshots_of_64_72_90_and_64_80_settle_on_64_in_one_attempt() -> None:
    a, b = rank_of(hybrid=True, pages=60), rank_of(hybrid=True, pages=70)
    tokens = text(1, 100 * K)
    a.compute(tokens, (64 * K, 72 * K, 90 * K))
    b.compute(tokens, (64 * K, 80 * K))
    request = record("r", tokens)
    assert a.lease.hint(request) == Hint(90 * K, (90 * K, 72 * K, 64 * K), sparse=True)
    assert b.lease.hint(request) == Hint(80 * K, (80 * K, 64 * K), sparse=True)
    pair = Agreement(a, b)
    assert pair.admit(request) == (64 * K, [[64 * K, 64 * K]])
    assert a.lease.figures.trims == b.lease.figures.trims == 0
    pair.end("r")


def test_a_hint_that_went_stale_is_trimmed_to_the_snapshot_that_all_have() -> None:
    a, b = rank_of(hybrid=True, pages=60), rank_of(hybrid=True, pages=70)
    tokens = text(1, 100 * K)
    a.compute(tokens, (64 * K, 72 * K, 90 * K))
    b.compute(tokens, (64 * K, 72 * K, 80 * K))
    pair = Agreement(a, b)
    request = record("r", tokens)
    pair.leader.announce(request)
    pair.close(pair.open())
    opened = pair.open()
    assert [attempt.candidate for attempt in opened.attempts] == [72 * K]
    forget_after(b, tokens, 64 * K)
    votes, events = pair.close(opened)
    assert [vote.attempts["r"].endpoint for vote in votes] == [72 * K, 64 * K]
    assert events.admitted == ()
    assert a.lease.holds("r") and b.lease.holds("r"), "what goes on lower stays held"
    votes, events = pair.close(pair.open())
    assert [vote.attempts["r"].endpoint for vote in votes] == [64 * K, 64 * K]
    assert [each.endpoint for each in events.admitted] == [64 * K]
    assert a.cache.protected_size() == b.cache.protected_size() == 64 * K
    assert [rank.lease.hint_figures.stale_tokens for rank in (a, b)] == [0, 8 * K]
    pair.end("r")


def forget_after(rank: RealRank, tokens: array[int], end: int) -> None:
    """Evict what a rank has of a text behind a position."""
    keep = rank.tree.lock(rank.tree.match(record("keep", tokens), end).node)
    rank.evict_all()
    rank.tree.unlock(keep)


def test_from_112_down_to_96_the_need_of_a_prompt_of_200_rises_from_88_to_104() -> None:
    rank = rank_of(pages=160)
    tokens = text(1, 200 * K)
    rank.compute(tokens, (96 * K, 112 * K))
    rank.compute(text(2, 300), (300,))
    request = record("r", tokens)
    assert rank.lease.hold(request, 112 * K) == Hold(112 * K)
    assert rank.lease.escrows.needs() == {"r": 88 * K}
    assert rank.lease._ledger.reserved_tokens == 88 * K
    victims = rank.lease.escrows.victim_tokens
    assert victims == 88 * K - rank.allocator.available_size()
    assert rank.lease.trim(request, 96 * K) == Hold(96 * K)
    assert rank.lease.escrows.needs() == {"r": 104 * K}
    assert rank.lease._ledger.reserved_tokens == 104 * K
    assert rank.lease.escrows.victim_tokens == 104 * K - rank.allocator.available_size()
    assert rank.cache.protected_size() == 96 * K
    rank.check()
    rank.admission.release("r")
    rank.check_drained()


def test_a_trim_locks_the_earlier_place_before_it_lets_go_of_the_later() -> None:
    rank = rank_of(pages=100)
    tokens = text(1, 120 * K)
    rank.compute(tokens, (96 * K, 112 * K))
    request = record("r", tokens)
    assert rank.lease.hold(request, 112 * K) == Hold(112 * K)
    pinned: list[int] = []
    unlock = rank.tree.unlock
    rank.tree.unlock = lambda receipt: unlock(receipt) or pinned.append(rank.tree.locked())  # type: ignore
    assert rank.lease.trim(request, 96 * K) == Hold(96 * K)
    assert pinned == [96 * K], "what both share never came loose"
    rank.admission.release("r")
    rank.check_drained()


def test_a_trim_that_finds_no_room_for_the_higher_need_lets_go_of_everything() -> None:
    rank = rank_of(pages=100)
    tokens = text(1, 120 * K)
    rank.compute(tokens, (96 * K, 112 * K))
    other = record("o", text(2, 80 * K))
    assert rank.lease.hold(other, 0) == Hold(0)
    request = record("r", tokens)
    assert rank.lease.hold(request, 112 * K) == Hold(112 * K), "80 + 112 + 8 are 200"
    # At 96 the need is 24, and the 16 that come loose cover the difference: net nothing changes.
    assert rank.lease.trim(request, 96 * K) == Hold(96 * K)
    pages = rank.allocator.alloc(8 * K)  # as if deferred frees were outstanding
    assert rank.lease.trim(request, 64 * K) is Shortage.TOKENS
    assert not rank.lease.holds("r")
    assert rank.lease.escrows.needs() == {"o": 80 * K}
    rank.allocator.free(pages)
    rank.check()
    rank.admission.release("o")
    rank.check_drained()


def test_one_stage_that_has_32_bounds_every_walk_to_32() -> None:
    ranks = [rank_of(pages=100 + 10 * n) for n in range(4)]
    tokens = text(1, 160 * K)
    for n, rank in enumerate(ranks):
        rank.compute(tokens, (32 * K,) if n == 2 else (32 * K, 80 * K, 144 * K))
    together = Agreement(*ranks)
    walks: list[int] = []
    for rank in ranks:
        found = rank.tree.match
        rank.tree.match = lambda req, limit, found=found: walks.append(limit) or found(req, limit)  # type: ignore[method-assign, func-returns-value]
    assert together.admit(record("r", tokens)) == (32 * K, [[32 * K] * 4])
    assert walks == [32 * K] * 4, "hints walk nothing, and no walk goes further than all can use"
    assert all(rank.cache.protected_size() == 32 * K for rank in ranks)
    together.end("r")


def test_a_lease_that_would_leave_another_escrow_short_waits() -> None:
    rank = rank_of(1, pages=8)
    oldest, newer = text(1, 3), text(2, 1)
    rank.compute(oldest, (3,))
    rank.compute(newer, (1,))
    assert rank.lease.hold(record("r1", text(3, 6)), 0) == Hold(0)
    assert rank.lease.escrows.victim_tokens == 2, "4 are free"
    second = record("r2", oldest + text(4, 1))
    assert rank.lease.hint(second).endpoint == 3
    # 6 of 8 are promised: 2 are left, and the second would pin 3 and need 1 more.
    assert rank.lease.hold(second, 3) is Shortage.TOKENS
    rank.check()
    assert rank.cache.protected_size() == 0
    seen = rank.lease.releases
    run = rank.start(record("r1", text(3, 6)), 0)
    rank.span(run, 6)
    rank.check()
    rank.finish(run)
    assert rank.lease.releases > seen
    assert isinstance(rank.lease.hold(second, 3), Hold)
    rank.admission.end("r2")
    rank.check_drained()


def test_without_a_slot_a_lease_takes_an_earlier_snapshot_that_another_pins() -> None:
    rank = rank_of(hybrid=True, pages=120, slots=9)
    tokens = text(1, 100 * K)
    rank.compute(tokens, (16 * K, 32 * K, 48 * K, 64 * K))
    first, second = record("a", tokens), record("b", tokens)
    assert rank.lease.hold(first, 32 * K) == Hold(32 * K)
    # Two requests of 4 slots and one snapshot are 9: no room for a second snapshot, but the first is paid for.
    assert rank.lease.hold(second, 64 * K) == Hold(32 * K)
    assert rank.cache.mamba_protected_size() == 1
    rank.check()
    rank.admission.release("a")
    assert rank.lease._ledger.pins(rank.lease.take("b").node)
    rank.admission.release("b")
    rank.check_drained()


def test_without_a_slot_and_without_a_pinned_snapshot_on_the_way_a_lease_waits() -> None:
    rank = rank_of(hybrid=True, pages=120, slots=9)
    tokens, other = text(1, 100 * K), text(2, 100 * K)
    rank.compute(tokens, (32 * K, 64 * K))
    rank.compute(other, (32 * K,))
    assert rank.lease.hold(record("a", tokens), 64 * K) == Hold(64 * K)
    assert rank.lease.hold(record("b", other), 32 * K) is Shortage.SLOTS
    assert rank.lease.hold(record("c", tokens), 32 * K) is Shortage.SLOTS, "a's snapshot lies further on"
    assert rank.lease.figures.short == {Shortage.SLOTS: 2}
    assert rank.cache.mamba_protected_size() == 1
    rank.admission.release("a")
    rank.check_drained()


def test_trim_at_a_full_slot_pool_swaps_one_pinned_snapshot_for_another() -> None:
    rank = rank_of(hybrid=True, pages=120, slots=9)
    tokens = text(1, 100 * K)
    rank.compute(tokens, (32 * K, 64 * K))
    assert rank.lease.hold(record("o", text(2, 8)), 0) == Hold(0)
    request = record("r", tokens)
    assert rank.lease.hold(request, 64 * K) == Hold(64 * K), "8 slots and one snapshot are all there are"
    assert rank.lease.trim(request, 32 * K) == Hold(32 * K)
    assert rank.cache.mamba_protected_size() == 1
    rank.check()
    rank.admission.release("r")
    rank.admission.release("o")
    rank.check_drained()


def test_trim_of_a_shared_snapshot_at_a_full_slot_pool_has_to_wait() -> None:
    rank = rank_of(hybrid=True, pages=120, slots=9)
    tokens = text(1, 100 * K)
    rank.compute(tokens, (32 * K, 64 * K))
    shared, request = record("o", tokens), record("r", tokens)
    assert rank.lease.hold(shared, 64 * K) == Hold(64 * K)
    assert rank.lease.hold(request, 64 * K) == Hold(64 * K), "8 slots, and one snapshot for both"
    assert rank.lease.trim(request, 32 * K) is Shortage.SLOTS
    assert not rank.lease.holds("r") and rank.lease.take("o").endpoint == 64 * K
    rank.check()
    rank.admission.release("o")
    rank.check_drained()


# --- victims ----------------------------------------------------------------------------------------------------


def test_claimed_victims_are_replaced_before_they_are_let_go() -> None:
    rank = rank_of(pages=32)
    claimed, rest = text(1, 40), text(2, 40)
    rank.compute(claimed, (40,))
    rank.compute(rest, (40,))
    assert rank.lease.hold(record("a", text(3, 80)), 0) == Hold(0)
    victims = rank.lease.escrows.holders()
    assert rank.lease.escrows.victim_tokens == 32
    order: list[tuple[str, Hashable, int]] = []
    hold, unhold = rank.tree.hold, rank.tree.unhold  # type: ignore[union-attr]
    rank.tree.hold = lambda node, n: order.append(("hold", node, n)) or hold(node, n)  # type: ignore
    rank.tree.unhold = lambda node, n: order.append(("unhold", node, n)) or unhold(node, n)  # type: ignore
    second = record("b", claimed + text(4, 4))
    assert rank.lease.hold(second, 40) == Hold(40)
    kinds = [kind for kind, _, _ in order]
    assert "unhold" in kinds
    assert sum(n for kind, _, n in order[: kinds.index("unhold")] if kind == "hold") >= 32
    assert rank.lease.escrows.figures.substituted == 32
    assert not victims.keys() & rank.lease.escrows.holders().keys()
    assert rank.cache.tree_core.claims == [], "each claim is looked at once"
    rank.check()
    run = rank.start(record("a", text(3, 80)), 0)
    other = rank.start(second, 40)
    rank.span(run, 80)
    rank.span(other, 44)
    rank.finish(run)
    rank.finish(other)
    rank.check_drained()


def test_victims_that_no_replacement_is_left_for_are_never_claimed() -> None:
    rank = rank_of(pages=20)
    claimed = text(1, 40)
    rank.compute(claimed, (40,))
    assert rank.lease.hold(record("a", text(3, 80)), 0) == Hold(0), "the whole pool"
    assert rank.lease.hold(record("b", claimed + text(4, 4)), 40) is Shortage.TOKENS
    assert rank.lease.escrows.victim_tokens == 40
    run = rank.start(record("a", text(3, 80)), 0)
    rank.span(run, 80)
    rank.finish(run)
    rank.check_drained()


def test_victims_go_in_eviction_order_and_only_when_they_are_needed() -> None:
    rank = rank_of(pages=32)
    texts = three_cached(rank)
    assert rank.allocator.available_size() == 8
    request = record("a", text(9, 68))
    assert rank.lease.hold(request, 0) == Hold(0)
    assert rank.lease.escrows.victim_tokens == 60
    run = rank.start(request, 0)
    rank.span(run, 8)
    assert [hint(rank, each) for each in texts] == [40, 40, 40], "free places come first"
    rank.span(run, 12)
    assert [hint(rank, each) for each in texts] == [0, 40, 40], "the least recently used goes first"
    rank.span(run, 48)
    assert [hint(rank, each) for each in texts] == [0, 40, 40], "what its eviction left over comes next"
    rank.span(run, 52)
    assert [hint(rank, each) for each in texts] == [0, 0, 40]
    rank.finish(run)
    assert rank.lease.escrows.victims == 0
    rank.check_drained()


def test_what_became_free_meanwhile_spares_the_victims_that_would_go_last() -> None:
    rank = rank_of(pages=32)
    older, newer = text(1, 40), text(2, 40)
    rank.compute(older, (40,))
    rank.compute(newer, (40,))
    other = record("o", text(3, 39))
    assert rank.lease.hold(other, 0) == Hold(0)
    holds_none = rank.start(other, 0)
    rank.span(holds_none, 39)
    request = record("a", text(9, 68))
    assert rank.lease.hold(request, 0) == Hold(0)
    assert rank.lease.escrows.victim_tokens == 60
    rank.finish(holds_none)  # its 40 places are free again
    run = rank.start(request, 0)
    for end in (12, 48, 68):
        rank.span(run, end)
        rank.check()
    assert [hint(rank, older), hint(rank, newer)] == [0, 40]
    assert rank.lease.escrows.figures.spared == 40
    rank.finish(run)
    rank.check_drained()


@pytest.mark.parametrize("hybrid", [False, True])
def test_what_a_waiting_request_names_goes_last(hybrid: bool) -> None:
    rank = rank_of(pages=32, hybrid=hybrid, slots=24)
    texts = three_cached(rank)
    waits = record("waits", texts[0] + text(8, 4))
    assert rank.lease.hint(waits).endpoint == 40
    assert rank.lease.hold(record("a", text(9, 68)), 0) == Hold(0)
    run = rank.start(record("a", text(9, 68)), 0)
    rank.span(run, 64)
    assert rank.lease.hint(waits).endpoint == 40, "it is the least recently used"
    assert [hint(rank, each) for each in texts[1:]] == [0, 0]
    rank.finish(run)
    rank.lease.forget("waits")
    rank.check_drained()


def test_a_victim_is_exchanged_when_a_request_comes_to_wait_for_it() -> None:
    rank = rank_of(pages=32)
    texts = three_cached(rank)
    request = record("a", text(9, 40))
    assert rank.lease.hold(request, 0) == Hold(0)
    assert rank.lease.escrows.victim_tokens == 32
    waits = record("waits", texts[0] + text(8, 4))
    rank.lease.hint(waits)
    run = rank.start(request, 0)
    rank.span(run, 40)
    assert [hint(rank, each) for each in texts] == [40, 0, 40]
    assert rank.lease.escrows.figures.exchanged == 32
    rank.finish(run)
    rank.lease.forget("waits")
    rank.check_drained()


def test_of_what_is_wanted_the_last_in_the_queue_goes_first() -> None:
    rank = rank_of(pages=32)
    texts = three_cached(rank)
    waiting = [record(f"waits-{n}", texts[n] + text(8, 4)) for n in (2, 0, 1)]
    for each in waiting:
        rank.lease.hint(each)
    rank.lease.hold(record("a", text(9, 40)), 0)
    run = rank.start(record("a", text(9, 40)), 0)
    rank.span(run, 40)
    assert [rank.lease.hint(each).endpoint for each in waiting] == [40, 40, 0]
    rank.finish(run)
    for each in waiting:
        rank.lease.forget(each.rid)
    rank.check_drained()


def test_of_wanted_snapshots_that_of_the_last_in_the_queue_goes_first() -> None:
    rank = rank_of(pages=60, hybrid=True, slots=24)
    texts = three_cached(rank)
    waiting = [record(f"waits-{n}", texts[n] + text(8, 4)) for n in (2, 0, 1)]
    for each in waiting:
        rank.lease.hint(each)
    for left in ([40, 40, 0], [40, 0, 0], [0, 0, 0]):
        rank.cache.evict_for_alloc(EvictParams(num_tokens=0, mamba_num=1))
        assert [rank.lease.hint(each).endpoint for each in waiting] == left
    for each in waiting:
        rank.lease.forget(each.rid)


def test_of_the_snapshots_on_its_path_a_request_waits_for_the_deepest_only() -> None:
    rank = rank_of(pages=60, hybrid=True, slots=24)
    first, second = text(1, 40), text(2, 40)
    rank.compute(first, (8, 16, 24, 40))
    rank.compute(second, (40,))
    waiting = [record("first", first + text(8, 4)), record("second", second + text(8, 4))]
    for _ in range(3):  # three that nobody would resume from
        for each in waiting:
            assert rank.lease.hint(each).endpoint == 40
        rank.cache.evict_for_alloc(EvictParams(num_tokens=0, mamba_num=1))
    assert [rank.lease.hint(each).snapshots for each in waiting] == [(40,), (40,)]
    for each in waiting:
        rank.lease.forget(each.rid)


def test_only_requests_in_admission_are_waited_for() -> None:
    rank = rank_of(pages=32)
    wanted = rank.tree.core.wanted
    request = record("a", text(1, 20))
    rank.lease.hint(request)
    assert len(wanted) == 1 and wanted
    rank.lease.hold(request, 0)
    assert wanted, "other ranks may refuse it"
    rank.lease.admitted("a")
    assert not wanted and len(wanted) == 0
    rank.lease.hint(record("b", text(2, 20)))
    rank.lease.forget("b")
    assert not wanted


def three_cached(rank: RealRank) -> list[array[int]]:
    """Three texts of 40 tokens in its cache, the least recently used first."""
    texts = [text(n, 40) for n in range(1, 4)]
    for each in texts:
        rank.compute(each, (40,))
    return texts


def hint(rank: RealRank, tokens: array[int]) -> int:
    found = rank.lease.hint(record("look", tokens + text(99, rank.page))).endpoint
    rank.lease.forget("look")
    return found


def test_an_evicted_victim_that_nobody_needed_leaves_its_places_to_the_promise() -> None:
    rank = rank_of(hybrid=True, pages=20, slots=24)
    rank.compute(text(1, 40), (40,))
    rank.compute(text(2, 40), (40,))
    request = record("a", text(3, 48))
    assert rank.lease.hold(request, 0) == Hold(0)
    assert rank.lease.escrows.victim_tokens == 48
    rank.evict_all()  # for slots SGLang also takes leaves that are held
    assert rank.lease.escrows.victim_tokens == 0
    rank.check()
    run = rank.start(request, 0)
    rank.span(run, 48)
    rank.finish(run)
    rank.check_drained()


def test_all_spans_of_a_wave_draw_before_one_allocation_for_all_of_them() -> None:
    rank = rank_of(1, pages=12)
    rank.compute(text(1, 4), (4,))
    rank.compute(text(2, 8), (8,))
    requests = [record(name, text(10 + n, 4)) for n, name in enumerate("abc")]
    for request in requests:
        assert rank.lease.hold(request, 0) == Hold(0)
    runs = [rank.start(request, 0) for request in requests]
    with rank.cache.mutex:
        # The first draw frees the older text; the second must not take these places for free ones, because the newer
        # text is also the third's and so can't be evicted by the allocation itself.
        rank.lease.draw_all({"a": 4, "b": 4})
        pages = rank.take_tokens(8)
        for run, part in zip(runs, pages.split(4), strict=False):
            run.pages, run.at = part, 4
    rank.check()
    for run in runs:
        rank.finish(run)
    rank.check_drained()


# --- headroom, rows, releases -----------------------------------------------------------------------------------


def test_headroom_is_left_beside_others_and_never_binds_alone() -> None:
    rank = rank_of(pages=32, headroom=40)
    big = record("big", text(1, 128))
    assert rank.lease.hold(big, 0) == Hold(0), "alone it takes the whole pool"
    rank.admission.release("big")
    assert rank.lease.hold(record("a", text(2, 80)), 0) == Hold(0)
    # 48 are left, 40 of them as headroom; the second's own need is taken into account: min(40, 128 - 12).
    assert rank.lease.hold(record("b", text(3, 12)), 0) is Shortage.HEADROOM
    assert rank.lease.hold(record("c", text(3, 8)), 0) == Hold(0)
    assert rank.lease.hold(record("d", text(4, 4)), 0) is Shortage.HEADROOM
    rank.admission.release("a")
    assert rank.lease.hold(record("e", text(5, 80)), 0) == Hold(0), "128 - 8 - 80 are just enough"
    rank.admission.release("c")
    rank.admission.release("e")
    assert rank.lease.figures.short == {Shortage.HEADROOM: 2}
    rank.check_drained()


def test_headroom_counts_what_the_lease_itself_pins() -> None:
    rank = rank_of(pages=32, headroom=40)
    tokens = text(1, 60)
    rank.compute(tokens, (60,))
    assert rank.lease.hold(record("a", text(2, 40)), 0) == Hold(0)
    # 128 - 40 promised - 60 pinned - 4 needed leave 24.
    assert rank.lease.hold(record("b", tokens + text(3, 4)), 60) is Shortage.HEADROOM
    assert rank.cache.protected_size() == 0
    assert rank.lease.hold(record("c", tokens[:40] + text(3, 4)), 40) == Hold(40), "44 are left"
    rank.admission.release("a")
    rank.admission.release("c")
    rank.check_drained()


def test_releases_tell_of_all_room_that_comes_back() -> None:
    rank = rank_of(16, pages=8)
    seen = rank.lease.releases
    rank.lease.hold(record("a", text(1, 32)), 0)
    assert rank.lease.releases == seen
    assert rank.lease.hold(record("b", text(2, 112)), 0) is Shortage.TOKENS
    assert rank.lease.releases == seen, "an attempt that failed is no news"
    run = rank.start(record("a", text(1, 32)), 0)
    rank.span(run, 32)
    assert rank.lease.releases == seen
    rank.finish(run)
    assert rank.lease.releases > seen
    # Pages that come back without an end, as those do whose free SGLang defers.
    pages = rank.allocator.alloc(64)
    seen = rank.lease.releases
    assert rank.lease.hold(record("b", text(2, 112)), 0) is Shortage.TOKENS
    rank.allocator.free(pages)
    assert rank.lease.releases > seen
    seen = rank.lease.releases
    pages = rank.allocator.alloc(64)
    assert rank.lease.hold(record("b", text(2, 112)), 0) is Shortage.TOKENS
    rank.allocator.free(pages)
    assert rank.lease.releases > seen, "also when the level is the same at both readings"
    rank.check_drained()


def test_a_release_ends_the_escrow_before_the_lease() -> None:
    rank = rank_of()
    tokens = text(1, 40)
    rank.compute(tokens, (40,))
    assert rank.lease.hold(record("a", tokens + text(2, 8)), 40) == Hold(40)
    order: list[str] = []
    close, unlock = rank.lease.escrows.close, rank.tree.unlock
    rank.lease.escrows.close = lambda rid: order.append("escrow") or close(rid)  # type: ignore
    rank.tree.unlock = lambda receipt: order.append("lease") or unlock(receipt)  # type: ignore
    rank.admission.release("a")
    assert order == ["escrow", "lease"]
    rank.check_drained()


# --- the same as by two walks -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("page", "hybrid"), KINDS, ids=ids)
def test_a_hint_finds_whole_pages_within_the_limit_and_pins_nothing(page: int, hybrid: bool) -> None:
    rank = rank_of(page, hybrid)
    tokens = text(1, 10 * page)

    def endpoint(name: str, prompt: array[int], **more: Any) -> int:
        return rank.lease.hint(record(name, prompt, **more)).endpoint

    assert endpoint("a", tokens) == 0
    rank.compute(tokens, tuple(range(page, 10 * page + 1, page)))
    longer = tokens + text(2, 2 * page)
    assert endpoint("b", longer) == 10 * page
    assert endpoint("a", tokens) == 9 * page, "one token is always computed"
    assert endpoint("b", longer, limit=7 * page - 1) == 6 * page
    assert endpoint("b", longer, limit=0) == 0
    assert endpoint("a", tokens, limit=10 * page) == 9 * page, "whatever the record allows"
    assert endpoint("c", longer, salt="another tenant") == 0
    assert rank.lease.chain("b") is not None and rank.lease.chain("unknown") is None
    assert rank.lease.hashed == 3
    for name in "abc":
        rank.lease.forget(name)
    rank.check_drained()


def test_a_snapshot_off_the_grid_is_never_an_endpoint() -> None:
    rank = rank_of(16, True, grid=64)
    tokens = text(1, 320)
    rank.compute(tokens, (128, 208, 240))
    assert rank.lease.hint(record("a", tokens)).endpoint == 128
    assert rank.lease.hold(record("a", tokens), 256) == Hold(128)
    rank.admission.end("a")
    rank.check_drained()


@pytest.mark.parametrize(("page", "hybrid"), KINDS, ids=ids)
def test_a_lease_keeps_its_prefix_and_nothing_else(page: int, hybrid: bool) -> None:
    rank = rank_of(page, hybrid)
    tokens = text(1, 10 * page)
    rank.compute(tokens, tuple(range(page, 10 * page + 1, page)))
    request = record("a", tokens + text(2, page))
    assert rank.lease.hold(request, 6 * page) == Hold(6 * page)
    assert rank.cache.protected_size() == 6 * page
    rank.evict_all()
    assert rank.lease.hint(request).endpoint == 6 * page
    rank.check()
    assert rank.lease.trim(request, 3 * page) == (Hold(3 * page) if not hybrid else Hold(0))
    rank.check()
    rank.admission.release("a")
    rank.admission.release("a")
    rank.lease.forget("a")
    rank.check_drained()


@pytest.mark.parametrize(("page", "hybrid"), KINDS, ids=ids)
def test_a_hold_that_fails_changes_nothing(page: int, hybrid: bool) -> None:
    rank = rank_of(page, hybrid, rows=2, slots=9)
    tokens = text(1, 10 * page)
    rank.compute(tokens, tuple(range(page, 10 * page + 1, page)))
    assert rank.lease.hold(record("a", tokens), 4 * page) == Hold(4 * page)

    def state() -> tuple[Any, ...]:
        book = rank.lease.escrows
        sizes = rank.cache.protected_size(), rank.allocator.available_size(), rank.admission.held
        return *sizes, book.needs(), book.holders()

    seen = state()
    assert rank.lease.hold(record("b", text(3, 23 * page)), 0) is Shortage.TOKENS
    assert state() == seen
    assert rank.lease.hold(record("b", text(4, page)), 0) == Hold(0)
    assert rank.lease.hold(record("c", text(5, page)), 0) is Shortage.ROWS
    rank.check()
    rank.admission.release("a")
    rank.admission.release("b")
    rank.check_drained()


def test_alone_a_request_gives_up_reuse_rather_than_waiting_for_nothing() -> None:
    rank = rank_of(16, True, slots=4)
    tokens = text(1, 16 * 4)
    rank.compute(tokens, (32, 64))
    request = record("a", tokens)
    assert rank.lease.hint(request).endpoint == 32
    # Its 4 slots and a pinned snapshot are 5, and nobody else is here to give one back.
    assert rank.lease.hold(request, 32) == Hold(0)
    run = rank.start(request, 0)
    for end in (16, 32, 48, 64):
        rank.span(run, end)
        rank.check()
    rank.finish(run)
    rank.check_drained()


def test_after_the_hand_over_the_snapshot_is_among_the_requests_own_slots() -> None:
    rank = rank_of(16, True, slots=9)
    tokens = text(1, 16 * 4)
    rank.compute(tokens, (32, 48))
    first, second = record("a", tokens), record("b", tokens)
    assert rank.lease.hold(first, 48) == Hold(48)
    assert rank.lease.hold(second, 32) is Shortage.SLOTS, "8 slots and two leased snapshots are 10"
    run = rank.start(first, 48)
    assert rank.lease.hold(second, 32) == Hold(32), "8 and one"
    assert rank.lease.figures.reused_tokens == 48
    other = rank.start(second, 32)
    for step, end in ((run, 64), (other, 48), (other, 64)):
        rank.span(step, end)
        rank.check()
    rank.finish(run)
    rank.finish(other)
    rank.check_drained()


# --- consumption and ends ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("page", "hybrid"), KINDS, ids=ids)
@pytest.mark.parametrize("spans", [0, 1, 3])
def test_an_abort_in_the_middle_gives_back_exactly_the_rest(page: int, hybrid: bool, spans: int) -> None:
    rank = rank_of(page, hybrid, pages=32)
    tokens = text(1, 12 * page)
    rank.compute(tokens, (4 * page, 8 * page))
    rank.compute(text(2, 10 * page), (10 * page,))
    request = record("a", tokens, output=2 * page + 1)
    other = record("b", text(3, 15 * page))
    assert rank.lease.hold(request, 4 * page) == Hold(4 * page)
    assert rank.lease.escrows.needs() == {"a": 10 * page}
    assert rank.lease.hold(other, 0) == Hold(0)
    run = rank.start(request, 4 * page)
    for n in range(spans):
        rank.span(run, (5 + n) * page)
        assert rank.lease.escrows.needs()["a"] == (10 - n - 1) * page
        rank.check()
    rank.finish(run)
    assert rank.lease.escrows.needs() == {"b": 15 * page}
    assert rank.lease._ledger.reserved_tokens == 15 * page
    rank.check()
    with pytest.raises(LedgerError, match="no promise"):
        rank.admission.end("a")
    rank.admission.end("b")
    rank.check_drained()


def test_an_end_before_the_first_span_ends_lease_promise_and_escrow() -> None:
    rank = rank_of(16, True)
    rank.compute(text(1, 64), (64,))
    rank.lease.hint(record("a", text(1, 80)))
    rank.lease.hold(record("a", text(1, 80)), 64)
    with pytest.raises(LedgerError, match="held already"):
        rank.lease.hold(record("a", text(1, 80)), 64)
    with pytest.raises(LedgerError, match="1 leases"):
        rank.lease.check_idle()
    rank.admission.end("a")
    rank.check_drained()


def test_nobody_draws_beyond_the_promise_or_without_one() -> None:
    rank = rank_of(16)
    with pytest.raises(LedgerError, match="no promise"):
        rank.lease.draw("a", 1)
    rank.lease.hold(record("a", text(1, 20), output=3), 0)
    rank.lease.draw("a", 22)
    assert rank.lease.escrows.needs() == {"a": 0}, "two pages"
    rank.lease.draw("a", 30)
    with pytest.raises(LedgerError, match="draws up to 48"):
        rank.lease.draw("a", 33)
    rank.admission.end("a")
    rank.check_drained()


def test_a_taker_outside_of_all_promises_is_found_at_the_draw() -> None:
    rank = rank_of(16, pages=4)
    rank.lease.hold(record("a", text(1, 64)), 0)
    pages = rank.allocator.alloc(32)
    with pytest.raises(LedgerError, match="promised more than there is"):
        rank.lease.check()
    with pytest.raises(EscrowError, match="run short"):
        rank.lease.draw("a", 64)
    rank.allocator.free(pages)
    rank.admission.end("a")


@pytest.mark.parametrize("hybrid", [False, True], ids=["dense", "hybrid"])
def test_admission_does_no_work_on_the_device(hybrid: bool) -> None:
    views = {"aten.slice.Tensor", "aten.alias.default", "aten.detach.default", "aten.view.default"}

    class Watch(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: set[str] = set()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.add(str(func))
            return func(*args, **(kwargs or {}))

    rank = rank_of(16, hybrid)
    tokens = text(1, 16 * 10)
    rank.compute(tokens, tuple(range(16, 161, 16)))
    rank.compute(text(2, 16 * 16), (16 * 16,))
    request = record("a", tokens)
    with Watch() as watch:
        assert rank.lease.hint(request).endpoint == 144
        assert rank.lease.hold(request, 80) == Hold(80)
        assert rank.lease.trim(request, 48) == Hold(48)
        _ = rank.lease.releases
        rank.lease.check()
        rank.lease.hand_over("a")
        rank.lease.end("a")
    assert watch.seen <= views, f"work on the device: {watch.seen - views}"


@pytest.mark.parametrize(("page", "hybrid"), KINDS, ids=ids)
def test_nobody_admitted_ever_runs_short(page: int, hybrid: bool) -> None:
    for seed in range(3):
        assert histories(rank_of(page, hybrid, slots=14), seed, 120) > 10


@pytest.mark.full
@pytest.mark.parametrize(("page", "hybrid"), KINDS, ids=ids)
def test_nobody_admitted_ever_runs_short_for_long(page: int, hybrid: bool) -> None:
    for seed in range(100, 140):
        histories(rank_of(page, hybrid, slots=random.Random(seed).randint(4, 20)), seed, 600)
