"""The tree core on real pools: what the index holds, where hashes come from, and what an eviction does."""

from __future__ import annotations

import inspect
import random
from array import array
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache import tree_core_registry
from sglang.srt.mem_cache.unified_cache.components.full import FullComponent
from sglang.srt.mem_cache.unified_cache.components.mamba import MambaComponent
from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeCore
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from unit.cache.indexed_tree import BACKEND, FULL, MAMBA, IndexedTree

from sgl_patches import tree_core as patches
from sgl_patches.patch import Kind
from sglang_wavepp.admission.block_hash import block_hashes, namespace_seed
from sglang_wavepp.admission.components import Component
from sglang_wavepp.cache import guarded_cache
from sglang_wavepp.cache.guarded_cache import GUARDED, GuardedRadixCache, make_guarded_cache
from sglang_wavepp.cache.prefix_keys import NodeKey, PromptKey
from sglang_wavepp.cache.tree_components import IndexedFullComponent, IndexedMambaComponent
from sglang_wavepp.cache.tree_core import IndexedTreeCore, TreeIndexError
from sglang_wavepp.cache.victim_order import SLACK
from sglang_wavepp.settings.errors import SettingsError
from sglang_wavepp.settings.flags import WaveSettings
from sglang_wavepp.settings.of import attach

pytestmark = pytest.mark.unit


def chain(tokens: list[int], block: int = 4, salt: str | None = None) -> list[int]:
    return block_hashes(array("q", tokens), block=block, seed=namespace_seed(extra_key=salt, cache_salt=salt))


def numbers(seed: int, count: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1000) for _ in range(count)]


def counts(tree: IndexedTree, component: Component = Component.FULL) -> dict[int, int]:
    return dict(tree.core.index.contents()[component])


# --- index ------------------------------------------------------------------------------------------------


def test_the_index_holds_the_chain_of_each_prompt_in_its_namespace() -> None:
    tree = IndexedTree()
    tokens = numbers(1, 10)
    tree.insert(tokens)
    tree.insert(tokens, salt="other")
    assert counts(tree) == dict.fromkeys(chain(tokens) + chain(tokens, salt="other"), 1)
    tree.evict(1000)
    assert counts(tree) == {}


def test_a_block_that_two_pages_share_counts_twice() -> None:
    tree = IndexedTree(page=4, block=2)
    tree.insert([1, 2, 3, 4])
    tree.insert([1, 2, 5, 6])
    first = chain([1, 2, 3, 4], 2)
    assert counts(tree) == {first[0]: 2, first[1]: 1, chain([1, 2, 5, 6], 2)[1]: 1}
    tree.check()


def test_a_snapshot_has_a_name_only_where_a_block_ends() -> None:
    tree = IndexedTree(slots=8)
    tokens = numbers(1, 12)
    for end in (3, 8, 12):
        tree.insert(tokens[:end])
    ends = chain(tokens)
    assert counts(tree, Component.MAMBA) == {ends[1]: 1, ends[2]: 1}
    tree.evict(0, slots=2)
    assert counts(tree, Component.MAMBA) == {ends[2]: 1}
    tree.match(tokens[:10])
    tree.check()


def test_another_block_size_hashes_what_is_there_anew() -> None:
    tree = IndexedTree(block=4)
    tokens = numbers(1, 20)
    tree.insert(tokens)
    tree.match(tokens[:7])
    tree.core.use_block(5)
    assert counts(tree) == dict.fromkeys(chain(tokens, 5), 1)
    tree.check()
    with pytest.raises(ValueError, match="at least 1 token"):
        tree.core.use_block(0)


def test_a_difference_between_tree_and_index_is_found() -> None:
    tree = IndexedTree()
    tree.insert(numbers(1, 8))
    tree.core.index.add(Component.FULL, [1])
    with pytest.raises(TreeIndexError, match="index of full: 0 blocks missing, 1 too many, 2 in the tree"):
        tree.core.check_index()
    tree.core.index.remove(Component.FULL, [1])
    (node,) = tree.nodes()
    node.blocks = node.blocks[:1]
    with pytest.raises(TreeIndexError, match=f"node {node.id} has 1 hashes"):
        tree.core.check_index()


