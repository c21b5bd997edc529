"""A node of the prefix tree that tells its core when content comes to it or goes.

SGLang sets a node's values in two dozen places. Here the value itself tells: whoever sets it, the core hears of
it, so no place can be missed.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_cache.components.base import ComponentData
from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeNode

from sglang_wavepp.cache.prefix_keys import NodeKey

if TYPE_CHECKING:
    from sglang_wavepp.admission.block_hash import ChainEnd

Heard = Callable[[int, ComponentType], None]
"""Called with a node's id and a component after a value of it came or went."""


class WatchedData(ComponentData):
    """One component's state on one node; tells when its value on device or host appears or disappears."""

    def __init__(self, node_id: int, component: ComponentType, heard: Heard) -> None:
        self._value: Any = None
        self._host_value: Any = None
        self._watch = (node_id, component)
        self._heard = heard
        self.lock_ref = 0
        self.metadata: dict[str, Any] = {}
        self.host_lock_ref = 0
        self.session_ref = 0
        self.session_ids: set[str] | None = None

    def _set_value(self, value: Any) -> None:
        changes = (self._value is None) != (value is None)
        self._value = value
        if changes:
            self._heard(*self._watch)

    def _set_host_value(self, value: Any) -> None:
        changes = (self._host_value is None) != (value is None)
        self._host_value = value
        if changes:
            self._heard(*self._watch)

    # Read by C code: SGLang reads these far more often than it sets them.
    value = property(attrgetter("_value"), _set_value)
    host_value = property(attrgetter("_host_value"), _set_host_value)


class IndexedNode(UnifiedTreeNode):
    """SGLang's node with what the hint index, the soft holds and the order of victims keep on it."""

    def __init__(self, components: tuple[ComponentType, ...], priority: int, heard: Heard) -> None:
        super().__init__(components, priority=priority)
        for component in components:
            self.component_data[component] = WatchedData(self.id, component, heard)
        self.blocks: list[int] = []
        """Hashes of the hint blocks whose last token lies here."""
        self.chain: ChainEnd | None = None
        """Where the chain of hashes stands at the end of this node; None on the root."""
        self.counted: tuple[ComponentType, ...] = ()
        """Components whose content the index counts for this node."""
        self.on_device = False
        """Whether this node counts among its parent's `device_children`."""
        self.device_tokens = 0
        """Its tokens on the device."""
        self.device_children = 0
        """Children whose tokens are on the device."""
        self.covered_children = 0
        """Those of them that are covered."""
        self.covered = False
        """All tokens are held, here and in everything below on the device: it counts as gone."""

    def _set_key(self, key: RadixKey | None) -> None:
        self._key = None if key is None else NodeKey.of(key)

    # Set by SGLang in half a dozen places, each with a plain key.
    key = property(attrgetter("_key"), _set_key)

    @property
    def is_locked(self) -> bool:
        """Whether anybody keeps a component of this node."""
        # A generator takes three times as long, and every hold asks.
        for data in self.component_data:  # noqa: SIM110
            if data.lock_ref:
                return True
        return False
