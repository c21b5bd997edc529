"""Requests whose forward would fail on every rank, and with it the server and all other requests.

SGLang's API server looks at most of what a client sends, but not at everything that a kernel takes on trust.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def complaint(req: Any, *, vocabulary: int) -> str | None:
    """Why SGLang's `Req` can't be computed, for its client; None when it can.

    Args:
        req: as SGLang built it.
        vocabulary: ids that the model knows, from 0.
    """
    ids = np.asarray(req.origin_input_ids, dtype=np.int64)
    if ids.size:
        for token in (int(ids.min()), int(ids.max())):
            if not 0 <= token < vocabulary:
                return f"The prompt has token id {token}; the model knows 0 to {vocabulary - 1}."
    if req.return_logprob:
        asked = req.logprob.top_logprobs_num
        if not 0 <= asked <= vocabulary:
            return f"top_logprobs_num is {asked}; it must lie between 0 and the vocabulary's {vocabulary}."
    return None