@pytest.mark.parametrize("write_back", [False, True])
@pytest.mark.parametrize("slots", [None, 8])
def test_content_that_moves_to_the_host_and_back_changes_nothing(write_back: bool, slots: int | None) -> None:
    tree = IndexedTree(page=8, tokens=800, slots=slots, block=4)
    core = tree.core
    core.set_hicache_enabled()
    core.is_write_back = write_back
    prompts = [numbers(seed, 160) for seed in range(4)]
    for tokens in prompts:
        tree.insert(tokens)
    before = core.index.contents()
    for tokens in prompts[:2]:
        node = core.node_by_id(tree.match(tokens).last_device_node)
        for data in node.component_data:
            if data.value is not None:
                data.host_value = data.value.clone()
        core._update_duplicate_tracking(node)
        core.check_index()
        moved = core.demote(node.id)
        tree.cache._drain_device_frees(moved.device_frees)
        core.check_index()
    assert core.index.contents() == before
    assert tree.free() == 800 - 2 * 160
    found = tree.match(prompts[0])
    assert (found.device_prefix_len, found.host_hit_length) == (0, 160)
    tree.insert(prompts[0])
    core.check_index()
    assert core.index.contents() == before
    gone = core.drive_host_eviction(FULL, 10**6)
    gone.host_frees.clear()
    tree.cache._drain_device_frees(gone.device_frees)
    core.check_index()
    left = [block for tokens in (prompts[0], *prompts[2:]) for block in chain(tokens)]
    assert counts(tree) == dict.fromkeys(left, 1)


def test_what_comes_from_the_host_is_in_the_index() -> None:
    tree = IndexedTree(page=4)
    tree.core.set_hicache_enabled()
    tokens = numbers(1, 16)
    tree.insert(tokens[:4])
    root, value = tree.core.root_node.id, torch.arange(16)
    tree.core.insert_host(root, tree.key(tokens), value, ["h"] * 4)
    assert counts(tree) == dict.fromkeys(chain(tokens), 1)
    tree.core.check_index()
    tree.core.reset()
    root = tree.core.root_node.id
    tree.core.insert_host(root, tree.key(tokens[4:8]), value[4:8], ["h"])
    tree.core.insert_host(root, tree.key(tokens[:8]), value[:8], ["h"] * 2)
    done = tree.core.insert_host(root, tree.key(tokens), value, ["h"] * 4)
    assert counts(tree) == dict.fromkeys(chain(tokens) + chain(tokens[4:8]), 1)
    tree.core.check_index()
    assert done.inserted_host_node is not None
    tree.match(tokens[:12])
    tree.core.check_index()
    assert tree.candidates() == [], "what is only on the host frees nothing"
    tree.insert(tokens)
    assert len(tree.candidates()) == 1
    tree.core.check_index()


# --- hashes of a known chain ------------------------------------------------------------------------------


def test_hashes_are_taken_from_the_chain_of_the_request_that_is_published() -> None:
    tree = IndexedTree()
    tokens = numbers(1, 40)
    known = chain(tokens)
    known[1] ^= 1  # could not be computed from the tokens, and is not next to where a piece ends
    for end, taken in ((22, 5), (40, 10)):
        tree.core.publishing = known
        tree.insert(tokens[:end])
        tree.core.publishing = None
        assert counts(tree) == dict.fromkeys(known[:taken], 1)


def test_a_chain_that_ends_early_is_continued() -> None:
    tree = IndexedTree()
    tokens = numbers(1, 40)
    tree.core.publishing = chain(tokens)[:4]
    tree.insert(tokens)
    assert counts(tree) == dict.fromkeys(chain(tokens), 1)


def test_the_chain_of_another_request_is_not_believed() -> None:
    tree = IndexedTree()
    tokens = numbers(1, 40)
    tree.core.publishing = chain(numbers(2, 40))
    tree.insert(tokens)
    tree.core.check_index()
    tree.core.publishing = chain(tokens, salt="other")
    tree.insert(tokens[:20] + numbers(3, 20))
    tree.core.check_index()


