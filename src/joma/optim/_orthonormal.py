"""Orthonormal columns by Cholesky factors of their Gram matrix: many blocks at once, with matrix products alone."""

from __future__ import annotations

import torch
from torch import Tensor

NOISE = 1e-6
"""Of the block's size: what fills directions that the block does not have, so that a factor exists."""


def accurate(tensor: Tensor) -> Tensor:
    """In float64, which TF32 does not touch; as it is where a device has none."""
    return tensor if tensor.device.type == "mps" else tensor.double()


def orthonormal(block: Tensor, *, rounds: int = 2) -> Tensor:
    """An orthonormal basis that holds the columns of a block (..., rows, columns), rows >= columns.

    The first columns span what the first columns of the block span. Columns that depend on those before them are
    replaced by other directions. The Gram matrix is factored in float64, so blocks with a condition number up to 1e6
    keep their span; the second round repairs what the first one lost.
    """
    if block.device.type == "mps":  # without float64
        basis: Tensor = torch.linalg.qr(block)[0]
        return basis
    basis = _filled(block.double())
    for _ in range(rounds):
        factor, failed = torch.linalg.cholesky_ex(basis.mT @ basis)
        if bool(failed.any()):
            basis = torch.linalg.qr(basis)[0]
            break
        basis = torch.linalg.solve_triangular(factor, basis.mT, upper=False).mT
    return basis.to(block.dtype)


def _filled(block: Tensor) -> Tensor:
    """Columns of length one with a little of different unit vectors in each: never exactly dependent, never zero."""
    length = torch.linalg.vector_norm(block, dim=-2, keepdim=True)
    directions: Tensor = block / length.clamp_min(torch.finfo(block.dtype).tiny)
    generator = torch.Generator(block.device).manual_seed(0)
    noise = torch.randn(block.shape[-2:], device=block.device, dtype=block.dtype, generator=generator)
    directions += NOISE / block.shape[-2] ** 0.5 * noise
    return directions
