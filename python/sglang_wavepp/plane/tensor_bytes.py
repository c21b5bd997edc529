"""Tensors as raw bytes, and back, with no value changed and no copy that isn't needed."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

_DTYPES = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}


def dtype_name(dtype: torch.dtype) -> str:
    """Such as "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def dtype_named(name: str) -> torch.dtype:
    """The inverse of `dtype_name`.

    Raises:
        ValueError: torch has no such dtype.
    """
    dtype = _DTYPES.get(name)
    if dtype is None:
        raise ValueError(f"unknown dtype {name!r}")
    return dtype


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The elements of a CPU tensor in row-major order; shares its memory when it is contiguous."""
    whole = tensor.detach().contiguous()
    # Dimensions of size one may have any stride in a contiguous tensor, and a view of another width refuses that.
    flat = whole.as_strided((whole.numel(),), (1,))
    data: memoryview = flat.view(torch.uint8).numpy().data
    return data


def tensor_from(data: bytearray | memoryview, *, dtype: str, shape: Sequence[int]) -> torch.Tensor:
    """A tensor over `data`, which must be writable if the tensor is to be written.

    Raises:
        ValueError: no such dtype, or the bytes don't fill the shape exactly.
    """
    torch_dtype = dtype_named(dtype)
    if min(shape, default=0) < 0 or prod(shape) * torch_dtype.itemsize != len(data):
        raise ValueError(f"{len(data)} bytes are no {dtype} tensor of shape {tuple(shape)}")
    if not len(data):
        return torch.empty(tuple(shape), dtype=torch_dtype)
    return torch.frombuffer(data, dtype=torch_dtype).reshape(tuple(shape))
