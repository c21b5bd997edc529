"""Escrows against a shelf of content that anybody may claim, evict or cut: what is promised is always backed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sglang_wavepp.cache.escrow import EscrowBook, EscrowError

pytestmark = pytest.mark.unit


@dataclass
class Content:
    tokens: int
    parent: str | None
    locks: int = 0
    held: int = 0


@dataclass
class Shelf:
    """Named content in the order in which it goes, leaf first and wanted last, in a pool of `places`."""

    places: int
    used: int = 0
    nodes: dict[str, Content] = field(default_factory=dict)
    claims: list[str] = field(default_factory=list)
    named: set[str] = field(default_factory=set)
    book: EscrowBook = field(init=False)
    deferred: int = 0

    def __post_init__(self) -> None:
        self.book = EscrowBook(self)  # type: ignore[arg-type]

    def put(self, name: str, tokens: int, parent: str | None = None) -> None:
        assert parent is None or not self.nodes[parent].held or self.nodes[parent].locks
        self.nodes[name] = Content(tokens, parent)

    def free(self) -> int:
        return self.places - self.used - self.deferred - sum(node.tokens for node in self.nodes.values())

    def evictable(self) -> int:
        return sum(node.tokens for node in self.nodes.values() if not node.locks)

    def path(self, name: str | None) -> list[str]:
        found = []
        while name is not None:
            found.append(name)
            name = self.nodes[name].parent
        return found

    def lock(self, name: str) -> None:
        for each in self.path(name):
            self.nodes[each].locks += 1
            if self.nodes[each].held and self.nodes[each].locks == 1:
                self.claims.append(each)

    def unlock(self, name: str) -> None:
        for each in self.path(name):
            self.nodes[each].locks -= 1

    def covered(self, name: str) -> bool:
        node = self.nodes[name]
        return node.held == node.tokens and all(
            self.covered(below) for below, other in self.nodes.items() if other.parent == name
        )

    def candidates(self, wanted: bool = True):
        while True:
            for name, node in sorted(self.nodes.items(), key=lambda item: item[0] in self.named):
                below = [other for other, each in self.nodes.items() if each.parent == name]
                if not wanted and name in self.named:
                    continue
                if node.locks or node.held == node.tokens or not all(map(self.covered, below)):
                    continue
                yield name, node.tokens - node.held
                break
            else:
                return

    def unwanted_candidates(self):
        return self.candidates(wanted=False)

    def hold(self, node: str, tokens: int) -> None:
        assert not self.nodes[node].locks
        self.nodes[node].held += tokens
        assert self.nodes[node].held <= self.nodes[node].tokens

    def unhold(self, node: str, tokens: int) -> None:
        self.nodes[node].held -= tokens
        assert self.nodes[node].held >= 0

    def evict(self, nodes: Sequence[str]) -> None:
        assert all(node in self.nodes for node in nodes)
        for node in nodes:
            if node in self.nodes:  # it may have gone with an earlier one
                self.evict([name for name, each in self.nodes.items() if each.parent == node])
                gone = self.nodes.pop(node)
                assert not gone.locks
                if gone.held:
                    self.book.removed(node, gone.held)

    def is_locked(self, node: str) -> bool:
        return self.nodes[node].locks > 0

    def wanted(self, nodes: Iterable[str]) -> list[str]:
        return [node for node in nodes if node in self.named]

    def take_claims(self) -> list[str]:
        claims, self.claims = self.claims, []
        return claims

    def cut(self, name: str, upper_tokens: int, upper: str) -> None:
        node = self.nodes[name]
        below = node.tokens - upper_tokens
        kept = min(node.held, below)
        self.nodes[upper] = Content(upper_tokens, node.parent, node.locks, node.held - kept)
        moved, node.held = node.held - kept, kept
        node.tokens, node.parent = below, upper
        if kept or moved:
            self.book.split(upper, moved, name, kept)


def test_free_places_come_before_victims_and_victims_in_their_order() -> None:
    shelf = Shelf(10)
    shelf.put("old", 3)
    shelf.put("new", 3)
    shelf.book.open("a", 6)
    assert shelf.book.holders() == {"old": {"a": 2}}
    shelf.book.open("b", 3)
    assert shelf.book.holders() == {"old": {"a": 2, "b": 1}, "new": {"b": 2}}
    shelf.book.check()


def test_a_victim_that_is_claimed_is_replaced() -> None:
    shelf = Shelf(6)
    shelf.put("old", 3)
    shelf.put("new", 3)
    shelf.book.open("a", 3)
    shelf.lock("old")
    shelf.book.settle()
    assert shelf.book.holders() == {"new": {"a": 3}}
    assert shelf.book.figures.substituted == 3
    shelf.book.draw("a", 2)
    assert set(shelf.nodes) == {"old"}, "the claimer keeps the content, the replacement went"


def test_a_claim_that_was_taken_back_changes_nothing() -> None:
    shelf = Shelf(6)
    shelf.put("old", 3)
    shelf.put("new", 3)
    shelf.book.open("a", 3)
    shelf.lock("old")
    shelf.unlock("old")
    shelf.book.settle()
    assert shelf.book.holders() == {"old": {"a": 3}}
    assert shelf.book.figures.substituted == 0


def test_what_was_freed_meanwhile_spares_a_victim() -> None:
    shelf = Shelf(8)
    shelf.used = 5
    shelf.put("old", 3)
    shelf.book.open("a", 3)
    assert shelf.book.holders() == {"old": {"a": 3}}
    shelf.used = 3
    shelf.book.draw("a", 2)
    assert (shelf.book.holders(), shelf.book.figures.spared) == ({"old": {"a": 1}}, 2)
    shelf.used += 2
    shelf.book.check()


def test_a_shared_victim_credits_everybody_for_their_part() -> None:
    shelf = Shelf(6)
    shelf.put("old", 6)
    shelf.book.open("a", 2)
    shelf.book.open("b", 3)
    shelf.book.draw("b", 1)
    shelf.used += 1
    assert not shelf.nodes
    assert shelf.free() == 5
    shelf.book.draw("a", 2)
    shelf.book.draw("b", 2)
    with pytest.raises(EscrowError, match="draws 1 tokens, 0 are left"):
        shelf.book.draw("a", 1)


def test_a_parent_goes_with_what_is_held_below_it() -> None:
    shelf = Shelf(6)
    shelf.put("root", 3)
    shelf.put("leaf", 3, "root")
    shelf.book.open("a", 3)
    shelf.book.open("b", 3)
    assert shelf.book.holders() == {"leaf": {"a": 3}, "root": {"b": 3}}
    shelf.book.draw("b", 3)
    shelf.used += 3
    assert not shelf.nodes
    shelf.book.draw("a", 3)


def test_a_victim_that_has_become_wanted_is_exchanged_before_it_goes() -> None:
    shelf = Shelf(12)
    for name in ("old", "middle", "new"):
        shelf.put(name, 4)
    shelf.book.open("a", 6)
    assert shelf.book.holders() == {"old": {"a": 4}, "middle": {"a": 2}}
    shelf.named = {"old"}
    shelf.book.draw("a", 2)
    assert list(shelf.nodes) == ["old", "new"], "its other victim goes first"
    assert shelf.book.holders() == {"old": {"a": 4}}
    shelf.used += 2
    shelf.book.draw("a", 4)
    assert list(shelf.nodes) == ["old"], "half of it was free, and the new is chosen for the other half"
    assert shelf.book.figures.exchanged == 2
    shelf.book.check()


def test_with_nothing_else_left_a_wanted_victim_goes() -> None:
    shelf = Shelf(8)
    shelf.put("old", 4)
    shelf.put("new", 4)
    shelf.book.open("a", 4)
    shelf.named = {"old", "new"}
    shelf.book.draw("a", 4)
    assert list(shelf.nodes) == ["new"]
    assert shelf.book.figures.exchanged == 0


def test_a_wanted_victim_is_exchanged_before_what_hangs_below_it() -> None:
    shelf = Shelf(9)
    shelf.put("stem", 3)
    shelf.put("leaf", 3, "stem")
    shelf.put("other", 3)
    shelf.book.open("a", 6)
    assert shelf.book.holders() == {"leaf": {"a": 3}, "stem": {"a": 3}}
    shelf.named = {"stem", "leaf"}
    shelf.book.draw("a", 3)
    # The other is chosen for the stem, and then none is left for the leaf.
    assert shelf.book.holders() == {"leaf": {"a": 3}}
    shelf.book.check()
    shelf.used += 3
    shelf.book.draw("a", 3)
    assert set(shelf.nodes) == {"stem"}


def test_a_cut_victim_stays_held_the_lower_part_first() -> None:
    shelf = Shelf(6)
    shelf.put("old", 6)
    shelf.book.open("a", 2)
    shelf.book.open("b", 3)
    shelf.cut("old", 4, "upper")
    assert shelf.book.holders() == {"old": {"a": 2}, "upper": {"b": 3}}
    shelf.book.check()
    with pytest.raises(EscrowError, match="not what is held"):
        shelf.book.split("more", 1, "upper", 1)


def test_what_frees_are_deferred_for_is_owed_until_they_come() -> None:
    shelf = Shelf(6)
    shelf.put("old", 3)
    shelf.used = 3
    shelf.book.open("a", 3)
    shelf.used, shelf.deferred = 0, 3
    shelf.lock("old")
    shelf.book.settle()
    assert (shelf.book.owed, shelf.book.victims) == (3, 0)
    shelf.book.check()
    shelf.deferred = 0
    shelf.book.settle()
    assert shelf.book.owed == 0
    shelf.book.draw("a", 3)


def test_running_short_is_an_error_that_names_the_request() -> None:
    shelf = Shelf(3)
    shelf.put("old", 3)
    shelf.book.open("a", 3)
    shelf.lock("old")
    with pytest.raises(EscrowError, match="request a runs short: 1 tokens"):
        shelf.book.draw("a", 1)


def test_what_is_not_there_is_named() -> None:
    book = Shelf(3).book
    for act in (book.close, lambda rid: book.draw(rid, 1)):
        with pytest.raises(EscrowError, match="request x has no escrow"):
            act("x")
    book.open("x", 1)
    with pytest.raises(EscrowError, match="request x has an escrow already"):
        book.open("x", 1)
    with pytest.raises(EscrowError, match="was emptied while"):
        book.cleared()


class AnyMoves(RuleBasedStateMachine):
    """The counter is kept here in the plainest way; whatever it allows, the book must back."""

    @initialize(places=st.integers(4, 30))
    def start(self, places: int) -> None:
        self.shelf = Shelf(places)
        self.need: dict[str, int] = {}
        self.locks: list[str] = []
        self.names = iter(f"n{n}" for n in range(10_000))
        self.rids = iter(f"r{n}" for n in range(10_000))

    def room(self) -> int:
        return self.shelf.free() + self.shelf.evictable() - sum(self.need.values())

    @rule(tokens=st.integers(1, 8))
    def open(self, tokens: int) -> None:
        if tokens <= self.room():
            rid = next(self.rids)
            self.need[rid] = tokens
            self.shelf.book.open(rid, tokens)

    @precondition(lambda self: self.need)
    @rule(data=st.data())
    def draw(self, data: st.DataObject) -> None:
        rid = data.draw(st.sampled_from(sorted(self.need)))
        if not self.need[rid]:
            return
        tokens = data.draw(st.integers(1, self.need[rid]))
        self.shelf.book.draw(rid, tokens)
        assert self.shelf.free() >= tokens, "the allocation that follows would have to evict"
        self.need[rid] -= tokens
        self.shelf.used += tokens

    @precondition(lambda self: self.need)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        rid = data.draw(st.sampled_from(sorted(self.need)))
        del self.need[rid]
        self.shelf.book.close(rid)

    @rule(data=st.data(), tokens=st.integers(1, 6))
    def publish(self, data: st.DataObject, tokens: int) -> None:
        """What somebody owned becomes content, under a parent that it has locked."""
        tokens = min(tokens, self.shelf.used)
        if tokens:
            self.shelf.used -= tokens
            parent = data.draw(st.sampled_from([None, *self.locks]))
            self.shelf.put(next(self.names), tokens, parent)

    @precondition(lambda self: self.shelf.nodes)
    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.shelf.nodes)))
        self.shelf.lock(name)
        if self.room() < 0:
            self.shelf.unlock(name)
            self.shelf.book.settle()
            return
        self.locks.append(name)
        self.shelf.book.settle()

    @precondition(lambda self: self.shelf.nodes)
    @rule(data=st.data())
    def want(self, data: st.DataObject) -> None:
        """Other requests wait than before."""
        self.shelf.named = data.draw(st.sets(st.sampled_from(sorted(self.shelf.nodes))))

    @precondition(lambda self: self.locks)
    @rule(data=st.data())
    def unclaim(self, data: st.DataObject) -> None:
        self.shelf.unlock(self.locks.pop(data.draw(st.integers(0, len(self.locks) - 1))))

    @precondition(lambda self: self.shelf.nodes)
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.shelf.nodes)))
        if self.shelf.nodes[name].tokens > 1:
            self.shelf.cut(
                name, data.draw(st.integers(1, self.shelf.nodes[name].tokens - 1)), next(self.names)
            )

    @precondition(lambda self: self.shelf.nodes)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        """Somebody who looks for another component's room takes a leaf, held or not."""
        parents = {node.parent for node in self.shelf.nodes.values()}
        leaves = [n for n, node in self.shelf.nodes.items() if not node.locks and n not in parents]
        if leaves:
            self.shelf.evict([data.draw(st.sampled_from(sorted(leaves)))])

    @invariant()
    def all_is_backed(self) -> None:
        if not hasattr(self, "shelf"):
            return
        book = self.shelf.book
        book.settle()
        book.check()
        assert book.needs() == self.need
        assert book.owed == 0
        held = {name: node.held for name, node in self.shelf.nodes.items() if node.held}
        assert held == {node: sum(holders.values()) for node, holders in book.holders().items()}
        assert not any(self.shelf.nodes[name].locks for name in held)
        assert self.shelf.free() >= sum(self.need.values()) - book.victim_tokens


TestAnyMoves = AnyMoves.TestCase
TestAnyMoves.settings = settings(
    max_examples=80,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
