"""The hint index against counters and searches of the plainest form, on random prefix trees."""

from __future__ import annotations

from array import array
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sglang_wavepp.admission.block_counts import BlockCountError
from sglang_wavepp.admission.block_hash import ChainEnd, block_hashes, namespace_seed
from sglang_wavepp.admission.components import Component
from sglang_wavepp.admission.hint_index import HintIndex

pytestmark = pytest.mark.model

FULL, SWA, MAMBA = Component.FULL, Component.SWA, Component.MAMBA
BLOCK = 2
SEEDS = {salt: namespace_seed(extra_key=None, cache_salt=salt) for salt in ("", "other")}

Path = tuple[str, tuple[int, ...]]
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=7).map(tuple)
EXTRA = st.sets(st.sampled_from([SWA, MAMBA]))


class Node:
    """A piece of the tree: what was added for it, so that the same is removed."""

    def __init__(self, start: ChainEnd, tokens: tuple[int, ...]) -> None:
        self.start = start
        self.tokens = tokens
        self.hashes, self.end = start.extend(array("q", tokens))
        self.present: set[Component] = set()

    def keys(self, component: Component) -> list[int]:
        if component is not MAMBA:
            return self.hashes
        return [self.end.last] if self.end.on_grid and self.end.blocks else []


class IndexBesideCounters(RuleBasedStateMachine):
    """Nodes hang below others by the tokens up to them, so that FULL presence has no gaps, as in the tree.

    Two nodes may begin with the same tokens (as pages that differ late do), so the same block can count twice.
    """

    def __init__(self) -> None:
        super().__init__()
        self.index = HintIndex(Component)
        self.counts = {component: Counter[int]() for component in Component}
        self.nodes: dict[int, tuple[int | None, str, Node]] = {}
        self.names = iter(range(10**9))

    def choose(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.nodes)))

    def has_children(self, name: int) -> bool:
        return any(parent == name for parent, _, _ in self.nodes.values())

    def set_present(self, node: Node, component: Component, there: bool) -> None:
        keys = node.keys(component)
        if there and component not in node.present:
            node.present.add(component)
            self.index.add(component, keys)
            self.counts[component].update(keys)
        elif not there and component in node.present:
            node.present.discard(component)
            self.index.remove(component, keys)
            self.counts[component].subtract(keys)

    @rule(
        data=st.data(),
        salt=st.sampled_from(sorted(SEEDS)),
        tokens=TOKENS,
        extra=st.sets(st.sampled_from([SWA, MAMBA])),
    )
    def attach(self, data: st.DataObject, salt: str, tokens: tuple[int, ...], extra: set[Component]) -> None:
        parent = data.draw(st.sampled_from([None, *sorted(self.nodes)]))
        start = ChainEnd.start(block=BLOCK, seed=SEEDS[salt])
        if parent is not None:
            _, salt, above = self.nodes[parent]
            start = above.end
        node = Node(start, tokens)
        self.nodes[next(self.names)] = (parent, salt, node)
        for component in {FULL, *extra}:
            self.set_present(node, component, True)

    @precondition(lambda self: self.nodes)
    @rule(data=st.data(), component=st.sampled_from([SWA, MAMBA]), there=st.booleans())
    def tombstone_or_refill(self, data: st.DataObject, component: Component, there: bool) -> None:
        self.set_present(self.nodes[self.choose(data)][2], component, there)

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def detach_a_leaf(self, data: st.DataObject) -> None:
        name = data.draw(
            st.sampled_from([each for each in sorted(self.nodes) if not self.has_children(each)])
        )
        for component in Component:
            self.set_present(self.nodes[name][2], component, False)
        del self.nodes[name]

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def split(self, data: st.DataObject) -> None:
        """Changes no count: the blocks are only written to other nodes."""
        name = self.choose(data)
        parent, salt, node = self.nodes[name]
        if len(node.tokens) < 2:
            return
        cut = data.draw(st.integers(1, len(node.tokens) - 1))
        upper_hashes, lower_hashes, middle = node.start.split(node.hashes, array("q", node.tokens[:cut]))
        upper, lower = Node(node.start, node.tokens[:cut]), Node(middle, node.tokens[cut:])
        assert (upper.hashes, upper.end) == (upper_hashes, middle)
        assert (lower.hashes, lower.end) == (lower_hashes, node.end)
        upper.present, lower.present = node.present - {MAMBA}, node.present
        above = next(self.names)
        self.nodes[above] = (parent, salt, upper)
        self.nodes[name] = (above, salt, lower)

    @rule()
    def flush(self) -> None:
        self.index.clear()
        self.nodes.clear()
        for counts in self.counts.values():
            counts.clear()

    @rule(data=st.data(), component=st.sampled_from(Component), strange=st.integers(0, 2**64 - 1))
    def remove_what_is_not_there(self, data: st.DataObject, component: Component, strange: int) -> None:
        there = list((+self.counts[component]).elements())
        wrong = data.draw(st.sampled_from([[strange], [*there, strange], [*there, *there[-1:], *there[:1]]]))
        if len(wrong) <= len(there) or not Counter(wrong) - self.counts[component]:
            return
        with pytest.raises(BlockCountError, match="is there"):
            self.index.remove(component, wrong)

    @rule(data=st.data(), more=st.lists(st.integers(0, 1), max_size=6), limit=st.integers(0, 12))
    def ask(self, data: st.DataObject, more: list[int], limit: int) -> None:
        salt, tokens = data.draw(st.sampled_from(sorted(SEEDS))), more
        if self.nodes and data.draw(st.booleans()):
            name: int | None = self.choose(data)
            salt = self.nodes[name][1]  # type: ignore[index]
            while name is not None:
                name, _, node = self.nodes[name]
                tokens = [*node.tokens, *tokens]
        hashes = block_hashes(array("q", tokens), block=BLOCK, seed=SEEDS[salt])
        dense = self.index.dense_end(FULL, hashes, limit)
        assert dense == self.naive_dense_end(hashes, limit)
        for grid in (1, 2, 3):
            assert (
                self.index.snapshots(MAMBA, hashes, limit, 2, grid=grid)
                == tuple(
                    end
                    for end in range(min(limit, len(hashes)), 0, -1)
                    if end % grid == 0 and self.there(MAMBA, hashes, end)
                )[:2]
            )
            assert self.index.window_end(SWA, hashes, limit, 2, grid=grid) == max(
                end
                for end in range(0, min(limit, len(hashes)) + 1, grid)
                if all(self.there(SWA, hashes, each) for each in range(max(0, end - 2) + 1, end + 1))
            )

    def there(self, component: Component, hashes: list[int], end: int) -> bool:
        return self.counts[component][hashes[end - 1]] > 0

    def naive_dense_end(self, hashes: list[int], limit: int) -> int:
        end = 0
        while end < min(limit, len(hashes)) and self.there(FULL, hashes, end + 1):
            end += 1
        return end

    @invariant()
    def the_counts_agree(self) -> None:
        assert self.index.contents() == {
            component: {each: count for each, count in counts.items() if count}
            for component, counts in self.counts.items()
        }


TestHintIndex = IndexBesideCounters.TestCase
TestHintIndex.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
