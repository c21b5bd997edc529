"""What must hold on a rank after every step, and what is worth a look now and then."""

from __future__ import annotations

import torch
from model.real.rank import Job, Rank
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from sglang_wavepp.admission.pools import positions

FULL, MAMBA = ComponentType.FULL, ComponentType.MAMBA


def check_promises(rank: Rank) -> None:
    """Cheap, and without settling anything: what is seen here is what the next caller finds."""
    admission, book, core, deferred = (
        rank.admission,
        rank.admission.escrows,
        rank.pools.core,
        rank.pools.deferred(),
    )
    admission._ledger.check(rank.tree.available() + deferred)
    book.check()
    assert book.needs() == admission._ledger.undrawn(), "escrows are for something else than what is promised"
    if not deferred and not core.claims:
        assert not book.owed, f"{book.owed} promised tokens are backed by nothing"
    held = 0
    for node, holders in book.holders().items():
        shares = sum(holders.values())
        held += shares
        assert core.held_tokens(node) == shares <= core.device_tokens(node), (
            f"{holders} share {core.device_tokens(node)} tokens"
        )
        assert node in core.claims or not core.is_locked(node), f"a victim of {holders} is in use"
    assert len(core.holds.ids()) == book.victims
    assert book._credit <= rank.tree.free() + deferred, "two escrows count the same free places"
    _check_leases(rank)
    _check_entitlements(rank)


def _check_leases(rank: Rank) -> None:
    core = rank.pools.core
    for lease in rank.admission._leases.values():
        job = rank.jobs.get(lease.rid)
        assert job is None or not job.materialised
        node, depth = core._node_arena.get(lease.node), 0
        assert node is not None, f"the lease of {lease.rid} pins a node that is gone"
        if lease.endpoint and rank.world.slots is not None:
            state = node.component_data[MAMBA]
            assert state.value is not None and state.lock_ref, f"the snapshot of {lease.rid} isn't pinned"
        while node.parent is not None:
            data = node.component_data[FULL]
            assert data.lock_ref > 0 and data.value is not None, f"the prefix of {lease.rid} isn't pinned"
            depth += len(data.value)
            node = node.parent
        assert depth == lease.endpoint, f"{lease.rid} is leased {lease.endpoint} tokens, {depth} are pinned"


def _check_entitlements(rank: Rank) -> None:
    """What is promised, counted from the requests and leases themselves."""
    admission, limits = rank.admission, rank.limits
    for rid, undrawn in admission._ledger.undrawn().items():
        job = rank.jobs.get(rid)
        if job is None:
            continue  # the LOOP has not looked at its installation
        total = positions(prompt=job.prompt, max_new_tokens=job.record.max_new_tokens)
        if not job.materialised:
            has = admission._leases[rid].endpoint
        elif job.req.kv.holds_kv:
            has = limits.paged(job.req.kv.kv_allocated_len)
        else:
            continue  # released, and its promise ends next
        assert undrawn == max(limits.paged(total) - has, 0), f"{rid} has {has} of {total}, promised {undrawn}"
    assert admission.held <= limits.rows
    if limits.recurrent_slots is not None:
        pinned = {lease.node for lease in admission._leases.values() if lease.endpoint}
        assert admission._ledger._pinned.keys() == pinned, "snapshots that no lease pins are paid for"
        entitled = limits.slots_per_request * admission.held + len(pinned)
        assert entitled <= limits.recurrent_slots, (
            f"{admission.held} requests and {len(pinned)} pinned snapshots for {limits.recurrent_slots} slots"
        )


def owned_tokens(rank: Rank, job: Job) -> tuple[int, int]:
    """First and last position, in whole pages, of what a request has allocated and not published."""
    kv, page = job.req.kv, rank.world.page
    return kv.cache_protected_len, -(
        -kv.kv_allocated_len // page
    ) * page if kv.holds_kv else kv.cache_protected_len


def owned_slots(job: Job) -> list[int]:
    """Recurrent slots that a request holds itself."""
    kv = job.req.kv
    if not kv.holds_kv:
        return []  # not yet, or the tree has them
    slots = [] if kv.mamba_pool_idx is None else [int(kv.mamba_pool_idx)]
    if kv.mamba_ping_pong_track_buffer is not None:
        slots += [int(slot) for slot in kv.mamba_ping_pong_track_buffer if int(slot) >= 0]
    return slots


def check_pools(rank: Rank) -> None:
    """Every place is free, cached or owned, and only one of these; the index is that of a new count."""
    core, tokens, page = rank.pools.core, rank.pools.tokens, rank.world.page
    core.check_index()
    rank.cache.sanity_check()
    seen: list[torch.Tensor] = [tokens.free_pages]
    cached = 0
    for node in core._below_root():
        value = node.component_data[FULL].value
        if value is not None:
            cached += len(value)
            seen.append(value[::page] // page if page > 1 else value)
    owned = 0
    for job in rank.jobs.values():
        first, last = owned_tokens(rank, job)
        if last > first:
            owned += last - first
            row = rank.pools.rows.req_to_token[job.req.kv.req_pool_idx, first : job.req.kv.kv_allocated_len]
            seen.append(row[::page].to(torch.int64) // page)
    deferred = rank.pools.deferred()
    free = tokens.available_size()
    assert free + deferred + cached + owned == rank.limits.usable_tokens, (
        f"rank {rank.index}: {free} free, {deferred} soon, {cached} cached, {owned} owned"
        f" of {rank.limits.usable_tokens}"
    )
    assert cached == rank.cache.full_evictable_size() + rank.cache.full_protected_size()
    pages = torch.cat(seen)
    assert len(torch.unique(pages)) == len(pages), "a page has two owners"
    _check_slots(rank)
    _check_states(rank)


def _check_states(rank: Rank) -> None:
    """Who resumes from a snapshot finds the state of as many tokens as the tree says."""
    if rank.world.slots is None:
        return
    for node in rank.pools.core._below_root():
        state = node.component_data[MAMBA].value
        if state is not None:
            depth = len(node.key)
            above = node.parent
            while above.parent is not None:
                depth, above = depth + len(above.key), above.parent
            found = rank.seen(state)
            assert found == depth, f"rank {rank.index}: a snapshot at {depth} has seen {found} tokens"


def _check_slots(rank: Rank) -> None:
    if rank.world.slots is None:
        return
    free = rank.pools.slots.available_size()
    kept = rank.cache.mamba_evictable_size() + rank.cache.mamba_protected_size()
    owned = [slot for job in rank.jobs.values() for slot in owned_slots(job)]
    assert free + kept + len(owned) == rank.limits.recurrent_slots, (
        f"{free} free, {kept} cached, {owned} owned"
    )
    assert len(set(owned)) == len(owned)
    for job in rank.jobs.values():
        own = len(owned_slots(job)) + (job.req.lock is not None)
        assert own <= rank.world.slots_per_request, f"{job.record.rid} uses {own} slots"


def check_drained(rank: Rank) -> None:
    """Nothing is held."""
    check_pools(rank)
    rank.admission.check()
    rank.admission.check_idle()
    assert not rank.jobs and not rank.flights and rank.member.known == 0
    assert rank.admission.hashed == 0, "hashes of requests that have ended are kept"
    assert not rank.admission._reach
    assert rank.cache.full_protected_size() == 0
    assert rank.pools.rows.available_size() == rank.world.rows
    if rank.world.slots is not None:
        assert rank.cache.mamba_protected_size() == 0
        assert (
            rank.pools.slots.available_size() + rank.cache.mamba_evictable_size()
            == rank.limits.recurrent_slots
        )
