"""Hooks of the CPU reference platform. ``sglang_wavepp.cpu.hooks`` makes them; here is why, and their fingerprints."""

from __future__ import annotations

from sgl_patches import applied
from sgl_patches.patch import Kind, NeededBy, Patch

_CONVOLUTION = "sglang.kernels.ops.mamba.causal_conv1d_triton"
_TRACKING = "sglang.kernels.ops.mamba.mamba_state_scatter_triton"

PATCHES = (
    Patch(
        target=f"{_CONVOLUTION}.causal_conv1d_fn",
        kind=Kind.REPLACE,
        why="short convolution of a span in torch; the original is a Triton kernel",
        breaks_without="a hybrid model cannot run a span: Triton finds no driver",
        fingerprint="c1d651098ccfab9b",
        needed_by=NeededBy.CPU,
    ),
    Patch(
        target=f"{_CONVOLUTION}.causal_conv1d_update",
        kind=Kind.REPLACE,
        why="short convolution of a decode step in torch; the original is a Triton kernel",
        breaks_without="a hybrid model cannot decode: Triton finds no driver",
        fingerprint="f8b32735766e246e",
        needed_by=NeededBy.CPU,
    ),
    Patch(
        target=f"{_TRACKING}.track_mamba_states_if_needed",
        kind=Kind.REPLACE,
        why="copies tracked recurrent states of one layer in torch; the original is a Triton kernel",
        breaks_without="a decode step that takes a snapshot fails",
        fingerprint="88e772e27690da73",
        needed_by=NeededBy.CPU,
    ),
    Patch(
        target=f"{_TRACKING}.track_mamba_states_all_layers",
        kind=Kind.REPLACE,
        why="copies tracked recurrent states of all layers in torch; the original is a Triton kernel",
        breaks_without="a decode step that takes a snapshot fails",
        fingerprint="148d22421313f1cd",
        needed_by=NeededBy.CPU,
    ),
    Patch(
        target="sglang.kernels.ops.attention.fla.fused_norm_gate.rms_norm_gated",
        kind=Kind.REPLACE,
        why="gated norm in torch; the original is a Triton kernel",
        breaks_without="a hybrid model cannot run: Triton finds no driver",
        fingerprint="38a6e710e8b88c93",
        needed_by=NeededBy.CPU,
    ),
    Patch(
        target="sglang.srt.layers.attention.linear.kernels.kda_triton.TritonKDAKernel",
        kind=Kind.REPLACE,
        why="delta-rule recurrence in torch, whose bits do not depend on where a sequence is cut",
        breaks_without="a hybrid model cannot run, and outputs would depend on the chunk size",
        fingerprint="d6fe5594270cdfd0",
        needed_by=NeededBy.CPU,
    ),
    Patch(
        target="sglang.srt.models.deepseek_common.attention_backend_handler.AttentionBackendRegistry.register",
        kind=Kind.REGISTER,
        why="names the absorbed form of MLA for the torch_native backend, which SGLang's table does not list",
        breaks_without="prefix-free spans write expanded keys that the latent cache cannot give back",
        fingerprint="7251d551bbd7d28f",
        needed_by=NeededBy.CPU,
    ),
    Patch(
        target="torch.Tensor.pin_memory",
        kind=Kind.REPLACE,
        why="SGLang pins the recurrent tracking mask without asking; there is nothing to pin for without a GPU",
        breaks_without="the first decode step of a hybrid model fails: no GPU driver",
        fingerprint="5d11ef18b38d759a",
        needed_by=NeededBy.CPU,
        source="sglang.srt.managers.schedule_batch.ScheduleBatch.prepare_for_decode",
    ),
)


def is_active() -> bool:
    """Whether this process runs on the CPU reference platform."""
    from sglang_wavepp.cpu import hooks

    return hooks.is_active()


def install() -> None:
    """Install the replacements and the start by fork, and count them among the hooks that must be in place."""
    from sglang_wavepp.cpu import fork, hooks

    hooks.install()
    for target, replacement in hooks.kernel_replacements().items():
        applied.expect(target, replacement)
    # Hooks of WavePP's own are in place before that: they are installed when the launcher checks its arguments.
    fork.install(before_fork=applied.apply)
