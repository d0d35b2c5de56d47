"""Matrix products of all members at once, at a chosen precision.

"half" makes every product from float16 factors with float32 sums. float16 keeps ten bits, as TF32 does, but its
products run at twice the rate and in every layout; for its small range gradients are scaled up, and down at the end.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from joma.host.arguments import Number, floating

_HALF = {"on": False}
"""For the whole process. A compiled step must see the change: torch.compile guards an entry of a dict, cannot trace a
ContextVar, and takes what is local to a thread for a constant (torch 2.13)."""

SCALE = 2.0**12
"""Gradients of a mean loss are of order 1e-6 to 1e-2: scaled, they are normal float16 numbers."""
LARGEST = 65_504.0


@contextmanager
def half_products(on: bool = True) -> Iterator[None]:
    """Within, `linear` on a GPU makes its products from float16 factors.

    >>> with half_products():  # on a CPU nothing changes
    ...     y = linear(torch.ones(2, 3, 4), torch.ones(2, 4, 5), torch.zeros(2, 5))
    """
    before, _HALF["on"] = _HALF["on"], on
    try:
        yield
    finally:
        _HALF["on"] = before


def linear(x: Number, weight: Number, bias: Number) -> Tensor:
    """x weight + bias for every member: x (members, rows, in), weight (members, in, out), bias (members, out).

    >>> linear(torch.ones(2, 3, 4), torch.ones(2, 4, 5), torch.zeros(2, 5)).unique()
    tensor([4.])
    """
    result: Tensor
    x, weight, bias = floating(x, "x"), floating(weight, "weight"), floating(bias, "bias")
    if x.device.type == "cpu" and not torch.compiler.is_compiling():  # torch 2.11 loses gradients around `add_`
        result = _OnProcessor.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    elif _HALF["on"]:
        result = _HalfProduct.apply(x, weight) + bias[:, None]  # type: ignore[no-untyped-call]
    else:
        # not baddbmm: it would first write the bias to every row, and a compiler cannot move the addition elsewhere
        result = torch.bmm(x, weight) + bias[:, None]
    return result


class _OnProcessor(torch.autograd.Function):
    """The same numbers in less time: the bias is added in place, its gradient is a product with ones.

    torch sums over rows at a seventh of the speed at which BLAS does.
    """

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, weight)
        return torch.bmm(x, weight).add_(bias[:, None])

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        x, weight = ctx.saved_tensors
        by_x, by_weight, by_bias = ctx.needs_input_grad
        ones = gradient.new_ones(1, 1, x.shape[1]).expand(len(x), -1, -1)  # one row: BLAS takes no stride of 0 in it
        return (
            torch.bmm(gradient, weight.mT) if by_x else None,
            torch.bmm(x.mT, gradient) if by_weight else None,
            torch.bmm(ones, gradient)[:, 0] if by_bias else None,
        )


def scaled(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """x scale + shift for every member: x (members, rows, width), scale and shift (members, width).

    >>> scaled(torch.ones(2, 3, 4), torch.full((2, 4), 2.0), torch.ones(2, 4)).unique()
    tensor([3.])
    """
    if x.device.type == "cpu" and not torch.compiler.is_compiling():
        result: Tensor = _ScaledOnProcessor.apply(x, scale, shift)  # type: ignore[no-untyped-call]
        return result
    return torch.addcmul(shift[:, None], x, scale[:, None])


class _ScaledOnProcessor(torch.autograd.Function):
    """As above: the gradients of scale and shift are sums over rows."""

    @staticmethod
    def forward(ctx, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, scale)
        return torch.addcmul(shift[:, None], x, scale[:, None])

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        x, scale = ctx.saved_tensors
        by_x, by_scale, by_shift = ctx.needs_input_grad
        ones = gradient.new_ones(1, 1, x.shape[1]).expand(len(x), -1, -1)  # one row: BLAS takes no stride of 0 in it
        return (
            gradient * scale[:, None] if by_x else None,
            torch.bmm(ones, gradient * x)[:, 0] if by_scale else None,
            torch.bmm(ones, gradient)[:, 0] if by_shift else None,
        )


class _HalfProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        x, weight = x.half(), weight.half()
        ctx.save_for_backward(x, weight)
        return torch.bmm(x, weight, out_dtype=torch.float32)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
        x, weight = ctx.saved_tensors
        scaled = (gradient * SCALE).clamp(-LARGEST, LARGEST).half()
        by_x = torch.bmm(scaled, weight.mT, out_dtype=torch.float32)
        by_weight = torch.bmm(x.mT, scaled, out_dtype=torch.float32)
        return by_x / SCALE, by_weight / SCALE
