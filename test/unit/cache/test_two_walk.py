"""Admission on SGLang's own trees and pools: dense and hybrid, pages of 1, 16 and 64."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode
from unit.cache.real_rank import RealRank, Running, record

from sglang_wavepp.admission.hold import Hold, Shortage
from sglang_wavepp.admission.pools import positions
from sglang_wavepp.cache.ledger import LedgerError

pytestmark = pytest.mark.unit

KINDS = [(1, False), (16, False), (64, False), (1, True), (16, True), (64, True)]
ids = [f"{'hybrid' if hybrid else 'dense'} page {page}" for page, hybrid in KINDS]


def rank_of(page: int, hybrid: bool, *, pages: int = 32, slots: int = 24, **more: Any) -> RealRank:
    return RealRank(page=page, tokens=page * pages, slots=slots if hybrid else None, **more)


def text(seed: int, length: int) -> array[int]:
    return array("q", (random.Random(seed).randrange(1000) for _ in range(length)))


@pytest.mark.parametrize(("page", "hybrid"), KINDS, ids=ids)
def test_the_walk_finds_whole_pages_within_the_limit_and_pins_nothing(page: int, hybrid: bool) -> None:
    rank = rank_of(page, hybrid)
    tokens = text(1, 10 * page)
    assert rank.admission.hint(record("a", tokens)).endpoint == 0
    rank.compute(tokens, tuple(range(page, 10 * page + 1, page)))
    longer = tokens + text(2, 2 * page)
    assert rank.admission.hint(record("a", longer)).endpoint == 10 * page
    assert rank.admission.hint(record("a", tokens)).endpoint == 9 * page, "one token is always computed"
    assert rank.admission.hint(record("a", longer, limit=7 * page - 1)).endpoint == 6 * page
    assert rank.admission.hint(record("a", longer, limit=0)).endpoint == 0
    assert rank.admission.hint(record("a", tokens, limit=10 * page)).endpoint == 9 * page, (
        "whatever the record allows"
    )
    assert rank.admission.hint(record("a", longer, salt="another tenant")).endpoint == 0
    rank.check_drained()


@pytest.mark.parametrize(("page", "hybrid"), KINDS, ids=ids)
def test_a_lease_keeps_its_prefix_and_nothing_else(page: int, hybrid: bool) -> None:
    rank = rank_of(page, hybrid)
    tokens = text(1, 10 * page)
    rank.compute(tokens, tuple(range(page, 10 * page + 1, page)))
    request = record("a", tokens + text(2, page))
    assert rank.admission.hold(request, 6 * page) == Hold(6 * page)
    assert rank.cache.protected_size() == 6 * page
    rank.evict_all()
    assert rank.admission.hint(request).endpoint == 6 * page
    rank.check()
    rank.admission.release("a")
    rank.admission.release("a")
    rank.check_drained()
    rank.evict_all()
    assert rank.admission.hint(request).endpoint == 0


@pytest.mark.parametrize("page", [16, 64])
def test_a_hybrid_resumes_at_snapshots_only(page: int) -> None:
    rank = rank_of(page, True)
    tokens = text(1, 10 * page)
    rank.compute(tokens, (3 * page, 8 * page))
    request = record("a", tokens)
    assert rank.admission.hint(request).endpoint == 8 * page
    assert rank.admission.hold(request, 7 * page) == Hold(3 * page)
    rank.admission.release("a")
    assert rank.admission.hold(request, 2 * page) == Hold(0)
    rank.admission.release("a")
    rank.check_drained()


def test_a_snapshot_off_the_grid_is_never_an_endpoint() -> None:
    rank = rank_of(16, True, grid=64)
    tokens = text(1, 320)
    rank.compute(tokens, (128, 208, 240))
    assert rank.admission.hint(record("a", tokens)).endpoint == 128
    with pytest.raises(ValueError, match="multiple of the page size 16"):
        rank_of(16, True, grid=24)


@pytest.mark.parametrize(("page", "hybrid"), KINDS, ids=ids)
def test_a_hold_that_fails_changes_nothing(page: int, hybrid: bool) -> None:
    rank = rank_of(page, hybrid, rows=2, slots=9)
    tokens = text(1, 10 * page)
    rank.compute(tokens, tuple(range(page, 10 * page + 1, page)))
    assert rank.admission.hold(record("a", tokens), 4 * page) == Hold(4 * page)
    seen = (rank.cache.protected_size(), rank.allocator.available_size(), rank.admission.held)
    big = record("b", text(3, 23 * page))
    assert rank.admission.hold(big, 0) is Shortage.TOKENS, "32 pages, 10 of them promised to a"
    if hybrid:
        other = record("b", tokens)
        assert rank.admission.hold(other, 5 * page) is Shortage.SLOTS, (
            "two requests of 4 slots and two snapshots"
        )
        assert rank.admission.hold(other, 4 * page) == Hold(4 * page), "the same snapshot is paid for"
        rank.admission.release("b")
    assert (rank.cache.protected_size(), rank.allocator.available_size(), rank.admission.held) == seen
    assert rank.admission.hold(record("b", text(4, page)), 0) == Hold(0)
    assert rank.admission.hold(record("c", text(5, page)), 0) is Shortage.ROWS
    rank.admission.release("a")
    rank.admission.release("b")
    rank.check_drained()


def test_the_lease_itself_counts_against_what_can_be_evicted() -> None:
    rank = rank_of(16, False, pages=8)
    tokens = text(1, 4 * 16)
    rank.compute(tokens, (64,))
    assert rank.admission.hold(record("x", text(7, 16 * 2)), 0) == Hold(0)
    longer = tokens + text(2, 16 * 3)
    # 8 pages: 2 promised, 4 pinned by the lease itself, so 2 are left for the 3 that the suffix needs.
    assert rank.admission.hold(record("a", longer), 64) is Shortage.TOKENS
    rank.admission.release("x")
    assert rank.admission.hold(record("a", longer), 64) == Hold(64)
    rank.admission.release("a")
    rank.check_drained()


def test_alone_a_request_gives_up_reuse_rather_than_waiting_for_nothing() -> None:
    rank = rank_of(16, True, slots=4)
    tokens = text(1, 16 * 4)
    rank.compute(tokens, (32, 64))
    request = record("a", tokens)
    assert rank.admission.hint(request).endpoint == 32
    # Its 4 slots and a pinned snapshot are 5, and nobody else is here to give one back.
    assert rank.admission.hold(request, 32) == Hold(0)
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
    assert rank.admission.hold(first, 48) == Hold(48)
    assert rank.admission.hold(second, 32) is Shortage.SLOTS, "8 slots and two leased snapshots are 10"
    run = rank.start(first, 48)
    assert rank.admission.hold(second, 32) == Hold(32), "8 and one"
    other = rank.start(second, 32)
    for step, end in ((run, 64), (other, 48), (other, 64)):
        rank.span(step, end)
        rank.check()
    rank.finish(run)
    rank.finish(other)
    rank.check_drained()


@pytest.mark.parametrize(("page", "hybrid"), KINDS, ids=ids)
def test_the_reservation_outlives_the_lease_until_the_end(page: int, hybrid: bool) -> None:
    rank = rank_of(page, hybrid)
    tokens = text(1, 10 * page)
    rank.compute(tokens, (4 * page, 8 * page))
    request = record("a", tokens, output=3 * page)
    rank.admission.hold(request, 8 * page)
    run = rank.start(request, 8 * page)
    with pytest.raises(LedgerError, match="no lease"):
        rank.admission.take("a")
    assert rank.cache.protected_size() == 8 * page
    total = positions(prompt=10 * page, max_new_tokens=3 * page)
    other = record("b", text(9, 32 * page - rank.limits.paged(total) + page))
    assert rank.admission.hold(other, 0) is Shortage.TOKENS, "a may still draw all that it was promised"
    for end in (9 * page, 10 * page, total):
        rank.span(run, end)
        rank.check()
    with pytest.raises(LedgerError, match="draws up to"):
        rank.admission.draw("a", rank.limits.paged(total) + 1)
    rank.finish(run)
    with pytest.raises(LedgerError, match="no promise"):
        rank.admission.end("a")
    rank.check_drained()


def test_an_end_before_the_first_span_ends_lease_and_reservation() -> None:
    rank = rank_of(16, True)
    rank.compute(text(1, 64), (64,))
    rank.admission.hold(record("a", text(1, 80)), 64)
    with pytest.raises(LedgerError, match="held already"):
        rank.admission.hold(record("a", text(1, 80)), 64)
    with pytest.raises(LedgerError, match="1 leases"):
        rank.admission.check_idle()
    rank.admission.end("a")
    rank.check_drained()


def test_releases_tell_of_all_room_that_comes_back() -> None:
    rank = rank_of(16, False, pages=8)
    seen = rank.admission.releases
    assert rank.admission.releases == seen, "nothing happened"
    rank.admission.hold(record("a", text(1, 32)), 0)
    assert rank.admission.releases == seen
    rank.admission.release("a")
    assert rank.admission.releases > seen
    # Pages that somebody holds outside of any promise, as SGLang's deferred frees do for a moment.
    pages = rank.allocator.alloc(64)
    rank.admission.hold(record("a", text(1, 16)), 0)
    seen = rank.admission.releases
    assert rank.admission.hold(record("b", text(2, 80)), 0) is Shortage.TOKENS
    rank.allocator.free(pages)
    assert rank.admission.releases > seen, "who was told that there is no room must hear that there is"
    seen = rank.admission.releases
    pages = rank.allocator.alloc(64)
    assert rank.admission.hold(record("b", text(2, 80)), 0) is Shortage.TOKENS
    rank.allocator.free(pages)
    assert rank.admission.releases > seen, "also when the level is the same at both readings"
    rank.admission.release("a")


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
    request = record("a", tokens)
    with Watch() as watch:
        _ = rank.admission.hint(request)
        assert rank.admission.hold(request, 80) == Hold(80)
        _ = rank.admission.releases
        rank.admission.check()
        rank.admission.hand_over("a")
        rank.admission.draw("a", 100)
        rank.admission.end("a")
    assert watch.seen <= views, f"work on the device: {watch.seen - views}"


def histories(rank: RealRank, seed: int, steps: int) -> int:
    """Requests that come, wait, run, decode and end in any order, on one rank."""
    rng = random.Random(seed)
    page = rank.page
    roots = [text(seed * 100 + n, 12 * page) for n in range(3)]
    running: list[Running] = []
    leased: list[tuple[Any, int]] = []
    made = 0
    for _ in range(steps):
        action = rng.random()
        if action < 0.35:
            root = rng.choice(roots)
            tokens = root[: rng.randint(1, 12 * page)] + text(
                rng.randrange(1 << 30), rng.randint(0, 3 * page)
            )
            request = record(f"r{made}", tokens, output=rng.randint(1, page + 2))
            made += 1
            hint = rank.admission.hint(request).endpoint
            held = rank.admission.hold(request, rng.choice((hint, hint, rng.randint(0, hint))))
            if isinstance(held, Hold):
                assert held.endpoint % page == 0
                assert held.endpoint < len(tokens)
                leased.append((request, held.endpoint))
            else:
                rank.admission.forget(request.rid)
        elif action < 0.45 and leased:
            rid = leased.pop(rng.randrange(len(leased)))[0].rid
            rank.admission.release(rid)
            rank.admission.forget(rid)
        elif action < 0.65 and leased:
            running.append(rank.start(*leased.pop(rng.randrange(len(leased)))))
        elif running:
            run = rng.choice(running)
            total = positions(prompt=len(run.record.token_ids), max_new_tokens=run.record.max_new_tokens)
            prompt = len(run.record.token_ids)
            if run.at >= total or rng.random() < 0.1:
                running.remove(run)
                rank.finish(run)
            elif run.at >= prompt:
                rank.span(run, run.at + 1)
            else:
                end = min((run.at // page + rng.randint(1, 3)) * page, prompt)
                rank.span(run, end)
        rank.check()
    for request, _ in leased:
        rank.admission.release(request.rid)
        rank.admission.forget(request.rid)
    for run in running:
        rank.finish(run)
    rank.check_drained()
    return made


@pytest.mark.parametrize(("page", "hybrid"), KINDS, ids=ids)
@pytest.mark.parametrize("core", ["rust", "python"])
def test_nobody_admitted_ever_runs_short(page: int, hybrid: bool, core: str) -> None:
    for seed in range(2):
        assert histories(rank_of(page, hybrid, slots=14, core=core), seed, 120) > 10


@pytest.mark.full
@pytest.mark.parametrize(("page", "hybrid"), KINDS, ids=ids)
def test_nobody_admitted_ever_runs_short_for_long(page: int, hybrid: bool) -> None:
    for seed in range(100, 140):
        histories(rank_of(page, hybrid, slots=random.Random(seed).randint(4, 20)), seed, 600)
