"""Exact forms of SGLang's unquantized products with weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sglang_wavepp.cpu.kernels.exact_weights import AbsorbedWeight, exact_copy, exact_linear, forget_copies


def apply_linear(
    method: Any, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """A linear layer without quantization: x [..., inputs] -> [..., outputs] in the dtype of `x`."""
    return exact_linear(x, layer.weight, bias)


def apply_batched_linear(layer: Any, x: torch.Tensor) -> torch.Tensor:
    """x [batch, rows, inputs] times the layer's weight [batch, outputs, inputs] -> [batch, rows, outputs]."""
    return torch.bmm(x.double(), exact_copy(layer.weight).transpose(1, 2)).to(x.dtype)


def compute_logits(
    original: Callable[..., torch.Tensor],
    processor: Any,
    hidden_states: torch.Tensor,
    lm_head: Any,
    embedding_bias: torch.Tensor | None = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """[rows, hidden] -> [rows, vocabulary shard] float32, rounded once.

    A head that is not a plain weight (LoRA, quantized) goes to SGLang's own method.
    """
    weight = getattr(lm_head, "weight", None)
    if embedding_bias is not None or hasattr(lm_head, "set_lora") or weight is None:
        return original(processor, hidden_states, lm_head, embedding_bias, out=out)
    if not weight.dtype.is_floating_point:
        return original(processor, hidden_states, lm_head, embedding_bias, out=out)
    return (hidden_states.double() @ exact_copy(weight).T).float()


def absorb_latent_weights(result: Any, model: Any, *_: Any, **__: Any) -> None:
    """After a model derived its absorbed latent weights: make the products with them exact."""
    forget_copies()
    for layer_id in model.config.full_attention_layer_ids:
        if model.model.start_layer <= layer_id < model.model.end_layer:
            attention = model.model.layers[layer_id].self_attn
            attention.w_kc = AbsorbedWeight.wrap(attention.w_kc)
            attention.w_vc = AbsorbedWeight.wrap(attention.w_vc)


def forget_after_load(*_: Any, **__: Any) -> None:
    """After a model loaded weights: drop the float64 copies of the ones before."""
    forget_copies()
