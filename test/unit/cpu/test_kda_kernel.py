"""The kernel that SGLang's KDA backend calls."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from sglang_wavepp import faults
from sglang_wavepp.cpu.kernels.kda_kernel import ExactKdaKernel, exact_state_dtype, record_tracked_states

HEADS, KEYS, VALUES, TOKENS = 2, 16, 16, 150


class Inputs:
    """Random projections of one sequence, as the layer hands them over."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator)

        self.q, self.k, self.gate = (normal(1, TOKENS, HEADS, KEYS).bfloat16() for _ in range(3))
        self.v = normal(1, TOKENS, HEADS, VALUES).bfloat16()
        self.beta = normal(1, TOKENS, HEADS).bfloat16()
        self.a_log = normal(1, 1, HEADS, 1)
        self.dt_bias = normal(HEADS * KEYS) - 3


def extend(
    inputs: Inputs, pool: torch.Tensor, slot: int, start: int, end: int, track: int | None = None, **more: Any
) -> Any:
    tracking: dict[str, Any] = {}
    if track is not None:
        tracking = {"track_state": torch.empty(1, *pool.shape[1:]), "track_chunk_idx": torch.tensor([track])}
    return ExactKdaKernel().extend(
        inputs.q[:, start:end],
        inputs.k[:, start:end],
        inputs.v[:, start:end],
        inputs.gate[:, start:end],
        inputs.beta[:, start:end],
        ssm_states=pool,
        cache_indices=torch.tensor([slot]),
        query_start_loc=torch.tensor([0, end - start]),
        A_log=inputs.a_log,
        dt_bias=inputs.dt_bias,
        beta_is_raw=True,
        return_intermediate_states=track is not None,
        **tracking,
        **more,
    )


def empty_pool() -> torch.Tensor:
    return torch.zeros(4, HEADS, VALUES, KEYS, dtype=torch.float64)


