"""Hooks of the CPU reference platform. ``sglang_wavepp.cpu.hooks`` makes them; here is why, and their fingerprints."""

from __future__ import annotations

from sgl_patches import applied, scheduler
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
        target="sglang.srt.layers.quantization.unquant.UnquantizedLinearMethod.apply",
        kind=Kind.REPLACE,
        why="products with one rounding, so that no bit depends on how many rows share a batch",
        breaks_without="outputs depend on the batch, the chunk size and the number of stages",
        fingerprint="11e7b198f20939f4",
        needed_by=NeededBy.CPU,
    ),
    Patch(
        target="sglang.srt.layers.linear.ColumnParallelBatchedLinear.forward",
        kind=Kind.REPLACE,
        why="products with one rounding, so that no bit depends on how many rows share a batch",
        breaks_without="outputs depend on the batch, the chunk size and the number of stages",
        fingerprint="bfffc71205c06b65",
        needed_by=NeededBy.CPU,
    ),
    Patch(
        target="sglang.srt.layers.logits_processor.LogitsProcessor._compute_lm_head",
        kind=Kind.AROUND,
        why="logits with one rounding, so that no bit depends on how many rows share a batch",
        breaks_without="two requests in one batch can change each other's tokens",
        fingerprint="f7a52e9807998d90",
        needed_by=NeededBy.CPU,
    ),
    Patch(
        target="sglang.srt.models.kimi_linear.KimiLinearForCausalLM.post_load_weights",
        kind=Kind.AFTER,
        why="prepares the absorbed weights of latent attention for exact products",
        breaks_without="latent attention rounds its products in an order that depends on the batch",
        fingerprint="c2c0dc8506dba4bc",
        needed_by=NeededBy.CPU,
    ),
    Patch(
        target="sglang.srt.models.qwen3.Qwen3ForCausalLM.load_weights",
        kind=Kind.AFTER,
        why="drops exact copies of weights when the weights are loaded anew",
        breaks_without="a weight update is not seen by exact products",
        fingerprint="498eab97c4a5f236",
        needed_by=NeededBy.CPU,
    ),
    Patch(
        target="sglang.srt.layers.moe.fused_moe_native.moe_forward_native",
        kind=Kind.REPLACE,
        why="expert products with one rounding, so that no bit depends on which tokens share an expert",
        breaks_without="outputs of a mixture of experts depend on the batch",
        fingerprint="86301960433aa08d",
        needed_by=NeededBy.CPU,
    ),
    Patch(
        target="sglang.srt.layers.moe.topk.biased_grouped_topk_impl",
        kind=Kind.REPLACE,
        why="routing scores with one rounding, so that a token goes to the same experts in every batch",
        breaks_without="a token may be routed to other experts in another batch",
        fingerprint="8136715c1fe00455",
        needed_by=NeededBy.CPU,
    ),
    Patch(
        target="sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend._run_sdpa_forward_extend",
        kind=Kind.AROUND,
        why="attention of the rows of a span only; the original pads every span to its whole context",
        breaks_without="the time of a prompt grows with the cube of its length, and its bits depend on the chunks",
        fingerprint="7c9c38ebaab41d35",
        needed_by=NeededBy.CPU,
    ),
    Patch(
        target="sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend._run_sdpa_forward_decode",
        kind=Kind.AROUND,
        why="decode attention whose bits equal those of prefill attention",
        breaks_without="a decoded token and the same token in a prompt give different states",
        fingerprint="acddc0bbb614cf2f",
        needed_by=NeededBy.CPU,
    ),
    Patch(
        target="sglang.srt.layers.attention.hybrid_linear_attn_backend.MambaAttnBackendBase._track_mamba_state_extend",
        kind=Kind.AROUND,
        why="records snapshots in the precision of the recurrence",
        breaks_without="a prefix hit restores a rounded state",
        fingerprint="8ed12d675789e1dc",
        needed_by=NeededBy.CPU,
    ),
    Patch(
        target="sglang.srt.configs.mamba_utils.mamba2_state_dtype",
        kind=Kind.AROUND,
        why="keeps recurrent states in the precision of the recurrence",
        breaks_without="states are rounded where a span ends, so outputs depend on the chunks",
        fingerprint="b3c3854a4210be34",
        needed_by=NeededBy.CPU,
    ),
    Patch(
        target="sglang.kernels.fused_op.BaseFusedOp.register_oot_forward",
        kind=Kind.REGISTER,
        why="names row-wise norms and activations for this platform",
        breaks_without="a norm's last bits depend on how many rows share a batch",
        fingerprint="b0346e8dfebf7d02",
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
    """Register the replacements and the start by fork; the check in every scheduler covers the replacements."""
    from sglang_wavepp.cpu import fork, hooks

    hooks.install()
    for entry in hooks.kernel_hooks():
        applied.expect(entry.target, entry.hook)
    scheduler.install_check()
    # Hooks of WavePP's own are in place before that: they are installed when the launcher checks its arguments.
    fork.install(before_fork=applied.apply)
