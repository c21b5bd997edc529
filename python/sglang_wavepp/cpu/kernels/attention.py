"""Attention over the rows that a step computes, exact: float64 inside, rounded once.

SGLang's torch_native backend pads the queries of a span to the whole context, which makes a chunk at depth L cost
L * L. Here a chunk of n rows costs n * L, and its result does not depend on n.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

#: Scores (heads * rows * context) worked on at a time: 8 bytes each.
_BLOCK_SCORES = 1 << 19
_MIN_BLOCK_ROWS = 16


def extend_attention(
    original: Callable[..., torch.Tensor],
    backend: Any,
    query: torch.Tensor,
    output: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_prefix_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    encoder_lens: torch.Tensor | None = None,
    scaling: float | None = None,
    enable_gqa: bool = False,
    causal: bool = False,
    is_cross_attn: bool = False,
    sliding_window_size: int | None = None,
) -> torch.Tensor:
    """Causal attention of packed spans over their requests' cached tokens.

    Args:
        query, output: [tokens, query heads, width].
        k_cache, v_cache: [slots, key heads, width].
        req_to_token: [rows, context] slots.
        req_pool_indices, seq_lens, extend_prefix_lens, extend_seq_lens: [spans].

    Returns:
        `output`. Encoder, cross and sliding-window attention go to SGLang's own method.
    """
    if not causal or is_cross_attn or encoder_lens is not None or sliding_window_size is not None:
        return original(
            backend,
            query,
            output,
            k_cache,
            v_cache,
            req_to_token,
            req_pool_indices,
            seq_lens,
            extend_prefix_lens,
            extend_seq_lens,
            encoder_lens,
            scaling=scaling,
            enable_gqa=enable_gqa,
            causal=causal,
            is_cross_attn=is_cross_attn,
            sliding_window_size=sliding_window_size,
        )
    start = 0
    spans = zip(req_pool_indices.tolist(), extend_prefix_lens.tolist(), extend_seq_lens.tolist(), strict=True)
    for row, prefix, length in spans:
        if length:
            slots = req_to_token[row, : prefix + length].long()
            end = start + length
            output[start:end] = attend_rows(query[start:end], k_cache[slots], v_cache[slots], prefix, scaling)
            start = end
    return output


def decode_attention(
    original: Callable[..., torch.Tensor],
    backend: Any,
    query: torch.Tensor,
    output: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    encoder_lens: torch.Tensor | None = None,
    scaling: float | None = None,
    enable_gqa: bool = False,
    causal: bool = False,
    is_cross_attn: bool = False,
    sliding_window_size: int | None = None,
) -> torch.Tensor:
    """One query per request over its whole context; shapes as in ``extend_attention``, tokens = requests."""
    if is_cross_attn or encoder_lens is not None or sliding_window_size is not None:
        return original(
            backend,
            query,
            output,
            k_cache,
            v_cache,
            req_to_token,
            req_pool_indices,
            seq_lens,
            encoder_lens,
            scaling=scaling,
            enable_gqa=enable_gqa,
            causal=causal,
            is_cross_attn=is_cross_attn,
            sliding_window_size=sliding_window_size,
        )
    for group in _groups_of_similar_length(seq_lens.tolist()):
        rows = torch.tensor(group)
        lengths = seq_lens[rows]
        context = int(lengths.max())
        live = torch.arange(context) < lengths.unsqueeze(1)
        slots = req_to_token[req_pool_indices[rows], :context].long()
        # Slots past a request's end are stale; any live slot does, its weight will be zero.
        slots = torch.where(live, slots, slots[:, :1])
        output[rows] = _attend_one(query[rows], k_cache[slots], v_cache[slots], live, scaling).to(
            output.dtype
        )
    return output


def attend_rows(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, first: int, scaling: float | None = None
) -> torch.Tensor:
    """Causal attention of consecutive positions.

    Args:
        query: [rows, query heads, width], row r at position ``first + r``.
        key: [context, key heads, width]; value: [context, key heads, value width]; context >= first + rows.

    Returns:
        [rows, query heads, value width] in the dtype of `query`.
    """
    rows, heads, width = query.shape
    pairs = key.shape[1]
    share = heads // pairs
    scale = width**-0.5 if scaling is None else scaling
    keys = key.double().permute(1, 2, 0)
    values = value.double().transpose(0, 1)
    grouped = (query.double() * scale).view(rows, pairs, share, width).permute(1, 0, 2, 3)
    out = query.new_empty(rows, heads, value.shape[-1])
    start = 0
    while start < rows:
        step = min(rows - start, max(_MIN_BLOCK_ROWS, _BLOCK_SCORES // (heads * (first + rows))))
        context = first + start + step
        block = grouped[:, start : start + step].reshape(pairs, step * share, width)
        scores = torch.bmm(block, keys[:, :, :context])
        if step > 1:
            ahead = torch.ones(step, step, dtype=torch.bool).triu_(1)[:, None, :]
            scores.view(pairs, step, share, context)[..., first + start :].masked_fill_(ahead, float("-inf"))
        weights, total = _softmax_parts(scores)
        part = torch.bmm(weights, values[:, :context]).div_(total)
        out[start : start + step] = part.view(pairs, step, share, -1).transpose(0, 1).reshape(step, heads, -1)
        start += step
    return out


def _attend_one(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, live: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """query [requests, heads, width]; key, value [requests, context, key heads, ...]; live [requests, context]."""
    requests, heads, width = query.shape
    context, pairs = key.shape[1:3]
    share = heads // pairs
    scale = width**-0.5 if scaling is None else scaling
    grouped = (query.double() * scale).view(requests * pairs, share, width)
    keys = key.double().permute(0, 2, 3, 1).reshape(requests * pairs, width, context)
    values = value.double().transpose(1, 2).reshape(requests * pairs, context, -1)
    scores = torch.bmm(grouped, keys)
    scores.view(requests, pairs, share, context).masked_fill_(~live[:, None, None, :], float("-inf"))
    weights, total = _softmax_parts(scores)
    return torch.bmm(weights, values).div_(total).view(requests, heads, -1)


def _softmax_parts(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Unnormalised weights (in the memory of `scores`) and their sum."""
    weights = scores.sub_(scores.amax(dim=-1, keepdim=True)).exp_()
    return weights, weights.sum(dim=-1, keepdim=True)


def _groups_of_similar_length(lengths: list[int]) -> Iterator[list[int]]:
    """Rows in groups in which no row is padded to more than twice its length."""
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    group: list[int] = []
    for row in order:
        if group and lengths[group[0]] > 2 * lengths[row]:
            yield group
            group = []
        group.append(row)
    if group:
        yield group
