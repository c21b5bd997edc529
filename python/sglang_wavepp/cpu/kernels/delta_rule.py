"""The gated delta rule with a decay per channel, in float64.

State S is [values, keys]. One token does ``S <- S * decay``, ``u = beta * (v - S k)``, ``S <- S + u k^T``, ``o = S q``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

#: Tokens solved together: the unit of tracking, so that a tracked state is the state before a chunk.
CHUNK = 64

#: Smallest log decay summed over a chunk for which ``exp`` of it and of its negative stay far from the ends of
#: the float64 range. Below it tokens are run one by one.
_MIN_CHUNK_LOG_DECAY = -300.0


@dataclass(frozen=True)
class Progress:
    """What a run over some tokens gave.

    Attributes:
        out: [tokens, heads, values] float64.
        state: [heads, values, keys] float64, after the last token.
        snapshot: the state after the number of tokens that was asked for, or None.
    """

    out: torch.Tensor
    state: torch.Tensor
    snapshot: torch.Tensor | None


def run(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    snapshot_after: int | None = None,
) -> Progress:
    """Advance `state` over the tokens.

    Args:
        q, k, log_decay: [tokens, heads, keys] float64, tokens >= 1, log_decay <= 0.
        v: [tokens, heads, values] float64.
        beta: [tokens, heads] float64.
        state: [heads, values, keys] float64; not changed.
        snapshot_after: a multiple of ``CHUNK``, at most the number of tokens.

    Raises:
        ValueError: `snapshot_after` is off the chunk grid or past the end.
    """
    tokens = q.shape[0]
    if snapshot_after is not None and (snapshot_after % CHUNK or not 0 <= snapshot_after <= tokens):
        raise ValueError(
            f"a snapshot after {snapshot_after} of {tokens} tokens is not at a multiple of {CHUNK}"
        )
    width = min(CHUNK, tokens)
    reach = _chunks(log_decay, width).cumsum(dim=2)
    if float(reach.min()) < _MIN_CHUNK_LOG_DECAY:
        return _run_tokens(q, k, v, log_decay, beta, state, snapshot_after)
    parts = (
        _chunks(q, width),
        _chunks(k, width),
        _chunks(v, width),
        reach,
        _chunks(beta.unsqueeze(-1), width),
    )
    return _run_chunks(*parts, state, tokens, snapshot_after)


def _run_chunks(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    reach: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    tokens: int,
    snapshot_after: int | None,
) -> Progress:
    """All arguments [chunks, heads, width, ...]; `reach` is the log decay summed from the start of the chunk.

    Inside a chunk the updates u solve a unit lower triangular system, whose right side is linear in the state S
    before the chunk: u = u0 - u1 S^T. All systems are solved at once; only u and S go from chunk to chunk.
    """
    grow, last = reach.exp(), reach[..., -1:, :]
    key_in, key_out, query = k * grow, k * (-reach).exp(), q * grow
    mixing = (key_in @ key_out.transpose(-1, -2)).tril_(-1) * beta
    reading = (query @ key_out.transpose(-1, -2)).tril_()
    right = torch.cat([v, key_in], dim=-1) * beta
    solved = torch.linalg.solve_triangular(mixing, right, upper=False, unitriangular=True)
    fresh, seen = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    fade, key_end = last.exp(), k * (last - reach).exp()

    chunks, heads, width, values = v.shape
    before = state.new_empty(chunks, *state.shape)
    updates = torch.empty_like(v)
    for chunk in range(chunks):
        before[chunk] = state
        torch.baddbmm(fresh[chunk], seen[chunk], state.transpose(1, 2), alpha=-1, out=updates[chunk])
        state = torch.baddbmm(state * fade[chunk], updates[chunk].transpose(1, 2), key_end[chunk])
    out = query @ before.transpose(-1, -2) + reading @ updates
    flat = out.transpose(1, 2).reshape(chunks * width, heads, values)[:tokens]
    if snapshot_after is None:
        return Progress(flat, state, None)
    return Progress(flat, state, state if snapshot_after == tokens else before[snapshot_after // CHUNK])


def _run_tokens(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    snapshot_after: int | None,
) -> Progress:
    state, decay, out = state.clone(), log_decay.exp(), torch.empty_like(v)
    snapshot = None
    for token in range(q.shape[0]):
        if token == snapshot_after:
            snapshot = state.clone()
        out[token] = step(state, q[token], k[token], v[token], decay[token], beta[token])
    return Progress(out, state, state if snapshot_after == q.shape[0] else snapshot)


def step(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
) -> torch.Tensor:
    """One token for each of `rows` independent states, which are advanced in place.

    Args:
        state: [rows, values, keys]; q, k, decay: [rows, keys]; v: [rows, values]; beta: [rows]. All float64.

    Returns:
        [rows, values] float64.
    """
    state.mul_(decay.unsqueeze(1))
    update = torch.baddbmm(v.unsqueeze(2), state, k.unsqueeze(2), alpha=-1).mul_(beta[:, None, None])
    state.baddbmm_(update, k.unsqueeze(1))
    return torch.bmm(state, q.unsqueeze(2)).squeeze(2)


def _chunks(part: torch.Tensor, width: int) -> torch.Tensor:
    """[tokens, heads, n] -> [chunks, heads, width, n]; the tail is filled with tokens that change nothing."""
    missing = -part.shape[0] % width
    padded = F.pad(part, (0, 0, 0, 0, 0, missing)) if missing else part
    return padded.view(-1, width, *part.shape[1:]).transpose(1, 2).contiguous()
