"""What a theory function accepts, checked in one place so that bad input gets one clear sentence."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

Number = float | Sequence[float] | Tensor
"""Anything that `real` takes: Python numbers and lists become float64, floating tensors stay as they are."""


def real(value: Number, name: str, *, finite: bool = True) -> Tensor:
    """`value` as a floating tensor: no NaN, no complex numbers and, unless asked otherwise, no infinities."""
    tensor = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)
    if tensor.is_complex():
        raise ValueError(f"{name} must be real, got {tensor.dtype}")
    if not tensor.is_floating_point():
        tensor = tensor.to(torch.float64)
    if tensor.isnan().any():
        raise ValueError(f"{name} contains NaN")
    if finite and tensor.isinf().any():
        raise ValueError(f"{name} must be finite, got infinity")
    return tensor


def positive(value: Number, name: str) -> Tensor:
    """`real` and above zero: rates, temperatures, norms."""
    tensor = real(value, name)
    if (tensor <= 0).any():
        raise ValueError(f"{name} must be positive, got {tensor.min().item():g}")
    return tensor


def within(value: Number, name: str, low: float, high: float) -> Tensor:
    """`real` and inside [low, high]: correlations, probabilities."""
    tensor = real(value, name)
    outside = (tensor < low) | (tensor > high)
    if outside.any():
        raise ValueError(f"{name} must lie in [{low:g}, {high:g}], got {tensor[outside].flatten()[0].item():g}")
    return tensor


def times(t: Number, name: str = "t") -> Tensor:
    """Times as (steps,): a single number is one step; nothing runs backwards."""
    tensor = real(t, name)
    if tensor.ndim > 1:
        raise ValueError(f"{name} must be a number or have shape (steps,), got {tuple(tensor.shape)}")
    if (tensor < 0).any():
        raise ValueError(f"{name} must not be negative, got {tensor.min().item():g}")
    return tensor.reshape(-1)


def whole(value: int, name: str, low: int) -> int:
    """An integer that is at least `low`: sizes, depths, counts."""
    if isinstance(value, bool) or int(value) != value or value < low:
        raise ValueError(f"{name} must be a whole number of at least {low}, got {value!r}")
    return int(value)


def together(**tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors broadcast against each other, or a sentence that names their shapes.

    Plain numbers (0-d tensors) follow the dtype and device of the tensors that have dimensions, as in torch itself.
    """
    try:
        shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors.values()))
    except RuntimeError:
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
        raise ValueError(f"shapes do not fit together: {shapes}") from None
    leading = [tensor for tensor in tensors.values() if tensor.ndim] or list(tensors.values())
    like = leading[0]
    dtype = reduce(torch.promote_types, (tensor.dtype for tensor in leading))
    return tuple(tensor.to(dtype=dtype, device=like.device).expand(shape) for tensor in tensors.values())


def at_least_dims(tensor: Tensor, name: str, dims: int, meaning: str) -> Tensor:
    """`tensor` if it has `dims` dimensions or more; `meaning` says which, e.g. '(..., tokens, nodes)'."""
    if tensor.ndim < dims:
        raise ValueError(f"{name} must have shape {meaning}, got {tuple(tensor.shape)}")
    return tensor
