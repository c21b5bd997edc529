"""Random histories on real trees: index, order, holds and pools agree with the tree at every moment."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from model import faults
from unit.cache.indexed_tree import POLICIES, IndexedTree

from sglang_wavepp.cache.soft_holds import HoldError

pytestmark = pytest.mark.model

SALTS = (None, None, None, "a")


class History:
    """What requests and holders do to one tree; each operation takes its choices from `draw`."""

    def __init__(self, draw: Callable[[int], int], tree: IndexedTree, alphabet: int = 3) -> None:
        self.draw = draw
        self.tree = tree
        self.locks: list[Any] = []
        base = random.Random(7)
        length = max(48, tree.page * 4)
        self.bases = [[base.randrange(alphabet) for _ in range(length)] for _ in range(3)]
        self.alphabet = alphabet

    def prompt(self) -> tuple[list[int], str | None]:
        base = self.bases[self.draw(3)]
        page = self.tree.page
        shared = (1 + self.draw(len(base) // page)) * page
        own = self.draw(4) * page // (2 if self.draw(4) == 0 else 1)
        return base[:shared] + [self.draw(self.alphabet) for _ in range(own)], SALTS[self.draw(len(SALTS))]

    def insert(self) -> None:
        tokens, salt = self.prompt()
        self.tree.insert(tokens, salt=salt, priority=self.draw(3))

    def match(self) -> None:
        tokens, salt = self.prompt()
        self.tree.match(tokens, 1 + self.draw(len(tokens)), salt)

    def lock(self) -> None:
        tokens, salt = self.prompt()
        self.locks.append(self.tree.lock(tokens, 1 + self.draw(len(tokens)), salt))
        self.settle_claims()

    def unlock(self) -> None:
        if self.locks:
            self.tree.cache.unlock(self.locks.pop(self.draw(len(self.locks))))

    def evict(self) -> None:
        before, free = self.tree.book.freed, self.tree.free()
        held = sum(self.tree.book.held.values())
        self.tree.evict(1 + self.draw(40))
        assert (self.tree.book.freed, sum(self.tree.book.held.values())) == (before, held)
        assert self.tree.free() >= free

    def evict_aux(self) -> None:
        slots = self.draw(3) if self.tree.slots else 0
        window = self.draw(20) if self.tree.window else 0
        wanted: set[int] = set()
        if self.tree.waiting and not window:
            self.tree.see_snapshots()
            wanted, _ = self.tree.snapshots()
        self.tree.evict(0, slots=slots, window=window)
        if wanted:
            wanted_left, others_left = self.tree.snapshots()
            assert wanted_left == wanted or not others_left, "a wanted snapshot went before another"

    def wait(self) -> None:
        tokens, salt = self.prompt()
        self.tree.wait(f"r{len(self.tree.waiting)}-{self.draw(1000)}", tokens, salt)

    def wait_no_more(self) -> None:
        if self.tree.waiting:
            self.tree.wait_no_more(list(self.tree.waiting)[self.draw(len(self.tree.waiting))])

    def offload(self) -> None:
        """A node's tokens and those above it are copied to the host; a leaf may then leave the device."""
        tree = self.tree
        nodes = sorted((n for n in tree.nodes() if tree.host and not n.evicted), key=tree.path)
        if nodes:
            node = nodes[self.draw(len(nodes))]
            tree.copy_to_host(node)
            if self.draw(2) and node in tree.core.evictable_device_leaves:
                tree.cache._demote(node.id, dict.fromkeys(tree.cache.tree_components, 0))

    def evict_host(self) -> None:
        if self.tree.host and not self.draw(3):
            self.tree.evict_host(1 + self.draw(40))

    def hold(self) -> None:
        wanted = 1 + self.draw(40)
        for node_id, tokens in self.tree.core.candidates():
            some = min(tokens, wanted)
            self.tree.hold(node_id, some)
            wanted -= some
            if not wanted:
                break

    def hold_any(self) -> None:
        free = [
            n
            for n in self.tree.nodes()
            if not n.is_locked and n.device_tokens > self.tree.book.held.get(n.id, 0)
        ]
        if free:
            node = free[self.draw(len(free))]
            self.tree.hold(node.id, 1 + self.draw(node.device_tokens - self.tree.book.held.get(node.id, 0)))

    def unhold(self) -> None:
        if self.tree.book.held:
            node_id = list(self.tree.book.held)[self.draw(len(self.tree.book.held))]
            held = self.tree.book.held[node_id]
            self.tree.unhold(node_id, held if self.draw(2) else 1 + self.draw(held))

    def evict_node(self) -> None:
        free = [n for n in self.tree.nodes() if not n.is_locked]
        if free:
            node = free[self.draw(len(free))]
            before, tokens = self.tree.free(), node.device_tokens
            freed = self.tree.cache.evict_node(node.id)
            assert freed >= tokens and self.tree.free() == before + freed
            assert not self.tree.core.exists(node.id) or (self.tree.host and node.evicted)

    def reset(self) -> None:
        if self.draw(8):
            return
        tree = self.tree
        for lock in self.locks:
            tree.cache.unlock(lock)
        self.locks.clear()
        emptied = tree.book.emptied
        tree.cache.reset()
        tree.allocator.clear()
        if tree.slots:
            tree.rows.mamba_allocator.clear()
        assert tree.book.emptied == emptied + 1 and not tree.nodes()

    def settle_claims(self) -> None:
        """A holder that lets go of what was claimed: no held node is locked afterwards."""
        claims = self.tree.core.claims
        for node_id in claims:
            assert self.tree.core.is_locked(node_id)
            if node_id in self.tree.book.held:
                self.tree.unhold(node_id, self.tree.book.held[node_id])
        claims.clear()
        assert not any(self.tree.core.is_locked(node_id) for node_id in self.tree.book.held)

    def check(self) -> None:
        self.tree.check()
        self.tree.check_order()

    STEPS = (
        *("insert",) * 6,
        *("match", "lock", "lock", "unlock", "unlock", "evict", "evict_aux", "offload", "evict_host"),
        *("hold", "hold", "hold_any", "unhold", "unhold", "evict_node", "reset"),
        *("wait", "wait_no_more"),
    )


