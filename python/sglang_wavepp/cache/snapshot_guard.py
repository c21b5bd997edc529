"""Drops recurrent snapshots that the prefix tree could only file under a wrong depth.

SGLang counts the depth of a recurrent snapshot from the start of the span, in steps of its checkpoint grid, while the
tree files it under the key cut down to a whole number of pages. When a span starts off the page grid, the state of
2,002 tokens is found at depth 1,984: every hit there continues from a state that has seen 18 tokens too many. Spans
that end on the grid avoid it; this guard is the net below that rule, and its counter stays at zero while the rule
holds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class DropCounter:
    """How many snapshots this process dropped. Read from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._dropped = 0

    @property
    def dropped(self) -> int:
        return self._dropped

    def add(self) -> None:
        with self._lock:
            self._dropped += 1


#: The counter of this process.
DROPS = DropCounter()


def drop_off_page_snapshot(original: Callable[..., Any], batch: Any, req: Any) -> Any:
    """Around ``ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend``.

    A snapshot whose depth is not a whole number of pages is not taken: the request reads as if nothing was tracked
    in this span, and ``DROPS`` counts it.

    Args:
        original: SGLang's method; plans the tracking of `req` and returns its entry.
        batch: the ``ScheduleBatch``.
        req: the request whose span is prepared.

    Returns:
        SGLang's entry, or one that tracks nothing.
    """
    entry = original(batch, req)
    depth = req.kv.mamba_last_track_seqlen
    if not entry.track_mask or depth is None or depth % batch.tree_cache.page_size == 0:
        return entry
    req.kv.mamba_last_track_seqlen = None
    DROPS.add()
    return entry._replace(track_mask=False, track_seqlen=-1)
