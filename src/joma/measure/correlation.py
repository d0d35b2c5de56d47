"""Correlations, once for all: Pearson's over the last dimension, Spearman's over all entries."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def pearson(x: Any, y: Any, *, constant: float = float("nan")) -> Any:
    """Pearson's correlation over the last dimension, batched over the leading ones, which broadcast.

    x, y: two numpy arrays or two tensors; what comes back is of the same kind. constant: what is returned where one of
    the two does not vary, so that there is no correlation: NaN, or 0 for a reader to whom "orders nothing" is enough.

    >>> round(float(pearson(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 7.0]))), 4)
    0.9934
    """
    if isinstance(x, Tensor) or isinstance(y, Tensor):
        return _of_tensors(torch.as_tensor(x), torch.as_tensor(y), constant)
    first, second = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    first, second = first - first.mean(-1, keepdims=True), second - second.mean(-1, keepdims=True)
    scale = np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1)
    products = (first * second).sum(-1)
    return np.where(scale > 0, products / np.where(scale > 0, scale, 1.0), constant)[()]


def _of_tensors(x: Tensor, y: Tensor, constant: float) -> Tensor:
    x, y = x - x.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True)
    scale = torch.linalg.vector_norm(x, dim=-1) * torch.linalg.vector_norm(y, dim=-1)
    products = (x * y).sum(-1)
    return torch.where(scale > 0, products / scale.clamp_min(torch.finfo(scale.dtype).tiny), constant)


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Rank correlation of all entries that are finite in both; NaN where one of the two does not vary.

    >>> round(spearman(np.array([1.0, 2.0, 3.0, np.nan]), np.array([9.0, 5.0, 1.0, 0.0])), 6)
    -1.0
    """
    both = np.isfinite(x) & np.isfinite(y)
    first, second = (_ranks(np.asarray(values)[both]) for values in (x, y))
    if len(first) < 2:
        return float("nan")
    return float(pearson(first, second))


def _ranks(values: np.ndarray) -> np.ndarray:
    """Equal values share the mean of their ranks."""
    _, group, count = np.unique(values, return_inverse=True, return_counts=True)
    last = count.cumsum()
    return np.asarray((last - (count - 1) / 2)[group])
