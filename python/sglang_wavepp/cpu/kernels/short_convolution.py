"""Causal depthwise convolution over the last few tokens, with its window carried from chunk to chunk.

The taps are summed in float64 and rounded once, so the result of a token depends on its window alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

PAD_SLOT = -1
_SILU_NAMES = ("silu", "swish", True)


def extend_convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    conv_states: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens_cpu: Sequence[int],
    cache_indices: torch.Tensor | None = None,
    has_initial_state: torch.Tensor | None = None,
    activation: str | bool | None = "silu",
    pad_slot_id: int = PAD_SLOT,
    **_: Any,
) -> torch.Tensor:
    """Convolve a packed batch of spans and leave each span's window in its slot.

    Args:
        x: [channels, tokens], spans one after the other.
        weight: [channels, taps].
        bias: [channels] or None.
        conv_states: [slots, channels, taps - 1], updated in place.
        query_start_loc: [spans + 1]; unused, `seq_lens_cpu` says the same without a copy.
        seq_lens_cpu: tokens per span.
        cache_indices: [spans] slots; a span in the padding slot is skipped and its output is zero.
        has_initial_state: [spans]; where False the window starts from zeros.

    Returns:
        [channels, tokens] in the dtype of `x`.
    """
    assert cache_indices is not None, "the recurrent pool always names slots"
    taps = weight.shape[1]
    kernel = weight.double()
    slots = cache_indices.tolist()
    resumed = has_initial_state.tolist() if has_initial_state is not None else [False] * len(slots)
    rows = x.transpose(0, 1)
    out = x.new_zeros(rows.shape)
    start = 0
    for slot, length, resume in zip(slots, map(int, seq_lens_cpu), resumed, strict=False):
        if slot != pad_slot_id and slot >= 0 and length:
            span = rows[start : start + length]
            window = conv_states[slot, :, 1 - taps :].transpose(0, 1)
            before = window.to(x.dtype) if resume else span.new_zeros(taps - 1, span.shape[1])
            history = torch.cat([before, span])
            out[start : start + length] = _convolve(history.double(), kernel, bias, activation)
            conv_states[slot, :, 1 - taps :] = history[1 - taps :].transpose(0, 1).to(conv_states.dtype)
        start += length
    return out.transpose(0, 1)


def decode_convolution(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | bool | None = None,
    cache_seqlens: torch.Tensor | None = None,
    conv_state_indices: torch.Tensor | None = None,
    num_accept_tokens: torch.Tensor | None = None,
    intermediate_conv_window: torch.Tensor | None = None,
    **_: Any,
) -> torch.Tensor:
    """One token per row.

    Args:
        x: [rows, channels].
        conv_state: [slots, channels, taps - 1], updated in place.
        conv_state_indices: [rows] slots; negative ones are padding, their output is unspecified.

    Returns:
        [rows, channels] in the dtype of `x`.

    Raises:
        NotImplementedError: a speculative layout was asked for.
    """
    if x.dim() != 2 or cache_seqlens is not None or num_accept_tokens is not None:
        raise NotImplementedError("the CPU reference convolution decodes one token per row")
    if intermediate_conv_window is not None or conv_state_indices is None:
        raise NotImplementedError("the CPU reference convolution keeps no speculative windows")
    taps = weight.shape[1]
    slots = conv_state_indices.long()
    live = slots >= 0
    window = conv_state[slots.clamp(min=0), :, 1 - taps :]
    history = torch.cat([window.to(x.dtype), x.unsqueeze(-1)], dim=-1)
    out = _convolve(history.double().permute(2, 0, 1), weight.double(), bias, activation)[0]
    conv_state[slots[live], :, 1 - taps :] = history[live][..., 1:].to(conv_state.dtype)
    return out.to(x.dtype)


def _convolve(
    history: torch.Tensor, kernel: torch.Tensor, bias: torch.Tensor | None, activation: str | bool | None
) -> torch.Tensor:
    """[taps - 1 + n, ..., channels] -> [n, ..., channels], all float64."""
    taps = kernel.shape[1]
    length = history.shape[0] - taps + 1
    total = history[:length] * kernel[:, 0]
    for tap in range(1, taps):
        total.addcmul_(history[tap : tap + length], kernel[:, tap])
    if bias is not None:
        total += bias
    return torch.nn.functional.silu(total) if activation in _SILU_NAMES else total
