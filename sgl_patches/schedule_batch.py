"""Hooks on ``sglang.srt.managers.schedule_batch``: where a request's reused prefix ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sgl_patches import applied
from sgl_patches.patch import Kind, NeededBy, Patch

MAX_PREFIX = "sglang.srt.managers.schedule_batch.Req._compute_max_prefix_len"
TRACKING = "sglang.srt.managers.schedule_batch.ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend"

PATCHES = (
    Patch(
        target=MAX_PREFIX,
        kind=Kind.AROUND,
        why="bounds the prefix that a request reuses by the endpoint that all ranks agreed on",
        breaks_without="a rank with a longer cached prefix starts a request later than the others",
        fingerprint="c6592162531cc192",
        needed_by=NeededBy.WAVEPP,
    ),
    Patch(
        target=TRACKING,
        kind=Kind.AROUND,
        why="drops a recurrent snapshot whose depth is off the page grid (SGLang files it under the page below)",
        breaks_without="a later prefix hit restores a recurrent state that is some tokens too far: wrong tokens",
        fingerprint="9fee9868efdbc928",
        needed_by=NeededBy.WAVEPP,
    ),
)


def install() -> None:
    """Hook requests and batches of this process."""
    from sglang_wavepp.cache.snapshot_guard import drop_off_page_snapshot

    applied.add(MAX_PREFIX, _bounded_prefix, "around")
    applied.add(TRACKING, drop_off_page_snapshot, "around")


def _bounded_prefix(original: Callable[..., int], req: Any, input_len: int) -> int:
    """Upper bound in tokens of the reused prefix. ``req.wavepp_endpoint`` is set while the request is materialised."""
    limit = original(req, input_len)
    endpoint = getattr(req, "wavepp_endpoint", None)
    return limit if endpoint is None else min(limit, int(endpoint))