def reference(inputs: Inputs, end: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [tokens, heads, values] and final state, token by token from the published formulas."""
    q, k = (F.normalize(x[0].double(), dim=-1, eps=1e-12) for x in (inputs.q, inputs.k))
    q, v = q * KEYS**-0.5, inputs.v[0].double()
    speed = inputs.a_log.double().view(HEADS, 1).exp()
    decay = (-speed * F.softplus(inputs.gate[0].double() + inputs.dt_bias.double().view(HEADS, KEYS))).exp()
    beta, state, outs = inputs.beta[0].double().sigmoid(), torch.zeros(HEADS, VALUES, KEYS).double(), []
    for t in range(end):
        state = state * decay[t][:, None, :]
        miss = v[t] - torch.einsum("hvk,hk->hv", state, k[t])
        state = state + torch.einsum("h,hv,hk->hvk", beta[t], miss, k[t])
        outs.append(torch.einsum("hvk,hk->hv", state, q[t]))
    return torch.stack(outs), state


def test_extend_agrees_with_the_formulas() -> None:
    inputs, pool = Inputs(), empty_pool()
    out = extend(inputs, pool, 1, 0, TOKENS)
    expected, state = reference(inputs, TOKENS)
    assert (out[0].double() - expected).abs().max() < 4e-3  # bfloat16
    assert (pool[1] - state).abs().max() < 1e-5  # the formulas above have no epsilon under the root
    assert pool[0].count_nonzero() == pool[2].count_nonzero() == 0


@pytest.mark.parametrize("cuts", [[0, 64, 150], [0, 1, 2, 3, 150], [0, 33, 97, 149, 150]])
def test_cuts_do_not_show(cuts: list[int]) -> None:
    inputs, whole, pool = Inputs(1), empty_pool(), empty_pool()
    expected = extend(inputs, whole, 1, 0, TOKENS)
    parts = [extend(inputs, pool, 1, start, end) for start, end in itertools.pairwise(cuts)]
    assert torch.equal(torch.cat(parts, dim=1), expected)
    assert torch.equal(pool.float(), whole.float())


def test_decode_continues_an_extend() -> None:
    inputs, whole, pool = Inputs(2), empty_pool(), empty_pool()
    expected = extend(inputs, whole, 2, 0, TOKENS)
    extend(inputs, pool, 2, 0, 140)
    for t in range(140, TOKENS):
        out = decode(inputs, pool, [2], t)
        assert torch.equal(out, expected[:, t : t + 1])
    assert torch.equal(pool.float(), whole.float())


def decode(inputs: Inputs, pool: torch.Tensor, slots: list[int], t: int) -> torch.Tensor:
    rows = len(slots)

    def row(x: torch.Tensor) -> torch.Tensor:
        return x[:, t : t + 1].expand(1, rows, *x.shape[2:])

    return ExactKdaKernel().decode(
        row(inputs.q),
        row(inputs.k),
        row(inputs.v),
        row(inputs.gate)[0].flatten(1),
        row(inputs.beta),
        A_log=inputs.a_log,
        dt_bias=inputs.dt_bias,
        ssm_states=pool,
        cache_indices=torch.tensor(slots, dtype=torch.int32),
        query_start_loc=torch.arange(rows + 1),
    )


def test_padding_rows_touch_no_state() -> None:
    inputs, alone, padded = Inputs(3), empty_pool(), empty_pool()
    extend(inputs, alone, 3, 0, 100)
    padded.copy_(alone)
    assert torch.equal(decode(inputs, alone, [3], 100)[:, 0], decode(inputs, padded, [-1, 3, -1], 100)[:, 1])
    assert torch.equal(padded, alone)

    before = padded.clone()
    out = extend(inputs, padded, -1, 0, 50)
    assert torch.equal(padded, before)
    assert out.count_nonzero() == 0


@pytest.mark.parametrize("track", [1, 2])
def test_a_tracked_state_is_the_state_of_a_run_that_ends_there(track: int) -> None:
    inputs, pool, short = Inputs(4), empty_pool(), empty_pool()
    _, snapshots = extend(inputs, pool, 1, 0, TOKENS, track=track)
    extend(inputs, short, 1, 0, 64 * track)
    assert snapshots.dtype is torch.float64
    assert (snapshots[0] - short[1]).abs().max() < 1e-14


def test_the_callers_own_buffer_is_filled_and_a_negative_index_tracks_nothing() -> None:
    inputs, pool = Inputs(4), empty_pool()
    buffer = torch.full((2, HEADS, VALUES, KEYS), 7.0)
    _, snapshots = ExactKdaKernel().extend(
        *(torch.cat([x, x], dim=1) for x in (inputs.q, inputs.k, inputs.v, inputs.gate, inputs.beta)),
        ssm_states=pool,
        cache_indices=torch.tensor([1, 2]),
        query_start_loc=torch.tensor([0, TOKENS, 2 * TOKENS]),
        A_log=inputs.a_log,
        dt_bias=inputs.dt_bias,
        beta_is_raw=True,
        return_intermediate_states=True,
        track_state=buffer,
        track_chunk_idx=torch.tensor([-1, 1]),
    )
    assert torch.equal(buffer, snapshots.float())
    assert buffer[0].count_nonzero() == 0
    assert buffer[1].count_nonzero() > 0
    assert torch.equal(pool[1].float(), pool[2].float())


class Recording:
    """Stands in for SGLang's method: stores what it is given."""

    def __init__(self) -> None:
        self.buffer: torch.Tensor | None = None

    def __call__(self, *args: Any, h_track_buf: torch.Tensor | None = None) -> None:
        self.buffer = h_track_buf


def tracked_metadata() -> SimpleNamespace:
    return SimpleNamespace(
        has_mamba_track_mask=True, track_ssm_h_dst=torch.tensor([1]), track_ssm_final_dst=torch.tensor([2])
    )


def test_recording_gets_the_float64_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(faults.FAULT_VARIABLE, raising=False)
    exact, rounded = torch.ones(1, 2, dtype=torch.float64), torch.zeros(1, 2)
    recording, pool = Recording(), torch.ones(4, 2)
    record_tracked_states(recording, None, None, exact, pool, tracked_metadata(), h_track_buf=rounded)
    assert recording.buffer is exact
    record_tracked_states(recording, None, None, None, pool, tracked_metadata(), h_track_buf=rounded)
    assert recording.buffer is rounded
    assert torch.equal(pool, torch.ones(4, 2))


def test_the_zero_snapshot_fault_zeroes_what_was_recorded_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(faults.FAULT_VARIABLE, faults.ZERO_SNAPSHOT)
    pool = torch.ones(4, 2)
    record_tracked_states(Recording(), None, None, None, pool, tracked_metadata())
    assert pool[:, 0].tolist() == [1, 0, 0, 1]


def test_states_are_float64_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.configs.mamba_utils import Mamba2StateDType

    def upstream(config: Any = None) -> Any:
        return Mamba2StateDType(conv=torch.bfloat16, temporal=torch.float32)

    monkeypatch.delenv("SGLANG_MAMBA_SSM_DTYPE", raising=False)
    assert exact_state_dtype(upstream).temporal is torch.float64
    monkeypatch.setenv("SGLANG_MAMBA_SSM_DTYPE", "float32")
    assert exact_state_dtype(upstream).temporal is torch.float32