def test_a_checkpoint_publishes_under_the_chain_of_its_request() -> None:
    tree = IndexedTree()
    seen: list[Any] = []

    def theirs(self: Any, req: Any, *, up_to: int, **kwargs: Any) -> None:
        seen.append((self.tree_core.publishing, req, up_to, kwargs))
        if up_to == 3:
            raise KeyError

    with mock.patch.object(UnifiedRadixCache, "checkpoint_into_tree", theirs):
        bare, known = SimpleNamespace(), SimpleNamespace(wavepp_chain=[1, 2])
        tree.cache.checkpoint_into_tree(bare, up_to=1)
        tree.cache.checkpoint_into_tree(known, up_to=2, more=5)
        with pytest.raises(KeyError):
            tree.cache.checkpoint_into_tree(known, up_to=3)
    assert seen == [(None, bare, 1, {}), ([1, 2], known, 2, {"more": 5}), ([1, 2], known, 3, {})]
    assert tree.core.publishing is None


# --- eviction ---------------------------------------------------------------------------------------------


def forest(core: str = BACKEND, leaves: int = 20, **options: Any) -> IndexedTree:
    tree = IndexedTree(page=4, tokens=4 * leaves + 40, core=core, **options)
    for leaf in range(leaves):
        tree.insert([leaf] * 4)
    return tree


def frees(tree: IndexedTree) -> Any:
    return mock.patch.object(tree.allocator, "free_segment", wraps=tree.allocator.free_segment)


def test_an_eviction_frees_its_victims_together() -> None:
    tree = forest()
    with frees(tree) as free:
        assert tree.evict(30) == 32
    assert free.call_count == 1
    tree.check()
    with frees(tree) as free:
        tree.cache.evict_for_alloc(EvictParams(num_tokens=13))
    assert free.call_count == 1
    assert len(tree.gone) == 8 + 4
    tree.check()


def test_whoever_asks_in_between_is_asked_after_each_victim() -> None:
    twins = forest(), forest("python")
    asked: list[list[int]] = [[], []]
    for tree, log in zip(twins, asked, strict=True):

        def enough(tree: IndexedTree = tree, log: list[int] = log) -> bool:
            log.append(tree.free())
            return len(log) == 5

        tree.cache.evict_for_alloc(EvictParams(num_tokens=50), allocation_reclaim_satisfied=enough)
    assert asked[0] == asked[1] == [40, 44, 48, 52, 56]
    assert twins[0].gone == twins[1].gone


def test_an_allocator_that_frees_later_is_served_as_by_sglang() -> None:
    twins = forest(), forest("python")
    for tree in twins:
        tree.allocator.free_group_begin()
        tree.cache.evict_for_alloc(EvictParams(num_tokens=10))
        tree.allocator.free_group_end()
    assert twins[0].gone == twins[1].gone
    assert twins[0].free() == twins[1].free()


def test_after_what_was_asked_for_one_leaf_goes_at_a_time() -> None:
    twins = forest(), forest("python")
    for tree in twins:
        before = tree.free()

        def hides_the_first_eight(component: Any, tree: IndexedTree = tree, before: int = before) -> int:
            return tree.free() - min(8, tree.free() - before)

        with mock.patch.object(tree.cache, "_component_available_size", hides_the_first_eight):
            tree.cache.evict_for_alloc(EvictParams(num_tokens=20))
        assert len(tree.gone) == 7
    assert twins[0].gone == twins[1].gone


def test_leaves_with_a_copy_on_the_host_leave_the_device_in_their_turn() -> None:
    twins = forest(), forest("python")
    for tree in twins:
        for node in sorted(tree.nodes(), key=lambda n: n.id)[1:8:2]:
            node.component_data[0].host_value = node.component_data[0].value.clone()
        tree.evict(18)
        left = {tree.path(n) for n in tree.nodes() if n.component_data[0].value is not None}
        assert len(left) == 15
    assert twins[0].contents() == twins[1].contents()
    assert twins[0].free() == twins[1].free()
    twins[0].core.check_index()


