"""What of a request that is still being computed goes into a rank's prefix tree, and where its state is snapshot.

SGLang publishes a request behind every chunk. On a hybrid model that costs a recurrent slot: the slot that the forward
filled becomes the tree's, and a new one is taken for the next chunk. Content without a snapshot at its end would be of
no use there, since nobody can resume from it, so what a span does not publish stays in the request's row, and goes
into the tree with the next position that is published. SGLang's own bookkeeping allows that: it does the same for
requests that are barred from the tree.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache
from sglang.srt.mem_cache.common import checkpoint_kv_cache

from sglang_wavepp.plane.messages import Span


def track(req: Any, span: Span) -> None:
    """Before a span is prepared: where its forward takes the recurrent state, at the span's end or inside it.

    SGLang can take one state a span, and takes it from inside for a position that it calls the branching point. The
    position is rank 0's, the same on every rank; what a rank's own tree suggests is not used.
    """
    end = span.start + span.length
    req.mamba_branching_seqlen = span.publish if 0 < span.publish < end else None


def publish(req: Any, span: Span, tree: BasePrefixCache) -> None:
    """After a span that isn't the last of its request was launched, and before the next one is prepared.

    A state that a span took and did not publish stays in the request's tracking slot until the next span takes
    another; if that is the last span and too short to take any, the request publishes it with its first token.
    """
    if span.publish:
        checkpoint_kv_cache(req, tree)
    else:
        req.prefix_len = req.extend_end
