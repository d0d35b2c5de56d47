"""Matrices as the measures of singular values take them: checked, scaled, and their Gram matrices in float64."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod, sqrt

import torch
from torch import Tensor

from joma.host.arguments import Number, as_numbers, floating
from joma.host.products import float32_products

SMALL_SIDE = 256
TOGETHER = 1 << 22  # Numbers of a stack, or of a table of distances, that are worked on at a time.
BLOCK = 64  # Rows of a triangle that is made as a square: with fewer, products are slow, with more, too much is made.


def compute_dtype(w: Tensor) -> torch.dtype:
    return torch.promote_types(w.dtype, torch.float32)


def wide_dtype(w: Tensor) -> torch.dtype:
    """One in which squares of any float32 are in range, where the device has it."""
    return torch.float32 if w.device.type == "mps" else torch.float64


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Products in real float32, whatever the training loop around us has chosen (TF32, autocast)."""
    with float32_products("highest"), torch.autocast(device.type, enabled=False):
        yield


def checked(given: Number) -> Tensor:
    w = floating(as_numbers(given, "w"), "w")
    if w.ndim < 2 or 0 in w.shape[-2:]:
        raise ValueError(f"w must have shape (..., rows, columns), none of the two empty, got {tuple(w.shape)}")
    return w


def magnitude(x: Tensor) -> Tensor:
    """The power of two at each number's size, at least 1e-300: to divide by it costs no digits."""
    return torch.exp2(x.detach().abs().clamp_min(max(1e-300, torch.finfo(x.dtype).tiny)).log2().floor())


def scaling(a: Tensor) -> tuple[Tensor, Tensor]:
    """Frobenius norms, and 1 / Frobenius norm (1 for a zero matrix): (matrices,) each, float64 on the CPU."""
    # Rows (or columns, whichever lie in memory together) are summed where the matrix is, their squares in float64.
    # Since every path begins here, this is also where NaN and infinity are refused, without another pass.
    with torch.no_grad():
        lines = a if a.stride(-1) == 1 else a.mT
        norms = torch.linalg.vector_norm(lines, dim=-1, dtype=compute_dtype(a)).cpu().double()
        frobenius = torch.linalg.vector_norm(norms, dim=-1)
        tiny, huge = torch.finfo(compute_dtype(a)).tiny, torch.finfo(compute_dtype(a)).max
        unsafe = ~((frobenius > sqrt(tiny) * 1e6) & (frobenius < sqrt(huge) * 1e-6))
        for i in unsafe.nonzero()[:, 0].tolist():  # squares would leave the range: rare, so a second pass is no loss
            largest = a[i].abs().amax().cpu().double()
            if not largest.isfinite():
                raise ValueError("w must be finite, got NaN or infinity")
            if largest > 0:
                pieces = (row.double() / largest.to(a.device) for row in lines[i].split(64))
                frobenius[i] = largest * sqrt(sum(float(piece.square().sum()) for piece in pieces))
        return frobenius, torch.where(frobenius > 0, 1 / frobenius, 1.0)


def unit_squares(given: Number) -> tuple[Tensor, Tensor]:
    """Squared singular values of every matrix after division by its norm, and 1 / norm: (..., smaller side), (...)."""
    w = checked(given)
    with torch.no_grad():
        stack = w.detach().reshape(-1, *w.shape[-2:])
        stack = stack if stack.shape[-2] <= stack.shape[-1] else stack.mT
        make = gram if stack.shape[-2] <= SMALL_SIDE else lower_gram
        found, scales = [], []
        for some in stack.split(max(1, TOGETHER // prod(stack.shape[-2:]))):
            scales.append(scaling(some)[1])
            found.append(torch.linalg.eigvalsh(make(some, scales[-1])).clamp_min_(0.0))
    return torch.cat(found).reshape(*w.shape[:-2], stack.shape[-2]), torch.cat(scales).to(w.device).reshape(
        w.shape[:-2]
    )


def gram(a: Tensor, scale: Tensor) -> Tensor:
    """(scale a)(scale a)^T in float64, converted a few columns at a time so that no copy of the matrix is held."""
    columns = max(64, (1 << 22) // (a.shape[0] * a.shape[1] or 1))
    total = torch.zeros(a.shape[0], a.shape[1], a.shape[1], dtype=torch.float64, device=a.device)
    for piece in a.split(columns, dim=-1):
        wide = piece.double() * scale.to(a.device)[:, None, None]
        total = total + wide @ wide.mT
    return total


def lower_gram(a: Tensor, scale: Tensor) -> Tensor:
    """The lower triangle of `gram`, for about half of the work. What lies above it is of no meaning. No gradient."""
    columns = max(64, (1 << 22) // (a.shape[1] or 1))
    total = torch.zeros(a.shape[0], a.shape[1], a.shape[1], dtype=torch.float64, device=a.device)
    for one, into, factor in zip(a, total, scale.tolist(), strict=True):
        for piece in one.split(columns, dim=-1):
            wide = piece.double().mul_(factor) if piece.dtype != torch.float64 else piece * factor
            _add_lower(into, wide)
    return total


def _add_lower(into: Tensor, wide: Tensor) -> None:
    """Add the lower triangle of W W^T: the square below the diagonal in one product, the two triangles in halves."""
    half = len(wide) // 2
    if len(wide) <= BLOCK:
        into.addmm_(wide, wide.mT)
        return
    into[half:, :half].addmm_(wide[half:], wide[:half].mT)
    _add_lower(into[:half, :half], wide[:half])
    _add_lower(into[half:, half:], wide[half:])