def test_one_call_does_not_look_at_every_leaf() -> None:
    tree = forest(leaves=500)
    with mock.patch.object(tree.core.order, "_key", wraps=tree.core.order._key) as key:
        tree.evict(40)
        assert key.call_count <= 20
    assert len(tree.gone) == 10


def test_nodes_that_leave_by_other_ways_leave_nothing_behind_in_the_order() -> None:
    tree = forest()
    for _ in range(40):
        tree.cache.evict_nodes([node.id for node in tree.nodes()])
        for leaf in range(20):
            tree.insert([leaf] * 4)
    assert len(tree.core.order) <= 25 + SLACK


# --- building it ------------------------------------------------------------------------------------------


def test_options_that_index_and_order_do_not_follow_are_refused() -> None:
    for option, says in (("enable_session_radix_cache", "session"), ("is_eagle", "EAGLE")):
        given = SimpleNamespace(enable_session_radix_cache=False, is_eagle=False)
        setattr(given, option, True)
        with pytest.raises(ValueError, match=says):
            IndexedTreeCore(given, {FULL: None})  # type: ignore[arg-type,dict-item]


def test_the_core_is_registered_once_and_nobody_elses_is_taken_for_it() -> None:
    with mock.patch.dict(tree_core_registry._TREE_CORE_REGISTRY):
        tree_core_registry._TREE_CORE_REGISTRY.pop(BACKEND, None)
        assert not patches.is_registered()
        patches.install()
        patches.install()
        assert patches.is_registered()
        tree_core_registry._TREE_CORE_REGISTRY[BACKEND] = lambda params, components: None
        with pytest.raises(SettingsError, match="another plugin"):
            patches.install()


def context(admission: str | None) -> tuple[Any, IndexedTree]:
    tree = IndexedTree(core="python")
    params = SimpleNamespace(tree_core_backend=None, component_registry_override={"other": 1})
    args = SimpleNamespace()
    attach(args, None if admission is None else WaveSettings(admission=admission, hint_block_size=32))
    made = SimpleNamespace(
        is_hybrid_swa=False, enable_hierarchical_cache=False, server_args=args, params=params
    )
    return made, tree


@pytest.mark.parametrize("admission", [None, "two-walk", "inline"])
def test_other_kinds_of_admission_keep_sglangs_core(admission: str | None) -> None:
    ctx, tree = context(admission)
    with mock.patch.object(guarded_cache, "create_unified_radix_cache", return_value=tree.cache):
        assert make_guarded_cache(ctx) is tree.cache
    assert ctx.params == SimpleNamespace(tree_core_backend=None, component_registry_override={"other": 1})


def test_leases_get_the_indexed_core_with_the_block_size_of_the_flag() -> None:
    ctx, _ = context("lease")
    made = IndexedTree().cache
    with mock.patch.object(guarded_cache, "create_unified_radix_cache", return_value=made):
        assert make_guarded_cache(ctx) is made
    assert ctx.params.tree_core_backend == BACKEND
    ours = {FULL: IndexedFullComponent, MAMBA: IndexedMambaComponent}
    assert ctx.params.component_registry_override == {"other": 1, **ours}
    assert made.tree_core.block == 32


def test_every_override_is_in_the_ledger() -> None:
    listed = {p.target for p in patches.PATCHES if p.kind is Kind.OVERRIDE}
    pairs = (
        (IndexedTreeCore, UnifiedTreeCore),
        (IndexedFullComponent, FullComponent),
        (IndexedMambaComponent, MambaComponent),
        (NodeKey, RadixKey),
        (PromptKey, RadixKey),
    )
    found = {
        f"{getattr(theirs, name).__module__}.{getattr(theirs, name).__qualname__}"
        for ours, theirs in pairs
        for name, member in vars(ours).items()
        if inspect.isfunction(member) and hasattr(theirs, name)
    }
    found |= {
        f"{UnifiedRadixCache.__module__}.UnifiedRadixCache.{name}"
        for name, member in vars(GuardedRadixCache).items()
        if inspect.isfunction(member)
        and hasattr(UnifiedRadixCache, name)
        and name not in GUARDED
        and not name.startswith("__")
    }
    assert found == listed
