"""The prefix tree's core: registered beside SGLang's own, and what it overrides and relies on.

Nothing of SGLang's changes for caches that use another core.
"""

from __future__ import annotations

from sgl_patches.patch import Kind, NeededBy, Patch
from sglang_wavepp.settings.errors import SettingsError

MEM_CACHE = "sglang.srt.mem_cache"
CORE = f"{MEM_CACHE}.unified_cache.unified_tree_core.UnifiedTreeCore"
FULL = f"{MEM_CACHE}.unified_cache.components.full.FullComponent"
MAMBA = f"{MEM_CACHE}.unified_cache.components.mamba.MambaComponent"
CACHE = f"{MEM_CACHE}.unified_radix_cache.UnifiedRadixCache"
KEY = f"{MEM_CACHE}.radix_cache.RadixKey"


def _entry(kind: Kind, target: str, why: str, breaks_without: str, fingerprint: str) -> Patch:
    return Patch(
        target=target,
        kind=kind,
        why=why,
        breaks_without=breaks_without,
        fingerprint=fingerprint,
        needed_by=NeededBy.WAVEPP,
    )


def _override(target: str, why: str, breaks_without: str, fingerprint: str) -> Patch:
    return _entry(Kind.OVERRIDE, target, why, breaks_without, fingerprint)


def _relied_on(target: str, why: str, breaks_without: str, fingerprint: str) -> Patch:
    return _entry(Kind.CALLED, target, why, breaks_without, fingerprint)


GHOST = "the hint index counts blocks that are gone, or misses some, for ever"
ORDER = "other content is evicted than SGLang would evict"
TAKEN = "content that backs an admitted request's room is taken by somebody else"

