"""Puts the CPU kernels in the place of SGLang's Triton kernels, through SGLang's hook registry."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.platforms import current_platform
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from sglang_wavepp.cpu import fork


def register() -> None:
    """Entry point form: install the hooks when this process runs on the CPU reference platform."""
    if is_active():
        install()
        fork.install(HookRegistry.apply_hooks)


def is_active() -> bool:
    """Whether SGLang resolved this process's platform to the CPU reference platform."""
    from sglang_wavepp.cpu.reference_platform import CpuReferencePlatform

    return isinstance(current_platform, CpuReferencePlatform)


def install() -> None:
    """Register all kernel replacements; SGLang applies them when its plugins have loaded."""
    for target, replacement in kernel_replacements().items():
        HookRegistry.register(target, replacement, HookType.REPLACE)
    absorb_mla_always()
    skip_memory_pinning()


def kernel_replacements() -> dict[str, Any]:
    """Dotted SGLang target -> the function or class that takes its place."""
    from sglang_wavepp.cpu.kernels import gated_norm, kda_kernel, short_convolution, snapshot_tracking

    ops = "sglang.kernels.ops."
    return {
        ops + "mamba.causal_conv1d_triton.causal_conv1d_fn": short_convolution.extend_convolution,
        ops + "mamba.causal_conv1d_triton.causal_conv1d_update": short_convolution.decode_convolution,
        ops
        + "mamba.mamba_state_scatter_triton.track_mamba_states_if_needed": snapshot_tracking.track_one_layer,
        ops
        + "mamba.mamba_state_scatter_triton.track_mamba_states_all_layers": snapshot_tracking.track_all_layers,
        ops + "attention.fla.fused_norm_gate.rms_norm_gated": gated_norm.gated_rms_norm,
        "sglang.srt.layers.attention.linear.kernels.kda_triton.TritonKDAKernel": kda_kernel.ExactKdaKernel,
    }


def absorb_mla_always() -> None:
    """Make MLA layers read and write the latent cache in every step.

    SGLang's table has no entry for this backend and would fall back to expanded keys for prefix-free spans, which
    torch_native cannot read back from the latent pool.
    """
    from sglang.srt.models.deepseek_common.attention_backend_handler import AttentionBackendRegistry
    from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import AttnForwardMethod

    AttentionBackendRegistry.register("torch_native", lambda attention, batch: AttnForwardMethod.MLA)


def skip_memory_pinning() -> None:
    """SGLang pins the recurrent tracking mask unconditionally; without a GPU driver pinning raises."""
    if not torch.cuda.is_available():
        torch.Tensor.pin_memory = _unpinned  # type: ignore[method-assign]


def _unpinned(self: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return self
