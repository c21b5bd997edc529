"""Random weights under which a wrong cache shows: attention looks far back, recurrent states fade slowly."""

from __future__ import annotations

import math
from typing import Any

import torch

from sglang_wavepp.cpu.models.configurations import ModelKind, configuration

Weights = dict[str, torch.Tensor]


class _Draw:
    """Random tensors from one generator; the order of the draws is part of what a seed means."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, std: float | None = None) -> torch.Tensor:
        """Zero mean; the default deviation keeps the size of the input (fan in)."""
        scale = shape[-1] ** -0.5 if std is None else std
        return (torch.randn(*shape, generator=self._generator) * scale).to(torch.bfloat16)

    def uniform(self, *shape: int, low: float, high: float) -> torch.Tensor:
        return torch.rand(*shape, generator=self._generator) * (high - low) + low

    def near(self, centre: float, width: int) -> torch.Tensor:
        spread = torch.randn(width, generator=self._generator) * 0.1
        return (centre * (1 + spread)).to(torch.bfloat16)


def random_weights(kind: ModelKind, seed: int) -> Weights:
    """All tensors of a tiny model, named as the checkpoint format of its architecture names them."""
    config, draw = configuration(kind), _Draw(seed)
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    weights: Weights = {
        "model.embed_tokens.weight": draw.normal(vocabulary, hidden, std=1.0),
        "model.norm.weight": draw.near(1.0, hidden),
        "lm_head.weight": draw.normal(vocabulary, hidden, std=0.3),
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        weights[prefix + "input_layernorm.weight"] = draw.near(1.0, hidden)
        weights[prefix + "post_attention_layernorm.weight"] = draw.near(1.0, hidden)
        _add_attention(weights, prefix + "self_attn.", layer, config, draw)
        if config.get("num_experts") and layer >= config["first_k_dense_replace"]:
            _add_experts(weights, prefix + "block_sparse_moe.", config, draw)
        else:
            _add_mlp(weights, prefix + "mlp.", hidden, config["intermediate_size"], draw)
    return weights


def _add_attention(weights: Weights, prefix: str, layer: int, config: dict[str, Any], draw: _Draw) -> None:
    recurrent = config.get("linear_attn_config")
    if recurrent is None:
        _add_grouped_attention(weights, prefix, config, draw)
    elif layer + 1 in recurrent["kda_layers"]:
        _add_delta_attention(weights, prefix, config["hidden_size"], recurrent, draw)
    else:
        _add_latent_attention(weights, prefix, config, draw)


def _add_grouped_attention(weights: Weights, prefix: str, config: dict[str, Any], draw: _Draw) -> None:
    hidden, width = config["hidden_size"], config["head_dim"]
    queries, pairs = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
    weights[prefix + "q_proj.weight"] = draw.normal(queries, hidden)
    weights[prefix + "k_proj.weight"] = draw.normal(pairs, hidden)
    weights[prefix + "v_proj.weight"] = draw.normal(pairs, hidden, std=2 * hidden**-0.5)
    weights[prefix + "o_proj.weight"] = draw.normal(hidden, queries)
    # Norms above 1 sharpen the softmax: few positions carry most of the weight, so that a missing one shows.
    weights[prefix + "q_norm.weight"] = draw.near(1.6, width)
    weights[prefix + "k_norm.weight"] = draw.near(1.6, width)


def _add_delta_attention(
    weights: Weights, prefix: str, hidden: int, recurrent: dict[str, Any], draw: _Draw
) -> None:
    heads, width, taps = recurrent["num_heads"], recurrent["head_dim"], recurrent["short_conv_kernel_size"]
    inner = heads * width
    for name in "qkv":
        weights[prefix + f"{name}_proj.weight"] = draw.normal(inner, hidden)
        weights[prefix + f"{name}_conv1d.weight"] = draw.normal(inner, 1, taps, std=0.5).float()
    weights[prefix + "b_proj.weight"] = draw.normal(heads, hidden)
    for name in "fg":
        weights[prefix + f"{name}_a_proj.weight"] = draw.normal(width, hidden)
        weights[prefix + f"{name}_b_proj.weight"] = draw.normal(inner, width)
    # Slow decay (0.99 and more per token in most channels): a state still holds tokens from far back.
    weights[prefix + "A_log"] = draw.uniform(1, 1, heads, 1, low=0.02, high=1.0).log()
    step = draw.uniform(inner, low=0.002, high=0.1)
    weights[prefix + "dt_bias"] = step + torch.log(-torch.expm1(-step))
    weights[prefix + "o_norm.weight"] = draw.near(1.0, width)
    weights[prefix + "o_proj.weight"] = draw.normal(hidden, inner)


def _add_latent_attention(weights: Weights, prefix: str, config: dict[str, Any], draw: _Draw) -> None:
    hidden, heads, latent = config["hidden_size"], config["num_attention_heads"], config["kv_lora_rank"]
    plain, rotary, values = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    weights[prefix + "q_proj.weight"] = draw.normal(
        heads * (plain + rotary), hidden, std=2 / math.sqrt(hidden)
    )
    weights[prefix + "kv_a_proj_with_mqa.weight"] = draw.normal(latent + rotary, hidden)
    weights[prefix + "kv_a_layernorm.weight"] = draw.near(1.0, latent)
    weights[prefix + "kv_b_proj.weight"] = draw.normal(heads * (plain + values), latent)
    weights[prefix + "o_proj.weight"] = draw.normal(hidden, heads * values)


def _add_experts(weights: Weights, prefix: str, config: dict[str, Any], draw: _Draw) -> None:
    hidden, width, experts = config["hidden_size"], config["moe_intermediate_size"], config["num_experts"]
    weights[prefix + "gate.weight"] = draw.normal(experts, hidden)
    weights[prefix + "gate.e_score_correction_bias"] = draw.uniform(experts, low=-0.05, high=0.05)
    for expert in range(experts):
        name = prefix + f"experts.{expert}."
        weights[name + "w1.weight"] = draw.normal(width, hidden)
        weights[name + "w3.weight"] = draw.normal(width, hidden)
        weights[name + "w2.weight"] = draw.normal(hidden, width)
    _add_mlp(weights, prefix + "shared_experts.", hidden, width * config["num_shared_experts"], draw)


def _add_mlp(weights: Weights, prefix: str, hidden: int, width: int, draw: _Draw) -> None:
    weights[prefix + "gate_proj.weight"] = draw.normal(width, hidden)
    weights[prefix + "up_proj.weight"] = draw.normal(width, hidden)
    weights[prefix + "down_proj.weight"] = draw.normal(hidden, width)