PATCHES = (
    _entry(
        Kind.REGISTER,
        f"{MEM_CACHE}.unified_cache.tree_core_registry.register_tree_core_backend",
        "names the indexed tree core, so that the guarded cache can be built on it",
        "leases have no hint index and no victims",
        "1a2b12ab5450afab",
    ),
    _entry(
        Kind.CALLED,
        f"{MEM_CACHE}.unified_cache.components.base.ComponentData",
        "a value tells the core when it comes or goes, whoever sets it",
        GHOST,
        "fbbb5b1a9e1ae8d9",
    ),
    _entry(
        Kind.CALLED,
        f"{MEM_CACHE}.unified_cache.unified_tree_core.UnifiedTreeNode",
        "keeps on each node the hashes of its blocks and what of it is held",
        GHOST,
        "306c3acb677b3a2d",
    ),
    _override(
        f"{CORE}.__init__",
        "makes index, order and holds before the tree that feeds them",
        GHOST,
        "b2609846b47a2dc2",
    ),
    _override(
        f"{CORE}.reset", "an empty tree has an empty index, order and no holds", GHOST, "ff34b50c924f41b0"
    ),
    _override(
        f"{CORE}._new_node", "every node is one that tells what happens to it", GHOST, "49b74c67d7cb151d"
    ),
    _override(
        f"{CORE}._split_node", "divides hashes and holds as the tokens are divided", GHOST, "a5a38d0886d762c1"
    ),
    _override(
        f"{CORE}._remove_leaf_from_parent",
        "the one way out of the tree: what left it is neither counted nor held",
        GHOST,
        "02f0146519638c38",
    ),
    _override(
        f"{CORE}._update_evictable_leaf_sets",
        "a node that has become evictable takes its place in the order of victims",
        ORDER,
        "e39580e5f577276e",
    ),
    _override(
        f"{CORE}._match_post_processor",
        "matched nodes change their place in the order",
        ORDER,
        "5e4e073d42c5e927",
    ),
    _override(
        f"{CORE}._touch_node", "touched nodes change their place in the order", ORDER, "88ac08cf8c7a60bd"
    ),
    _override(
        f"{CORE}.inc_lock_ref",
        "a lock on a held node is a claim, which its holder must replace",
        TAKEN,
        "bbe9a92cb4a2073f",
    ),
    _override(
        f"{CORE}.inc_full_pin",
        "a pin on a held node is a claim, which its holder must replace",
        TAKEN,
        "9bfc05d3ac6a3578",
    ),
    _override(
        f"{MAMBA}._evict_device_start",
        "takes snapshots that a waiting request names for used just now, before the least recently used go",
        "a request that waits for its turn finds that its snapshot has gone",
        "ff967d2bd2d20181",
    ),
    _override(
        f"{FULL}._evict_device_start",
        "starts at the head of the order instead of sorting all leaves",
        ORDER,
        "2bff4733a43a6963",
    ),
    _override(
        f"{FULL}._evict_device_next_node",
        "takes the next victim from the order, skips held ones, and many at once when it may",
        TAKEN,
        "b8b03dce6825e665",
    ),
    _override(
        f"{FULL}._evict_device_end", "ends the walk of the order of victims", ORDER, "7edc6f4fb9a3f16f"
    ),
    _override(
        f"{FULL}.apply_component_action",
        "frees the pages of many victims together",
        "freeing victim by victim takes most of the time of an eviction",
        "ee00bd6bbbc825b2",
    ),
    _override(
        f"{CACHE}._evict",
        "tells the core how much an eviction must free before anybody looks again",
        "evictions free victim by victim",
        "ac76c1a28af96770",
    ),
    _override(
        f"{CACHE}.checkpoint_into_tree",
        "new nodes take the hashes that were computed when the request came",
        "the tokens of a request are hashed again each time they are published",
        "7aa223fdc9ddcefb",
    ),
    _override(
        f"{KEY}.__init__",
        "a prompt that is looked for remembers what it was compared with",
        "tokens are compared while the tree is locked",
        "92bb0b9f869ef74b",
    ),
    _override(
        f"{KEY}.match_at",
        "compares many tokens at a time, and none that were compared before the mutex was taken",
        "the tree is locked for twice as long",
        "af51307e4bdb1428",
    ),
    _override(
        f"{KEY}.page_aligned",
        "cuts a prompt that is looked for without copying it",
        "the tree is locked while a prompt is copied",
        "d7060248a00074a0",
    ),
    _override(
        f"{KEY}.child_key_at",
        "names a page of a prompt once; SGLang's own names keep prompts apart by extra key and salt, as the hashes do",
        "the tree is locked while pages are named again",
        "a9ffca62d42626cb",
    ),
    _relied_on(
        f"{KEY}.match",
        "asks `match_at` for what continues a prompt, also when something is filed",
        "keys are compared that the core knows nothing of",
        "f5cc7aaba59555d5",
    ),
    _relied_on(
        f"{KEY}._check_compatible",
        "refuses to compare keys of different namespaces",
        "content of one tenant is matched with the prompt of another",
        "589ef1e4d60c547e",
    ),
    _relied_on(
        f"{CORE}._match_prefix_helper",
        "asks a node's key how far it matches, and keeps nothing of the prompt's",
        "other content is matched than the prompt's",
        "1d13fb4d1a22709f",
    ),
    _relied_on(
        f"{CACHE}._evict_components",
        "looks after each step of a walk whether there is room enough",
        ORDER,
        "fb9ac53c7c862697",
    ),
    _relied_on(
        f"{CACHE}._evict_device_leaf",
        "evicts one chosen leaf and frees its pages at once",
        "a victim's room is not there when its holder needs it",
        "76b549f599db062e",
    ),
    _relied_on(
        f"{CORE}._delete_unbacked_device_leaf",
        "takes a victim out of the tree",
        "victims leave the tree by half",
        "50683466316d7df5",
    ),
    _relied_on(
        f"{CORE}.evict_device_leaf",
        "says which leaves are deleted and which go to the host",
        TAKEN,
        "bf7e371515cdca76",
    ),
    _override(
        f"{CORE}._is_device_leaf",
        "says which nodes can be evicted, from counters instead of looking at all children",
        "the tree is locked for longer",
        "93f1299a45c3ed8b",
    ),
    _override(
        f"{MEM_CACHE}.unified_cache.components.base.TreeComponent.reclaimable_value_len",
        "tells how many tokens a node has on the device from a number instead of a tensor",
        "the tree is locked for longer",
        "5ff2a2abf47a5ebe",
    ),
    _relied_on(
        f"{CORE}._add_new_node", "sets parent and key of a node before its value", GHOST, "f78131b0999ef158"
    ),
    _relied_on(
        f"{CORE}.insert_host", "sets parent and key of a node before its value", GHOST, "01fefdc4839a8983"
    ),
    _relied_on(
        f"{FULL}.acquire_component_lock", "locks a node's whole path to the root", TAKEN, "c40ddbebba248414"
    ),
    _relied_on(
        f"{MEM_CACHE}.evict_policy", "what each eviction policy makes of a node", ORDER, "1d95556ee61723a7"
    ),
)


def install() -> None:
    """Register the core in this process, once.

    Raises:
        SettingsError: somebody else has registered one of that name.
    """
    from sglang_wavepp.cache.tree_core import BACKEND, register_indexed_core

    register_indexed_core()
    if not is_registered():
        raise SettingsError(f"another plugin has registered a tree core backend named {BACKEND!r}; remove it")


def is_registered() -> bool:
    """Whether the core of that name is ours."""
    from sglang.srt.mem_cache.unified_cache.tree_core_registry import get_tree_core_factory

    from sglang_wavepp.cache.tree_core import BACKEND, IndexedTreeCore

    return get_tree_core_factory(BACKEND) is IndexedTreeCore
