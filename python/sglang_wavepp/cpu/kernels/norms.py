"""Exact forms of the row-wise functions of a transformer layer. Each is bound to SGLang's layer object."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from sglang_wavepp.cpu.kernels.exact_weights import exact_copy


def rms_norm(
    layer: Any,
    x: torch.Tensor,
    residual: torch.Tensor | None = None,
    post_residual_addition: torch.Tensor | None = None,
    quant_linear: Any = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """RMS norm of ``x + residual`` over the last dimension: x [..., width].

    Returns:
        The normed rows, or with a residual ``(normed rows, x + residual)``; both in the dtype of `x`.
    """
    plain = not (layer.override_orig_dtype or layer.fp32_residual or layer.cast_x_before_out_mul)
    if not plain or layer.variance_size_override is not None or post_residual_addition is not None:
        return layer.forward_native(x, residual, post_residual_addition, quant_linear)
    dtype = x.dtype
    if residual is None:
        return _normed(x.double(), layer).to(dtype)
    summed = x.double() + residual.double()
    return _normed(summed, layer).to(dtype), summed.to(dtype)


def silu_and_mul(layer: Any, x: torch.Tensor) -> torch.Tensor:
    """x [..., 2 * width] -> ``silu(first half) * second half`` in the dtype of `x`."""
    gate, up = x.double().chunk(2, dim=-1)
    return (F.silu(gate) * up).to(x.dtype)


def _normed(exact: torch.Tensor, layer: Any) -> torch.Tensor:
    scale = torch.rsqrt(exact.square().mean(dim=-1, keepdim=True) + layer.variance_epsilon)
    return (exact * scale).mul_(exact_copy(layer.weight))
