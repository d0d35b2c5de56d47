"""How a function takes an argument: one way for the whole library, so that bad input gets one clear sentence.

A tensor stays what it is: its type, its device and its gradient. An array, a number, or a (nested) list of numbers
becomes a tensor on the CPU. Floating arrays keep their type, so float32 stays float32. Python numbers become float64,
and so do whole numbers of an array where real ones are wanted. Answers are always tensors.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.host.numbers import at_most as at_most
from joma.host.numbers import integer as integer
from joma.host.numbers import number as number
from joma.host.numbers import shown as shown

Number = float | Sequence[Any] | np.ndarray | Tensor
"""Anything that `real` takes: a number, a list (also a nested one), an array or a tensor."""

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""The types that a tensor may have; see `joma.theory._guard` for the first two."""


def as_tensor(value: Number, name: str) -> Tensor:
    """`value` as a tensor: whole numbers and booleans stay what they are. For token ids, indices and masks.

    An array lends its memory where torch can use it. A tensor comes back untouched, also one that torch.compile traces;
    one that is no plain array of real numbers is refused, which is seen without a look at its values.
    """
    return dense(value, name) if isinstance(value, Tensor) else _read(value, name)


def as_numbers(value: Number, name: str) -> Tensor:
    """`as_tensor` for arguments that are real numbers: whole numbers of a list or an array become float64."""
    tensor = as_tensor(value, name)
    return tensor if isinstance(value, Tensor) or tensor.is_floating_point() else tensor.to(torch.float64)


def real(value: Number, name: str, *, finite: bool = True) -> Tensor:
    """`value` as a floating tensor: no NaN, no complex numbers and, unless asked otherwise, no infinities."""
    tensor = as_tensor(value, name)
    if not tensor.is_floating_point():
        tensor = tensor.to(torch.float64)
    if tensor.isnan().any():
        raise ValueError(f"{name} contains NaN")
    if finite and tensor.isinf().any():
        raise ValueError(f"{name} must be finite, got infinity")
    return tensor


def dense(tensor: Tensor, name: str) -> Tensor:
    """A tensor that torch can compute with, whatever its values: no complex, sparse, 8-bit or missing numbers."""
    if tensor.is_complex():
        raise ValueError(f"{name} must be real, got {tensor.dtype}")
    if tensor.layout != torch.strided:
        raise ValueError(f"{name} must be a dense tensor, got {tensor.layout}")
    if tensor.is_meta:
        raise ValueError(f"{name} must hold numbers, got a meta tensor of shape {tuple(tensor.shape)}")
    if tensor.is_floating_point() and tensor.dtype not in FLOATS:
        raise ValueError(f"{name} must be float16, bfloat16, float32 or float64, got {tensor.dtype}: convert it first")
    return tensor


def floating(value: Number, name: str) -> Tensor:
    """`dense` and of floating type: for what is called at every step, where looking at values would cost too much."""
    tensor = value if isinstance(value, Tensor) and value.layout is torch.strided else as_numbers(value, name)
    if tensor.dtype in FLOATS:
        return tensor
    raise ValueError(f"{name} must hold floating numbers, got {dense(tensor, name).dtype}")


def positive(value: Number, name: str) -> Tensor:
    """`real` and above zero: rates, temperatures, norms."""
    tensor = real(value, name)
    if (tensor <= 0).any():
        raise ValueError(f"{name} must be positive, got {tensor.min().item():g}")
    return tensor


def not_negative(value: Number, name: str) -> Tensor:
    """`real` and not below zero: frequencies, counts, radii."""
    tensor = real(value, name)
    if (tensor < 0).any():
        raise ValueError(f"{name} must not be negative, got {tensor.min().item():g}")
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
    return not_negative(tensor, name).reshape(-1)


def must_be_callable(value: object, name: str) -> None:
    """`value` must be something to call."""
    if not callable(value):
        raise ValueError(f"{name} must be a function of a tensor, got {shown(value)}")


