"""Kimi delta attention behind SGLang's kernel interface."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from sglang.srt.layers.attention.linear.kernels.kernel_backend import LinearAttnKernelBase

from sglang_wavepp import faults
from sglang_wavepp.cpu.kernels.delta_rule import run_tokens

#: Tokens per unit of ``track_chunk_idx``.
TRACK_UNIT = 64


class ExactKdaKernel(LinearAttnKernelBase):
    """Takes the place of the Triton kernel: float64 inside, rounded once per output."""

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
        log_decay = _log_decay(a.reshape(rows, heads, keys), A_log, dt_bias, lower_bound)
        slots = cache_indices.long()
        live = slots >= 0
        state = ssm_states[slots.clamp(min=0)].double()
        values = state.shape[-2]
        flat = (state * log_decay.exp().unsqueeze(-2)).view(rows * heads, values, keys)
        key = _unit(k[0]).reshape(rows * heads, keys, 1)
        query = (_unit(q[0]) * keys**-0.5).reshape(rows * heads, keys, 1)
        value = v[0].double().reshape(rows * heads, values, 1)
        rate = b.reshape(rows * heads, 1, 1).double().sigmoid()
        update = torch.baddbmm(value, flat, key, alpha=-1).mul_(rate)
        flat = flat.baddbmm_(update, key.transpose(1, 2))
        out = torch.bmm(flat, query).view(1, rows, heads, values)
        ssm_states[slots[live]] = flat.view(rows, heads, values, keys)[live].to(ssm_states.dtype)
        return out.to(v.dtype)

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

        Advances the state of each span's slot and writes the state after ``64 * track_chunk_idx`` tokens of a
        span into its row of `track_state` (none where the index is negative).

        Returns:
            Output in the shape of `v`, or ``(output, None)`` with `return_intermediate_states`.
        """
        assert A_log is not None and dt_bias is not None, "KDA layers always have a gate"
        query = _unit(q[0]) * q.shape[-1] ** -0.5
        key, value = _unit(k[0]), v[0].double()
        log_decay = _log_decay(g[0], A_log, dt_bias, lower_bound)
        rate = beta[0].double().sigmoid() if beta_is_raw else beta[0].double()
        out = torch.zeros_like(value)
        bounds, slots = query_start_loc.tolist(), cache_indices.tolist()
        tracked = track_chunk_idx.tolist() if track_chunk_idx is not None else [-1] * len(slots)
        for row, slot in enumerate(slots):
            start, end = bounds[row], bounds[row + 1]
            if slot < 0 or end <= start:
                continue
            state = ssm_states[slot].double()
            cut = start + TRACK_UNIT * tracked[row] if tracked[row] >= 0 else start
            for part in (slice(start, cut), slice(cut, end)):
                out[part] = run_tokens(
                    query[part], key[part], value[part], log_decay[part], rate[part], state
                )
                if part.stop == cut and tracked[row] >= 0:
                    assert track_state is not None
                    track_state[row] = 0 if faults.is_injected(faults.ZERO_SNAPSHOT) else state
            ssm_states[slot] = state.to(ssm_states.dtype)
        result = out.unsqueeze(0).to(v.dtype)
        return (result, None) if return_intermediate_states else result


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
