"""RMS norm with an output gate, in float64 and rounded once."""

from __future__ import annotations

import torch


def gated_rms_norm(
    x: torch.Tensor,
    g: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    activation: str = "swish",
    residual: torch.Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    eps: float = 1e-6,
) -> torch.Tensor:
    """``rms_norm(x) * weight * activation(g)`` over the last dimension.

    Args:
        x: [..., width].
        g: as many elements as `x`.
        weight: [width] or None.
        activation: ``"sigmoid"``, or ``"swish"`` / ``"silu"``.

    Raises:
        NotImplementedError: a bias, a residual or pre-norm was asked for.
    """
    if bias is not None or residual is not None or prenorm:
        raise NotImplementedError("the CPU reference gated norm has neither bias nor residual")
    exact = x.double()
    normed = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        normed = normed * weight
    gate = g.double().view(x.shape)
    return (normed * (gate.sigmoid() if activation == "sigmoid" else torch.nn.functional.silu(gate))).to(
        x.dtype
    )
