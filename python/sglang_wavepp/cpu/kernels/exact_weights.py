"""Float64 copies of weights, made once and kept beside the weight.

A product of float64 copies is rounded once, to the dtype of the activations. The order in which its terms are
summed differs between batch shapes, but only in the sixteenth digit, which the rounding hides: that is what makes
results independent of chunking and batch composition.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

_ATTRIBUTE = "_wavepp_exact"

_generation = 0


def exact_copy(weight: torch.Tensor) -> torch.Tensor:
    """The float64 copy of `weight`, of the same shape. Kept on the tensor object until ``forget_copies``."""
    kept = getattr(weight, _ATTRIBUTE, None)
    if kept is not None and kept[0] == _generation:
        copy: torch.Tensor = kept[1]
        return copy
    copy = weight.detach().double()
    setattr(weight, _ATTRIBUTE, (_generation, copy))
    return copy


def forget_copies() -> None:
    """Drop all copies, because weights were loaded anew."""
    global _generation
    _generation += 1


def exact_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``x @ weight.T + bias`` rounded once: x [..., inputs], weight [outputs, inputs] -> [..., outputs]."""
    offset = None if bias is None else exact_copy(bias)
    return F.linear(x.double(), exact_copy(weight), offset).to(x.dtype)


class AbsorbedWeight(torch.Tensor):
    """A weight that the model multiplies by ``torch.bmm`` itself: that product is done in float64.

    Kimi's latent attention calls ``torch.bmm(activations, weight)`` in the middle of a long method, which leaves no
    other place to make the product exact.
    """

    _exact: torch.Tensor

    @staticmethod
    def wrap(weight: torch.Tensor) -> AbsorbedWeight:
        """`weight` [batch, inputs, outputs], sharing its memory."""
        wrapped: AbsorbedWeight = torch.Tensor._make_subclass(AbsorbedWeight, weight.detach())
        wrapped._exact = weight.detach().double()
        return wrapped

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if func is torch.bmm and len(args) == 2 and isinstance(args[1], AbsorbedWeight):
                product = torch.bmm(args[0].double(), args[1]._exact)
                out = options.get("out")
                return product.to(args[0].dtype) if out is None else out.copy_(product)
            return func(*args, **options)
