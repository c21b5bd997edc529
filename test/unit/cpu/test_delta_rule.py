"""The chunked delta rule against a token recurrence written out here."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_wavepp.cpu.kernels import delta_rule

HEADS, KEYS, VALUES = 2, 8, 6
TINY = 1e-13


class Tokens(NamedTuple):
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    log_decay: torch.Tensor
    beta: torch.Tensor

    def cut(self, start: int, end: int) -> Tokens:
        return Tokens(*(part[start:end] for part in self))


def draw(tokens: int, seed: int = 0, fade: float = 0.05) -> Tokens:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def unit(x: torch.Tensor) -> torch.Tensor:
        return x / x.norm(dim=-1, keepdim=True)

    return Tokens(
        unit(normal(tokens, HEADS, KEYS)),
        unit(normal(tokens, HEADS, KEYS)),
        normal(tokens, HEADS, VALUES),
        -normal(tokens, HEADS, KEYS).abs() * fade,
        normal(tokens, HEADS).sigmoid(),
    )


def recurrence(tokens: Tokens, state: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Outputs, and the state before each token and after the last one."""
    outs, states = [], [state]
    for q, k, v, log_decay, beta in zip(*tokens, strict=True):
        faded = states[-1] * log_decay.exp()[:, None, :]
        miss = v - torch.einsum("hvk,hk->hv", faded, k)
        states.append(faded + beta[:, None, None] * torch.einsum("hv,hk->hvk", miss, k))
        outs.append(torch.einsum("hvk,hk->hv", states[-1], q))
    return torch.stack(outs), states


def start_state(seed: int = 9) -> torch.Tensor:
    return torch.randn(
        HEADS, VALUES, KEYS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 64, 65, 150])
def test_chunks_agree_with_the_token_recurrence(count: int) -> None:
    tokens, state = draw(count), start_state()
    outs, states = recurrence(tokens, state)
    done = delta_rule.run(*tokens, state)
    assert (done.out - outs).abs().max() < TINY
    assert (done.state - states[-1]).abs().max() < TINY
    assert done.snapshot is None


@pytest.mark.parametrize("after", [0, 64, 128, 192])
def test_a_snapshot_is_the_state_at_that_position(after: int) -> None:
    tokens, state = draw(192, seed=2), start_state()
    _, states = recurrence(tokens, state)
    done = delta_rule.run(*tokens, state, snapshot_after=after)
    assert done.snapshot is not None
    assert (done.snapshot - states[after]).abs().max() < TINY


def test_a_snapshot_stays_what_it_was_when_the_run_goes_on() -> None:
    tokens, state = draw(128, seed=3), start_state()
    early = delta_rule.run(*tokens.cut(0, 64), state, snapshot_after=64).snapshot
    late = delta_rule.run(*tokens, state, snapshot_after=64).snapshot
    assert early is not None
    assert late is not None
    assert (early - late).abs().max() < TINY


@pytest.mark.parametrize("after", [63, 20, -64, 128])
def test_a_snapshot_off_the_chunk_grid_or_past_the_end_is_refused(after: int) -> None:
    with pytest.raises(ValueError, match="snapshot"):
        delta_rule.run(*draw(100), start_state(), snapshot_after=after)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 90), min_size=1, max_size=5), st.integers(0, 1000))
def test_cuts_do_not_show_after_rounding(lengths: list[int], seed: int) -> None:
    tokens, state = draw(sum(lengths), seed), start_state(seed)
    whole = delta_rule.run(*tokens, state)
    outs, position = [], 0
    for length in lengths:
        part = delta_rule.run(*tokens.cut(position, position + length), state)
        outs.append(part.out)
        state, position = part.state, position + length
    assert torch.equal(torch.cat(outs).bfloat16(), whole.out.bfloat16())
    assert (state - whole.state).abs().max() < TINY


def test_a_decay_that_leaves_the_float_range_runs_token_by_token() -> None:
    tokens, state = draw(70, seed=5, fade=60.0), start_state()
    assert tokens.log_decay.cumsum(0).min() < -1000
    outs, states = recurrence(tokens, state)
    done = delta_rule.run(*tokens, state, snapshot_after=64)
    assert torch.isfinite(done.out).all()
    assert (done.out - outs).abs().max() < TINY
    assert (done.state - states[-1]).abs().max() < TINY
    assert done.snapshot is not None
    assert (done.snapshot - states[64]).abs().max() < TINY


def test_the_state_that_came_in_is_not_changed() -> None:
    state = start_state()
    delta_rule.run(*draw(40), state)
    assert torch.equal(state, start_state())
