"""What a mean over a few seeds is worth: Student's t interval, with torch alone."""

from __future__ import annotations

from functools import lru_cache
from math import cos, exp, lgamma, pi, sin, sqrt, tan
from typing import NamedTuple

import torch
from torch import Tensor

from joma.measure._arguments import must_be_tensors


class MeanInterval(NamedTuple):
    """A mean and how far it may be from the truth; fields have the shape of the values without `dim`, float64.

    >>> gain = mean_interval(torch.tensor([0.3, 0.5, 0.4]))
    >>> gain.low, gain.high
    (tensor(0.1516, dtype=torch.float64), tensor(0.6484, dtype=torch.float64))
    """

    mean: Tensor
    """The mean over `dim`."""
    half_width: Tensor
    """The truth lies within mean +- half_width with probability `level`, were the values Gaussian."""

    @property
    def low(self) -> Tensor:
        """The lower end."""
        return self.mean - self.half_width

    @property
    def high(self) -> Tensor:
        """The upper end."""
        return self.mean + self.half_width


def mean_interval(values: Tensor, *, dim: int = 0, level: float = 0.95) -> MeanInterval:
    """Mean over `dim` and the half-width of its two-sided t interval, t_{n-1} s / sqrt(n), s with n - 1.

    values: independent repetitions (seeds) along `dim`, at least two. For a comparison with a control that shares the
    seeds, give the differences: the interval of a paired difference is narrower than the two intervals suggest.
    NaN is refused: leave out a seed that failed, and say so, before asking for the mean of the others.

    >>> trained, untrained = torch.tensor([0.72, 0.70, 0.74]), torch.tensor([0.68, 0.67, 0.69])
    >>> gain = mean_interval(trained - untrained)
    >>> round(gain.mean.item(), 4), round(gain.half_width.item(), 4)
    (0.04, 0.0248)
    """
    must_be_tensors(values=values)
    if values.is_complex():
        raise ValueError(f"values must be a tensor of real numbers, got {values.dtype}")
    if not -values.ndim <= dim < values.ndim:
        raise ValueError(f"dim must name a dimension of values {tuple(values.shape)}, got {dim}")
    count = values.shape[dim]
    if count < 2:
        raise ValueError(f"values must have at least 2 entries along dim {dim} for an interval, got {count}")
    wide = values.to(torch.float64)
    if not wide.isfinite().all():
        raise ValueError("values must be finite, got NaN or infinity")
    half_width = t_quantile(level, count - 1) / sqrt(count) * wide.std(dim)
    return MeanInterval(wide.mean(dim), half_width)


@lru_cache(maxsize=256)
def t_quantile(level: float, freedom: int) -> float:
    """The t below which |T| stays with probability `level`, T of Student's law with `freedom` degrees.

    With t = sqrt(n) tan(a) that probability is a finite sum (Abramowitz & Stegun 26.7.3-4), and its slope in a is
    c cos^(n-1)(a). It is increasing and concave in a, so Newton's steps from a = 0 never pass the root.
    Right to 1e-8 (relative) for levels from 0.001 on and up to 10^5 degrees.

    >>> round(t_quantile(0.95, 4), 6)
    2.776445
    """
    if not 0 < level <= 1 - 1e-6:  # closer to 1 rounding would eat into the digits
        raise ValueError(f"level must lie above 0 and be at most 1 - 1e-6, got {level!r}")
    if freedom < 1 or freedom != int(freedom):
        raise ValueError(f"freedom must be a whole number of at least 1, got {freedom!r}")
    c = 2 / sqrt(pi) * exp(lgamma((freedom + 1) / 2) - lgamma(freedom / 2))
    angle = 0.0
    while (step := (level - _within(angle, freedom)) / (c * cos(angle) ** (freedom - 1))) > 1e-15 * angle:
        angle += step
    return sqrt(freedom) * tan(angle)


def _within(angle: float, freedom: int) -> float:
    """P(|T| < sqrt(freedom) tan(angle)): a sum of positive terms, innermost first."""
    odd, square, series = freedom % 2, cos(angle) ** 2, 1.0
    for i in range((freedom - 2 - odd) // 2, 0, -1):
        series = 1 + (2 * i - 1 + odd) / (2 * i + odd) * square * series
    if not odd:
        return sin(angle) * series
    return 2 / pi * (angle + (sin(angle) * cos(angle) * series if freedom > 1 else 0.0))
