"""Kimi delta attention behind SGLang's kernel interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from sglang.srt.layers.attention.linear.kernels.kernel_backend import LinearAttnKernelBase

from sglang_wavepp import faults
from sglang_wavepp.cpu.kernels import delta_rule

#: Tokens per unit of ``track_chunk_idx``.
TRACK_UNIT = 64


class ExactKdaKernel(LinearAttnKernelBase):
    """Takes the place of the Triton kernel: float64 inside, each output rounded once."""

    supports_packed_decode = False
    supports_fused_chain_verify = False
    supports_track_state_snapshot = True

    def decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        *,
        A_log: torch.Tensor,
        dt_bias: torch.Tensor,
        ssm_states: torch.Tensor,
        cache_indices: torch.Tensor,
        query_start_loc: torch.Tensor,
        lower_bound: float | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """One token per row: q, k [1, rows, heads, keys], v [1, rows, heads, values] -> shape of `v`.

        Rows whose slot is negative are padding: no state is touched, their output is unspecified.
        """
        rows, heads, keys = q.shape[1:]
        values, flat = v.shape[-1], rows * heads
        log_decay = _log_decay(a.reshape(rows, heads, keys), A_log, dt_bias, lower_bound)
        slots = cache_indices.long()
        state = ssm_states[slots.clamp(min=0)].double().view(flat, values, keys)
        out = delta_rule.step(
            state,
            (_unit(q[0]) * keys**-0.5).view(flat, keys),
            _unit(k[0]).view(flat, keys),
            v[0].double().reshape(flat, values),
            log_decay.exp().view(flat, keys),
            b.reshape(flat).double().sigmoid(),
        )
        live = slots >= 0
        ssm_states[slots[live]] = state.view(rows, heads, values, keys)[live].to(ssm_states.dtype)
        return out.view(1, rows, heads, values).to(v.dtype)

    def extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        *,
        ssm_states: torch.Tensor,
        cache_indices: torch.Tensor,
        query_start_loc: torch.Tensor,
        A_log: torch.Tensor | None = None,
        dt_bias: torch.Tensor | None = None,
        lower_bound: float | None = None,
        beta_is_raw: bool = False,
        return_intermediate_states: bool = False,
        track_state: torch.Tensor | None = None,
        track_chunk_idx: torch.Tensor | None = None,
        **_: Any,
    ) -> Any:
        """A packed batch of spans: q, k, g [1, tokens, heads, keys], v [1, tokens, heads, values].

        Advances the state of each span's slot. The state after ``64 * track_chunk_idx`` tokens of a span (none
        where the index is negative) goes to its row of `track_state`, rounded to that tensor's dtype.

        Returns:
            Output in the shape of `v`. With `return_intermediate_states`, ``(output, snapshots)``, where the
            snapshots are the tracked states in float64 [spans, heads, values, keys], or None without tracking.
        """
        if A_log is None or dt_bias is None:
            raise NotImplementedError(
                "the CPU reference kernel computes the gate itself: A_log and dt_bias are needed"
            )
        query = _unit(q[0]) * q.shape[-1] ** -0.5
        key, value = _unit(k[0]), v[0].double()
        log_decay = _log_decay(g[0], A_log, dt_bias, lower_bound)
        rate = beta[0].double().sigmoid() if beta_is_raw else beta[0].double()
        out = torch.zeros_like(v[0])
        bounds, slots = query_start_loc.tolist(), cache_indices.tolist()
        tracked = [-1] * len(slots) if track_chunk_idx is None else track_chunk_idx.tolist()
        snapshots = None
        if track_chunk_idx is not None:
            snapshots = ssm_states.new_zeros(len(slots), *ssm_states.shape[1:], dtype=torch.float64)
        for row, slot in enumerate(slots):
            span = slice(bounds[row], bounds[row + 1])
            if slot < 0 or span.stop <= span.start:
                continue
            after = TRACK_UNIT * tracked[row] if tracked[row] >= 0 else None
            state = ssm_states[slot].double()
            done = delta_rule.run(
                query[span], key[span], value[span], log_decay[span], rate[span], state, after
            )
            out[span] = done.out
            ssm_states[slot] = done.state
            if snapshots is not None and done.snapshot is not None:
                snapshots[row] = done.snapshot
        if track_state is not None and snapshots is not None:
            track_state.copy_(snapshots)
        result = out.unsqueeze(0)
        return (result, snapshots) if return_intermediate_states else result


def record_tracked_states(
    original: Callable[..., None],
    backend: Any,
    forward_batch: Any,
    h: torch.Tensor | None,
    ssm_states: torch.Tensor,
    forward_metadata: Any,
    track_states: torch.Tensor | None = None,
    *,
    h_track_buf: torch.Tensor | None = None,
) -> None:
    """Hand the kernel's float64 snapshots to SGLang's recording, whose own buffer is float32.

    A snapshot rounded to float32 would differ from the state that went on, and so would what follows from a hit.
    """
    exact = h if h_track_buf is not None and h is not None and h.shape == h_track_buf.shape else h_track_buf
    original(backend, forward_batch, h, ssm_states, forward_metadata, track_states, h_track_buf=exact)
    if forward_metadata.has_mamba_track_mask and faults.is_injected(faults.ZERO_SNAPSHOT):
        ssm_states[forward_metadata.track_ssm_h_dst] = 0
        ssm_states[forward_metadata.track_ssm_final_dst] = 0


def exact_state_dtype(original: Callable[..., Any], config: Any = None) -> Any:
    """Recurrent states in float64, unless ``SGLANG_MAMBA_SSM_DTYPE`` asks for something else.

    A state that is rounded at the end of a span would make the result depend on where spans end.
    """
    from dataclasses import replace

    from sglang.srt.environ import envs

    chosen = original(config)
    return chosen if envs.SGLANG_MAMBA_SSM_DTYPE.is_set() else replace(chosen, temporal=torch.float64)


def _unit(x: torch.Tensor) -> torch.Tensor:
    exact = x.double()
    return exact * torch.rsqrt(exact.square().sum(-1, keepdim=True) + 1e-6)


def _log_decay(
    raw: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor, lower_bound: float | None
) -> torch.Tensor:
    """[tokens, heads, keys] raw gate -> float64 log decay, at most 0."""
    heads, keys = raw.shape[-2:]
    shifted = raw.double() + dt_bias.double().view(heads, keys)
    speed = a_log.double().view(heads, 1).exp()
    return (
        -speed * F.softplus(shifted) if lower_bound is None else lower_bound * torch.sigmoid(speed * shifted)
    )
