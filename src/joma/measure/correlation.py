"""Correlations, once for all: Pearson's over the last dimension, Spearman's over all entries."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.host.arguments import Number, as_numbers


def pearson(x: Number, y: Number, *, constant: float = float("nan")) -> Any:
    """Pearson's correlation over the last dimension, batched over the leading ones, which broadcast.

    x, y: tensors, arrays or lists of numbers. The answer is a tensor if one of the two is a tensor, else a numpy array
    (or one number) in float64. constant: what is returned where one of the two does not vary, so that there is no
    correlation: NaN, or 0 for a reader to whom "orders nothing" is enough.

    >>> round(float(pearson(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 7.0]))), 4)
    0.9934
    """
    if isinstance(x, Tensor) or isinstance(y, Tensor):
        x, y = as_numbers(x, "x"), as_numbers(y, "y")
        x, y = x - x.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True)
        length = torch.linalg.vector_norm(x, dim=-1) * torch.linalg.vector_norm(y, dim=-1)
        safe = length.clamp_min(torch.finfo(length.dtype).tiny)
        return torch.where(length > 0, (x * y).sum(-1) / safe, constant)
    first, second = _array(x, "x"), _array(y, "y")
    first, second = first - first.mean(-1, keepdims=True), second - second.mean(-1, keepdims=True)
    scale = np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1)
    products = (first * second).sum(-1)
    return np.where(scale > 0, products / np.where(scale > 0, scale, 1.0), constant)[()]


def spearman(x: Number, y: Number) -> float:
    """Rank correlation of all entries that are finite in both; NaN where one of the two does not vary.

    >>> round(spearman(np.array([1.0, 2.0, 3.0, np.nan]), np.array([9.0, 5.0, 1.0, 0.0])), 6)
    -1.0
    """
    rows = _array(x, "x"), _array(y, "y")
    both = np.isfinite(rows[0]) & np.isfinite(rows[1])
    first, second = (_ranks(row[both]) for row in rows)
    return float("nan") if len(first) < 2 else float(pearson(first, second))


def _array(values: Number, name: str) -> np.ndarray:
    array: np.ndarray = as_numbers(values, name).detach().cpu().double().numpy()
    return array


def _ranks(values: np.ndarray) -> np.ndarray:
    """Equal values share the mean of their ranks."""
    _, group, count = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((count.cumsum() - (count - 1) / 2)[group])
