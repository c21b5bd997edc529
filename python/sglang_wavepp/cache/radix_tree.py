"""The walks of admission on SGLang's prefix cache: match, lock, unlock and counts, no device work.

A count is the length of a list or of a tensor, which is known on the host.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, cast

from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams, TreeLock
from sglang.srt.mem_cache.radix_cache import RadixKey

from sglang_wavepp.admission.messages import InstallRecord
from sglang_wavepp.cache.guarded_cache import GuardedRadixCache
from sglang_wavepp.cache.holdings import Match
from sglang_wavepp.cache.prefix_keys import PromptKey
from sglang_wavepp.cache.tree_core import IndexedTreeCore


class RadixTree:
    """A rank's `GuardedRadixCache` and the KV pool under it.

    Args:
        cache: the rank's cache.
        grid: endpoints are multiples of it: the page size, for a hybrid model the grid of recurrent
            snapshots.
    """

    def __init__(self, cache: GuardedRadixCache, *, grid: int) -> None:
        if grid < 1 or grid % cache.page_size:
            raise ValueError(f"the grid must be a multiple of the page size {cache.page_size}, got {grid}")
        self.mutex = cache.mutex
        self._cache = cache
        self._allocator = cache.token_to_kv_pool_allocator
        self._grid = grid
        self._hybrid = bool(cache.supports_mamba())

    def match(self, record: InstallRecord, limit: int) -> Match:
        """Longest prefix of at most `limit` tokens that ends on the grid.

        The walk may split a node at its end and makes what it found the most recently used, as SGLang's own
        do. It must not copy a recurrent state, so it goes without a request.
        """
        reach = None
        while True:
            key = self._key(record, limit)
            found = self._cache.match_prefix(MatchPrefixParams(key=key, cow_mamba=False))
            endpoint = int(found.device_prefix_len)
            reach = int(found.full_kv_hit_length) if reach is None else reach
            if endpoint % self._grid == 0:
                node = found.last_device_node
                return Match(endpoint, node, node if self._hybrid and endpoint else None, reach)
            limit = endpoint - 1  # a state off the grid can't be resumed from: the next shorter prefix

    def look_ahead(self, record: InstallRecord, limit: int) -> None:
        """See `PrefixTree.look_ahead`; other cores have nothing to gain by it."""

    def _key(self, record: InstallRecord, limit: int) -> RadixKey:
        return RadixKey(
            record.token_ids, extra_key=record.extra_key, limit=limit, cache_salt=record.cache_salt
        )

    def lock(self, node: Hashable) -> TreeLock | None:
        """Keep everything up to this node."""
        return self._cache.lock(node)

    def unlock(self, receipt: Any) -> None:
        """Undo `lock`."""
        self._cache.unlock(receipt)

    def available(self) -> int:
        """Tokens that are free or can be evicted. Frees that SGLang defers count when they are done."""
        return int(self._allocator.available_size()) + int(self._cache.full_evictable_size())

    def locked(self) -> int:
        """Tokens of the tree that can't be evicted."""
        return int(self._cache.full_protected_size())

    def snapshots(self) -> int:
        """Recurrent snapshots in the tree, a slot each."""
        if not self._hybrid:
            return 0
        return int(self._cache.mamba_evictable_size()) + int(self._cache.mamba_protected_size())


class IndexedRadixTree(RadixTree):
    """A `RadixTree` on an `IndexedTreeCore`, which also says what may go: the source of victims of an escrow.

    Args:
        cache: the rank's cache.
        grid: see `RadixTree`.

    Raises:
        TypeError: the cache has another tree core.
    """

    def __init__(self, cache: GuardedRadixCache, *, grid: int) -> None:
        super().__init__(cache, grid=grid)
        core = cache.tree_core
        if not isinstance(core, IndexedTreeCore):
            raise TypeError(f"leases need the indexed tree core, this cache has {type(core).__name__}")
        self.core = core
        self._ahead = PromptKey(array("q"), extra_key=None, cache_salt=None, limit=0)

    def look_ahead(self, record: InstallRecord, limit: int) -> None:
        """See `PrefixTree.look_ahead`: compares the tokens."""
        if not self._was_seen(record, limit):
            self._ahead = PromptKey(
                record.token_ids, extra_key=record.extra_key, cache_salt=record.cache_salt, limit=limit
            )
        self.core.compare(self._ahead.upto(limit))

    def _key(self, record: InstallRecord, limit: int) -> RadixKey:
        return self._ahead.upto(limit) if self._was_seen(record, limit) else super()._key(record, limit)

    def _was_seen(self, record: InstallRecord, limit: int) -> bool:
        return self._ahead.covers(record.token_ids, record.extra_key, record.cache_salt, limit)

    def free(self) -> int:
        """Places that nothing uses."""
        return int(self._allocator.available_size())

    def candidates(self) -> Iterator[tuple[int, int]]:
        """Nodes that would be evicted next, each with the tokens of it that nobody holds."""
        return self.core.candidates()

    def unwanted_candidates(self) -> Iterator[tuple[int, int]]:
        """The `candidates` that no request in admission names."""
        return self.core.unwanted_candidates()

    def hold(self, node: Hashable, tokens: int) -> None:
        """Nobody else may choose these tokens of the node."""
        self.core.hold(cast(int, node), tokens)

    def unhold(self, node: Hashable, tokens: int) -> None:
        """Undo `hold`."""
        self.core.unhold(cast(int, node), tokens)

    def evict(self, nodes: Sequence[Hashable]) -> None:
        """Take nodes out of the tree, each with what hangs below it."""
        self._cache.evict_nodes(cast(Sequence[int], nodes))

    def is_locked(self, node: Hashable) -> bool:
        """Whether a request uses the node."""
        return self.core.is_locked(cast(int, node))

    def wanted(self, nodes: Iterable[Hashable]) -> list[Hashable]:
        """Those that a request in admission names or the beginning of which it names, in the order given."""
        return cast(list[Hashable], self.core.wanted_of(cast(Iterable[int], nodes)))

    def take_claims(self) -> list[int]:
        """Held nodes that were locked since the last call."""
        claims = self.core.claims
        taken = claims.copy()
        claims.clear()
        return taken
