"""Puts the exact CPU kernels in the place of SGLang's own, through SGLang's hook registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.platforms import current_platform
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from sglang_wavepp.cpu import fork


@dataclass(frozen=True)
class KernelHook:
    """One place of SGLang that this platform changes.

    Attributes:
        target: dotted path of the function, method or class.
        hook: what is registered there.
        kind: how it is registered.
        why: what goes wrong without it on a machine without a GPU.
    """

    target: str
    hook: Any
    kind: HookType
    why: str


def register() -> None:
    """Entry point form: install everything when this process runs on the CPU reference platform."""
    if is_active():
        install()
        fork.install(HookRegistry.apply_hooks)


def is_active() -> bool:
    """Whether SGLang resolved this process's platform to the CPU reference platform."""
    from sglang_wavepp.cpu.reference_platform import CpuReferencePlatform

    return isinstance(current_platform, CpuReferencePlatform)


def install() -> None:
    """Register all kernel hooks; SGLang applies them when its plugins have loaded."""
    for entry in kernel_hooks():
        HookRegistry.register(entry.target, entry.hook, entry.kind)
    replace_row_functions()
    absorb_latent_attention_always()
    skip_memory_pinning()


def kernel_hooks() -> tuple[KernelHook, ...]:
    """All hooks that go through SGLang's registry."""
    return (*_triton_replacements(), *_exact_products(), *_exact_attention())


def _triton_replacements() -> tuple[KernelHook, ...]:
    from sglang_wavepp.cpu.kernels import gated_norm, kda_kernel, short_convolution, snapshot_tracking

    convolution = "sglang.kernels.ops.mamba.causal_conv1d_triton."
    tracking = "sglang.kernels.ops.mamba.mamba_state_scatter_triton."
    no_driver = "a Triton kernel; without a GPU driver it cannot be launched"
    return tuple(
        KernelHook(target, hook, HookType.REPLACE, no_driver)
        for target, hook in (
            (convolution + "causal_conv1d_fn", short_convolution.extend_convolution),
            (convolution + "causal_conv1d_update", short_convolution.decode_convolution),
            (tracking + "track_mamba_states_if_needed", snapshot_tracking.track_one_layer),
            (tracking + "track_mamba_states_all_layers", snapshot_tracking.track_all_layers),
            ("sglang.kernels.ops.attention.fla.fused_norm_gate.rms_norm_gated", gated_norm.gated_rms_norm),
            (
                "sglang.srt.layers.attention.linear.kernels.kda_triton.TritonKDAKernel",
                kda_kernel.ExactKdaKernel,
            ),
        )
    )


def _exact_products() -> tuple[KernelHook, ...]:
    from sglang_wavepp.cpu.kernels import experts, linear

    layers = "sglang.srt.layers."
    rounding = "sums in bfloat16 or float32 depend on the number of rows in the batch"
    return (
        KernelHook(
            layers + "quantization.unquant.UnquantizedLinearMethod.apply",
            linear.apply_linear,
            HookType.REPLACE,
            rounding,
        ),
        KernelHook(
            layers + "linear.ColumnParallelBatchedLinear.forward",
            linear.apply_batched_linear,
            HookType.REPLACE,
            rounding,
        ),
        KernelHook(
            layers + "logits_processor.LogitsProcessor._compute_lm_head",
            linear.compute_logits,
            HookType.AROUND,
            rounding,
        ),
        KernelHook(
            "sglang.srt.models.kimi_linear.KimiLinearForCausalLM.post_load_weights",
            linear.absorb_latent_weights,
            HookType.AFTER,
            rounding,
        ),
        KernelHook(
            "sglang.srt.models.qwen3.Qwen3ForCausalLM.load_weights",
            linear.forget_after_load,
            HookType.AFTER,
            "float64 copies of weights must not outlive the weights",
        ),
        KernelHook(
            layers + "moe.fused_moe_native.moe_forward_native",
            experts.apply_experts,
            HookType.REPLACE,
            rounding,
        ),
        KernelHook(layers + "moe.topk.biased_grouped_topk_impl", experts.route, HookType.REPLACE, rounding),
    )


def _exact_attention() -> tuple[KernelHook, ...]:
    from sglang_wavepp.cpu.kernels import attention, kda_kernel

    backend = "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend."
    recurrent = "sglang.srt.layers.attention.hybrid_linear_attn_backend.MambaAttnBackendBase."
    return (
        KernelHook(
            backend + "_run_sdpa_forward_extend",
            attention.extend_attention,
            HookType.AROUND,
            "a chunk is padded to its whole context: the cost of a prompt is cubic, its bits depend on the chunks",
        ),
        KernelHook(
            backend + "_run_sdpa_forward_decode",
            attention.decode_attention,
            HookType.AROUND,
            "decode bits differ from prefill bits, one call per request",
        ),
        KernelHook(
            recurrent + "_track_mamba_state_extend",
            kda_kernel.record_tracked_states,
            HookType.AROUND,
            "snapshots would be rounded to float32",
        ),
        KernelHook(
            "sglang.srt.configs.mamba_utils.mamba2_state_dtype",
            kda_kernel.exact_state_dtype,
            HookType.AROUND,
            "states would be rounded to float32 where a span ends",
        ),
    )


def replace_row_functions() -> None:
    """Norms and activations, through SGLang's registry of out-of-tree forwards."""
    from sglang.kernels.fused_op import BaseFusedOp
    from sglang.srt.layers.activation import SiluAndMul
    from sglang.srt.layers.layernorm import RMSNorm

    from sglang_wavepp.cpu.kernels import norms

    key = current_platform.get_dispatch_key_name()
    BaseFusedOp.register_oot_forward(RMSNorm, norms.rms_norm, key)
    BaseFusedOp.register_oot_forward(SiluAndMul, norms.silu_and_mul, key)


def absorb_latent_attention_always() -> None:
    """Make latent attention read and write the latent cache in every step.

    SGLang's table has no entry for this backend and would fall back to expanded keys for prefix-free spans, which
    torch_native cannot read back from the latent pool.
    """
    from sglang.srt.models.deepseek_common.attention_backend_handler import AttentionBackendRegistry
    from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import AttnForwardMethod

    AttentionBackendRegistry.register("torch_native", lambda attention, batch: AttnForwardMethod.MLA)


def skip_memory_pinning() -> None:
    """SGLang pins the recurrent tracking mask unconditionally; without a GPU driver pinning raises."""
    if not torch.cuda.is_available():
        torch.Tensor.pin_memory = _unpinned


def _unpinned(self: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return self
