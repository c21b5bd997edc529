"""The gated delta rule with a decay per channel, in float64.

State S is [values, keys]. One token does ``S <- S * decay``, ``S <- S + beta * (v - S k) k^T``, ``o = S q``.
"""

from __future__ import annotations

import torch


def run_tokens(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> torch.Tensor:
    """Advance `state` over the tokens one by one.

    Args:
        q, k, log_decay: [tokens, heads, keys] float64, log_decay <= 0.
        v: [tokens, heads, values] float64.
        beta: [tokens, heads] float64.
        state: [heads, values, keys] float64, advanced in place.

    Returns:
        [tokens, heads, values] float64.
    """
    decay = log_decay.exp()
    out = torch.empty_like(v)
    tokens = zip(
        q.unsqueeze(-1).unbind(),
        k.unsqueeze(-1).unbind(),
        k.unsqueeze(-2).unbind(),
        decay.unsqueeze(-2).unbind(),
        v.unsqueeze(-1).unbind(),
        beta[..., None, None].unbind(),
        out.unsqueeze(-1).unbind(),
        strict=True,
    )
    for query, key, key_row, fade, value, rate, result in tokens:
        state.mul_(fade)
        update = torch.baddbmm(value, state, key, alpha=-1).mul_(rate)
        state.baddbmm_(update, key_row)
        torch.bmm(state, query, out=result)
    return out
