"""Copies of recurrent states into tracking slots after a decode step."""

from __future__ import annotations

import torch

from sglang_wavepp import faults


def track_one_layer(
    conv_states: torch.Tensor,
    ssm_states: torch.Tensor,
    cache_indices: torch.Tensor,
    mamba_track_mask: torch.Tensor,
    mamba_track_indices: torch.Tensor,
    batch_size: int,
    check_freed_slots: bool = False,
) -> None:
    """Copy the states of the masked rows into their tracking slots.

    Args:
        conv_states: [slots, ...].
        ssm_states: [slots, ...].
        cache_indices: [rows] source slots.
        mamba_track_mask: [rows] bool.
        mamba_track_indices: [rows] destination slots.
        batch_size: rows that count.
        check_freed_slots: skip rows whose source or destination is negative.
    """
    source, target = _rows(
        cache_indices, mamba_track_mask, mamba_track_indices, batch_size, check_freed_slots
    )
    if source.numel():
        conv_states[target] = conv_states[source]
        ssm_states[target] = _recorded(ssm_states[source])


def track_all_layers(
    conv_states_pool: torch.Tensor,
    ssm_states_pool: torch.Tensor,
    cache_indices: torch.Tensor,
    mamba_track_mask: torch.Tensor,
    mamba_track_indices: torch.Tensor,
    batch_size: int,
    check_freed_slots: bool = False,
) -> None:
    """As ``track_one_layer`` with pools of shape [layers, slots, ...]."""
    source, target = _rows(
        cache_indices, mamba_track_mask, mamba_track_indices, batch_size, check_freed_slots
    )
    if source.numel():
        conv_states_pool[:, target] = conv_states_pool[:, source]
        ssm_states_pool[:, target] = _recorded(ssm_states_pool[:, source])


def _rows(
    sources: torch.Tensor, mask: torch.Tensor, targets: torch.Tensor, batch_size: int, skip_freed: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    rows = mask[:batch_size].nonzero(as_tuple=True)[0]
    source, target = sources[rows].long(), targets[rows].long()
    if skip_freed:
        live = (source >= 0) & (target >= 0)
        source, target = source[live], target[live]
    return source, target


def _recorded(states: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(states) if faults.is_injected(faults.ZERO_SNAPSHOT) else states