def must_be_generator(value: object) -> None:
    """`value` must be one of torch's."""
    if not isinstance(value, torch.Generator):
        raise ValueError(f"generator must be a torch.Generator, got {shown(value)}")


def at_least_dims(tensor: Tensor, name: str, dims: int, meaning: str) -> Tensor:
    """`tensor` if it has `dims` dimensions or more; `meaning` says which, e.g. '(..., tokens, nodes)'."""
    if tensor.ndim < dims:
        raise ValueError(f"{name} must have shape {meaning}, got {tuple(tensor.shape)}")
    return tensor


def together(**tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors broadcast against each other, or a sentence that names their shapes.

    Plain numbers (0-d tensors) follow the dtype and device of the tensors that have dimensions, as in torch itself.
    """
    return alongside({}, **tensors)


def alongside(own: dict[str, int], **tensors: Tensor) -> tuple[Tensor, ...]:
    """`together` for tensors of which some have dimensions of their own at the end: own = {name: how many}."""
    leads = {name: tensor.shape[: tensor.ndim - own.get(name, 0)] for name, tensor in tensors.items()}
    shape = common_shape(**leads)
    leading = [tensor for tensor in tensors.values() if tensor.ndim] or list(tensors.values())
    dtype = reduce(torch.promote_types, {tensor.dtype for tensor in leading})
    return tuple(
        tensor.to(dtype=dtype, device=leading[0].device).expand((*shape, *tensor.shape[len(lead) :]))
        for tensor, lead in zip(tensors.values(), leads.values(), strict=True)
    )


def common_shape(**shapes: torch.Size) -> torch.Size:
    """What the shapes broadcast to, or a sentence that names them."""
    longest = max(shapes.values(), key=len)
    sizes = list(longest)
    for shape in shapes.values():
        for n in range(-len(shape), 0):
            if sizes[n] == 1:
                sizes[n] = shape[n]
            elif shape[n] not in (1, sizes[n]):
                listed = ", ".join(f"{name} {tuple(each)}" for name, each in shapes.items())
                raise ValueError(f"shapes do not fit together: {listed}")
    return torch.Size(sizes)


def _read(value: object, name: str) -> Tensor:
    try:
        if isinstance(value, np.ma.MaskedArray):  # its mask would be lost
            raise TypeError
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise TypeError
        return torch.from_numpy(array) if array is value and _fits_torch(array) else _copy(array)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        wanted = "a real number, a list or an array of them, or a tensor"
        raise ValueError(f"{name} must be {wanted}, got {shown(value)}") from None


def _fits_torch(array: np.ndarray) -> bool:
    """Whether torch can use this memory as it lies: not read-only, reversed, byte-swapped or between two entries."""
    native = array.dtype == _torch_type(array.dtype) and array.dtype.isnative
    forwards = all(stride >= 0 and stride % array.itemsize == 0 for stride in array.strides)
    return native and forwards and array.flags.writeable and array.flags.aligned


def _copy(array: np.ndarray) -> Tensor:
    """The same numbers in memory of torch, which begins where memory of tensors begins.

    Sums and products may round otherwise at another address. So a list is answered as the tensor of its numbers is,
    bit for bit, wherever numpy happened to put them.
    """
    dtype = torch.from_numpy(np.empty(0, _torch_type(array.dtype))).dtype
    copied = torch.empty(array.shape, dtype=dtype)
    np.copyto(copied.numpy(), array)
    return copied


def _torch_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The same type in this machine's byte order; one that torch hardly computes with becomes its nearest relative."""
    if dtype.kind == "u" and dtype.itemsize in (2, 4):
        return np.dtype(np.int64)
    return np.dtype(np.float64) if dtype.kind == "f" and dtype.itemsize > 8 else dtype.newbyteorder("=")


def described(value: object) -> str:
    """A tensor in a sentence, by its type and shape; anything else as `shown`."""
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else shown(value)
