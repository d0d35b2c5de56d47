"""What the studies of Lemmas 1-5 and Theorem 3 share: the laws they try, sample means, differences, plain ticks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from joma.theory.radial import Ball, ExponentialRadial, Gaussian, RadialLaw, StudentT

if TYPE_CHECKING:
    from matplotlib.axis import Axis

LAWS = {"gaussian": "Gaussian", "ball": "ball", "student": "Student-t, ν = 3", "exponential": "exp-radial"}
"""The laws tried, as series are named and as figures name them."""
SAMPLING = 4.5
"""Tolerance in standard errors: among some 200 sample means chance exceeds it about once in 700 runs."""
_CHUNK = 50_000


def laws(dimension: int) -> tuple[RadialLaw, ...]:
    """The laws of `LAWS`: light tails, bounded support, power tails, exponential tails."""
    return Gaussian(dimension), Ball(dimension, 2.0), StudentT(dimension, 3.0), ExponentialRadial(dimension, 2.0)


def sample_mean(statistic: Callable[[Tensor], Tensor], law: RadialLaw, count: int, seed: int) -> Tensor:
    """Mean and standard error, stacked (2, ...), of statistic(x') (samples, ...) over `count` samples of the law."""
    generator = torch.Generator().manual_seed(seed)
    total, square = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    for start in range(0, count, _CHUNK):
        values = statistic(law.sample(min(_CHUNK, count - start), generator=generator))
        total, square = total + values.sum(0), square + (values**2).sum(0)
    mean = total / count
    return torch.stack([mean, ((square / count - mean**2).clamp(min=0) / count).sqrt()])


def in_errors(form: Any, sampled: Any) -> Any:
    """|form - sample mean| in standard errors; sampled: (2, ...) as `sample_mean` gives it."""
    return np.abs(form - sampled[0]) / sampled[1]


def difference(function: Callable[[Tensor], Tensor], s: Tensor, *, step: float = 0.01) -> Tensor:
    """function'(s) by central differences of sixth order: the truth that closed derivatives are held against."""
    weights = ((1, 45 / 60), (2, -9 / 60), (3, 1 / 60))
    return torch.stack([w * (function(s + k * step) - function(s - k * step)) for k, w in weights]).sum(0) / step


def jacobian(function: Callable[[Tensor], Tensor], at: Tensor, *, step: float = 0.01) -> Tensor:
    """d function_i / d at_j by the same differences. at: (d,), function: (..., d) -> (..., k). Returns (k, d)."""
    directions = torch.eye(len(at), dtype=at.dtype)
    zero = torch.zeros(len(at), 1, dtype=at.dtype)
    return difference(lambda t: function(at + t * directions), zero, step=step).mT


def plain_ticks(axis: Axis, values: Sequence[float]) -> None:
    """Ticks at these values, written as they are: for a logarithmic axis that spans less than two decades."""
    axis.set_ticks(list(values), [f"{value:g}" for value in values])
    axis.set_ticks([], minor=True)
