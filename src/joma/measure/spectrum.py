"""What the singular values of a weight matrix say."""

from __future__ import annotations

import torch
from torch import Tensor


def stable_rank(w: Tensor) -> Tensor:
    """|w|_F^2 / |w|_2^2 of every matrix, from its singular values: between 1 and the rank, and 0 for a zero matrix.

    Unlike the rank it moves continuously with the weights. w: (..., rows, columns); returns (...). Types below
    float32 are raised to it, because their singular values would not be worth having. Differentiable.

    >>> stable_rank(torch.diag(torch.tensor([2.0, 1.0, 1.0])))
    tensor(1.5000)
    """
    if not w.is_floating_point() and not w.is_complex():
        raise ValueError(f"w must hold floating numbers, got {w.dtype}")
    if w.ndim < 2 or 0 in w.shape[-2:]:
        raise ValueError(f"w must have shape (..., rows, columns), got {tuple(w.shape)}")
    if not w.isfinite().all():
        raise ValueError("w must be finite, got NaN or infinity")
    wide = w.to(torch.promote_types(w.dtype, torch.float32))
    size = wide.abs().amax((-2, -1), keepdim=True)
    # Scaled first: the squares of very large or very small weights leave the range of float32.
    square = torch.linalg.svdvals(wide / torch.where(size > 0, size, 1.0)) ** 2
    largest = square[..., 0]
    return torch.where(largest > 0, square.sum(-1) / torch.where(largest > 0, largest, 1.0), 0.0)
