"""Correlations, once for all: Pearson's over the last dimension, Spearman's over all entries."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.host.arguments import Number, as_numbers, common_shape, number
from joma.measure._gram import compute_dtype
from joma.measure._standardised import paired


def pearson(x: Number, y: Number, *, constant: float = float("nan")) -> Any:
    """Pearson's correlation over the last dimension, batched over the leading ones, which broadcast.

    x, y: tensors, arrays or lists of numbers, as many of one as of the other. The answer is a tensor if one of the two
    is a tensor, else a numpy array (or one number) in float64. constant: what is returned where one of the two does not
    vary, or holds NaN or infinity, so that there is no correlation: NaN, or 0 for a reader to whom "orders nothing" is
    enough. Not differentiable.

    >>> round(float(pearson(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 7.0]))), 4)
    0.9934
    """
    first, second = as_numbers(x, "x"), as_numbers(y, "y")
    if not first.ndim or first.shape[-1:] != second.shape[-1:] or not first.shape[-1]:
        raise ValueError(f"x and y must be as many last, got {tuple(first.shape)} and {tuple(second.shape)}")
    common_shape(x=first.shape, y=second.shape)
    instead = number(constant, "constant", finite=False)
    with torch.no_grad():
        found, *varies = (part[..., 0] for part in paired(first.detach()[..., None], second.detach()[..., None]))
        found = torch.where(varies[0] & varies[1] & found.isfinite(), found, instead)
    if isinstance(x, Tensor) or isinstance(y, Tensor):
        return found.to(torch.promote_types(compute_dtype(first), compute_dtype(second)))
    return found.numpy()[()]


def spearman(x: Number, y: Number) -> float:
    """Rank correlation of all entries that are finite in both; NaN where one of the two does not vary.

    >>> round(spearman(np.array([1.0, 2.0, 3.0, np.nan]), np.array([9.0, 5.0, 1.0, 0.0])), 6)
    -1.0
    """
    rows = _array(x, "x"), _array(y, "y")
    if rows[0].shape != rows[1].shape:
        raise ValueError(f"x and y must have one shape, got {rows[0].shape} and {rows[1].shape}")
    both = np.isfinite(rows[0]) & np.isfinite(rows[1])
    first, second = (_ranks(row[both]) for row in rows)
    return float("nan") if len(first) < 2 else float(pearson(first, second))


def _array(values: Number, name: str) -> np.ndarray:
    array: np.ndarray = as_numbers(values, name).detach().cpu().double().numpy()
    return array


def _ranks(values: np.ndarray) -> np.ndarray:
    _, group, count = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((count.cumsum() - (count - 1) / 2)[group])
