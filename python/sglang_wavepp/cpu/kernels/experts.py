"""Mixture of experts, exact: one float64 pass per expert, one rounding at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from sglang_wavepp.cpu.kernels.exact_weights import exact_copy


def route(
    original: Callable[..., Any],
    hidden_states: torch.Tensor,
    gating_output: torch.Tensor,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """SGLang's own routing on float64 scores: gating_output [tokens, experts]."""
    return original(hidden_states, gating_output.double(), *args, **kwargs)


def apply_experts(layer: Any, x: torch.Tensor, topk_output: Any, moe_runner_config: Any) -> torch.Tensor:
    """Weighted sum of the chosen experts: x [tokens, hidden] -> [tokens, hidden] in the dtype of `x`.

    Raises:
        NotImplementedError: another activation than plain ``silu``, biases, or router weights on the input.
    """
    config = moe_runner_config
    biased = (
        getattr(layer, "w13_weight_bias", None) is not None
        or getattr(layer, "w2_weight_bias", None) is not None
    )
    if (
        config.activation != "silu"
        or config.gemm1_alpha is not None
        or biased
        or config.apply_router_weight_on_input
    ):
        raise NotImplementedError("the CPU reference experts are plain silu experts without biases")
    weights, chosen, _ = topk_output
    up_gate, down = exact_copy(layer.w13_weight), exact_copy(layer.w2_weight)
    exact, shares = x.double(), weights.double()
    total = torch.zeros_like(exact)
    for expert in chosen.unique().tolist():
        if not 0 <= expert < up_gate.shape[0]:
            continue  # padding rows carry -1
        rows, choice = (chosen == expert).nonzero(as_tuple=True)
        gate, up = F.linear(exact[rows], up_gate[expert]).chunk(2, dim=-1)
        result = F.linear(F.silu(gate) * up, down[expert])
        total.index_add_(0, rows, result * shares[rows, choice].unsqueeze(-1))
    return total.to(x.dtype)
