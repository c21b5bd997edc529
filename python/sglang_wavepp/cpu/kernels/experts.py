"""Mixture of experts, exact: one float64 pass per expert, one rounding at the end."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from sglang_wavepp.cpu.kernels.exact_weights import exact_copy

#: Keeps the division of a row without any score from failing, as SGLang's own router does.
_SUM_EPSILON = 1e-20


def route(
    hidden_states: torch.Tensor,
    gating_output: torch.Tensor,
    correction_bias: torch.Tensor,
    topk: int,
    renormalize: bool,
    num_expert_group: int | None = None,
    topk_group: int | None = None,
    num_fused_shared_experts: int = 0,
    routed_scaling_factor: float | None = None,
    apply_routed_scaling_factor_on_output: bool | None = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose experts by biased sigmoid scores, in float64; equal scores go to the lower number.

    SGLang's own function is compiled when first called, which needs a C++ compiler and seconds per process.

    Args:
        hidden_states: unused, part of SGLang's signature.
        gating_output: [tokens, experts].
        correction_bias: [experts]; moves the choice, not the weights.

    Returns:
        Weights float32 and expert numbers int32, both [tokens, topk].

    Raises:
        NotImplementedError: expert groups or fused shared experts.
    """
    if num_fused_shared_experts or (num_expert_group or 1) > 1:
        raise NotImplementedError(
            "the CPU reference router knows neither expert groups nor fused shared experts"
        )
    scores = gating_output.double().sigmoid()
    ranked = (scores + correction_bias.double()).sort(dim=-1, descending=True, stable=True).indices
    chosen = ranked[:, :topk]
    weights = scores.gather(1, chosen)
    if renormalize:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + _SUM_EPSILON)
    if apply_routed_scaling_factor_on_output and routed_scaling_factor is not None:
        weights = weights * routed_scaling_factor
    return weights.float(), chosen.int()


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
