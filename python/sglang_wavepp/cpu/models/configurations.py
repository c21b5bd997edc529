"""Configurations of the tiny models. Eight layers each, so that up to eight stages hold at least one."""

from __future__ import annotations

from enum import Enum
from typing import Any

VOCABULARY = 2048
LAYERS = 8
HIDDEN = 128
HEADS = 4
HEAD_WIDTH = 32
MAX_POSITIONS = 32768

#: Token ids of the special tokens, in the order in which the tokenizer makes them.
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_TURN = 2

#: Layers (counted from 1) of the hybrid models that hold full attention; the others are recurrent.
FULL_ATTENTION_LAYERS = (4, 8)


class ModelKind(str, Enum):
    """What a tiny model is made of."""

    DENSE = "dense"
    HYBRID = "hybrid"
    HYBRID_MOE = "hybrid-moe"


def configuration(kind: ModelKind) -> dict[str, Any]:
    """Contents of ``config.json`` for `kind`."""
    if kind is ModelKind.DENSE:
        return {**_common(), **_dense()}
    experts = _experts() if kind is ModelKind.HYBRID_MOE else {}
    return {**_common(), **_hybrid(), **experts}


def _common() -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "head_dim": HEAD_WIDTH,
        "intermediate_size": 256,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "pad_token_id": 0,
        "bos_token_id": 0,
        "eos_token_id": END_OF_TURN,
        "tie_word_embeddings": False,
        "max_position_embeddings": MAX_POSITIONS,
        "torch_dtype": "bfloat16",
    }


def _dense() -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "max_window_layers": LAYERS,
    }


def _hybrid() -> dict[str, Any]:
    recurrent = [layer for layer in range(1, LAYERS + 1) if layer not in FULL_ATTENTION_LAYERS]
    return {
        "architectures": ["KimiLinearForCausalLM"],
        "model_type": "kimi_linear",
        "num_key_value_heads": HEADS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "model_max_length": MAX_POSITIONS,
        "kv_lora_rank": 32,
        "q_lora_rank": None,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "mla_use_nope": True,
        "linear_attn_config": {
            "kda_layers": recurrent,
            "full_attn_layers": list(FULL_ATTENTION_LAYERS),
            "num_heads": HEADS,
            "head_dim": HEAD_WIDTH,
            "short_conv_kernel_size": 4,
        },
        "first_k_dense_replace": 1,
    }


def _experts() -> dict[str, Any]:
    return {
        "num_experts": 8,
        "num_experts_per_token": 2,
        "moe_intermediate_size": 64,
        "num_shared_experts": 1,
        "moe_router_activation_func": "sigmoid",
        "moe_renormalize": True,
        "routed_scaling_factor": 2.446,
        "num_expert_group": 1,
        "topk_group": 1,
        "use_grouped_topk": True,
        "moe_layer_freq": 1,
    }