KINDS = {
    "dense page 1": {"page": 1, "block": 7},
    "dense page 4": {"page": 4, "block": 6},
    "dense page 16": {"page": 16, "tokens": 1024, "block": 64},
    "dense page 64": {"page": 64, "tokens": 4096, "block": 16},
    "dense page 4 with a host": {"page": 4, "block": 6, "host": True},
    "hybrid page 4 with a host": {"page": 4, "slots": 14, "block": 4, "host": True},
    "hybrid page 1": {"page": 1, "slots": 14, "block": 4},
    "hybrid page 4": {"page": 4, "slots": 14, "block": 8},
    "hybrid page 64": {"page": 64, "tokens": 4096, "slots": 14, "block": 64},
    "window page 1": {"page": 1, "window": 4, "block": 4},
    "window page 4": {"page": 4, "window": 8, "block": 4},
    "window and hybrid page 1": {"page": 1, "window": 8, "slots": 14, "block": 4},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [1, 2])
def test_random_histories(kind: str, seed: int) -> None:
    rng = random.Random(f"{kind} {seed}")
    policy = POLICIES[(seed + list(KINDS).index(kind)) % len(POLICIES)]
    history = History(rng.randrange, IndexedTree(policy=policy, **KINDS[kind]))
    for step in range(400):
        getattr(history, rng.choice(History.STEPS))()
        if step % 4 == 0:
            history.check()
    history.check()


def test_an_eviction_that_takes_what_is_held_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    faults.anybody_evicts_what_is_held(monkeypatch)
    with pytest.raises((AssertionError, HoldError)):
        test_random_histories("dense page 4", 1)


TWINS = ("insert",) * 6 + ("match", "lock", "unlock", "evict", "evict", "evict_aux", "offload", "evict_host")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_nodes_go_in_the_same_order_as_in_sglangs_tree(policy: str, kind: str) -> None:
    ours = History(random.Random(policy).randrange, IndexedTree(policy=policy, **KINDS[kind]))
    theirs = History(
        random.Random(policy).randrange, IndexedTree(policy=policy, core="python", **KINDS[kind])
    )
    choose = random.Random(kind)
    for _ in range(250):
        step = choose.choice(TWINS)
        if step == "evict":
            count = 1 + choose.randrange(60)
            ours.tree.evict(count)
            theirs.tree.evict(count)
        elif step == "lock":
            for twin in (ours, theirs):
                tokens, salt = twin.prompt()
                twin.locks.append(twin.tree.lock(tokens, None, salt))
        else:
            getattr(ours, step)()
            getattr(theirs, step)()
        assert ours.tree.gone == theirs.tree.gone
        assert ours.tree.free() == theirs.tree.free()
    assert ours.tree.contents() == theirs.tree.contents()
    assert len(ours.tree.gone) > 10


class Histories(RuleBasedStateMachine):
    """The same histories, chosen by Hypothesis, which shrinks one that fails."""

    history: History | None = None

    @initialize(kind=st.sampled_from(sorted(KINDS)), policy=st.sampled_from(POLICIES))
    def plant(self, kind: str, policy: str) -> None:
        self.history = History(lambda _: 0, IndexedTree(policy=policy, **KINDS[kind]))

    @rule(step=st.sampled_from(sorted(set(History.STEPS))), data=st.data())
    def step(self, step: str, data: st.DataObject) -> None:
        assert self.history is not None
        self.history.draw = lambda count: data.draw(st.integers(0, count - 1))
        getattr(self.history, step)()

    @invariant()
    def everything_agrees(self) -> None:
        if self.history is not None:
            self.history.check()


Histories.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
TestHistories = Histories.TestCase
