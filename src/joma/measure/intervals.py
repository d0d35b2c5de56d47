"""Every statistic over seeds: what a mean of a few is worth, alone and beside its control, with torch alone."""

from bisect import bisect_left
from functools import lru_cache
from math import cos, exp, isfinite, lgamma, nan, pi, sin, sqrt, tan
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from joma.host.arguments import Number, as_numbers
from joma.host.words import brief_repr


@brief_repr
class MeanInterval(NamedTuple):
    """A mean and its half_width: how far it may be from the truth.

    Both have the shape of the values without `dim`, in float64.

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


def mean_interval(values: Number, *, dim: int = 0, level: float = 0.95) -> MeanInterval:
    """Mean over `dim` and the half-width of its two-sided t interval, t_{n-1} s / sqrt(n), s with n - 1.

    values: independent repetitions (seeds) along `dim`, at least two. For a comparison with a control that shares the
    seeds, give the differences: the interval of a paired difference is narrower than the two intervals suggest.
    NaN is refused: leave out a seed that failed, and say so, before asking for the mean of the others.

    >>> trained, untrained = torch.tensor([0.72, 0.70, 0.74]), torch.tensor([0.68, 0.67, 0.69])
    >>> gain = mean_interval(trained - untrained)
    >>> round(gain.mean.item(), 4), round(gain.half_width.item(), 4)
    (0.04, 0.0248)
    """
    values = as_numbers(values, "values")
    if values.is_complex():
        raise ValueError(f"values must be real numbers, got {values.dtype}")
    if not -values.ndim <= dim < values.ndim:
        raise ValueError(f"dim must name a dimension of values {tuple(values.shape)}, got {dim}")
    count = values.shape[dim]
    if count < 2:
        raise ValueError(f"values must have at least 2 entries along dim {dim} for an interval, got {count}")
    wide = values.to(torch.float64)
    if not wide.isfinite().all():
        raise ValueError("values must be finite, got NaN or infinity")
    return MeanInterval(wide.mean(dim), t_quantile(level, count - 1) / sqrt(count) * wide.std(dim))


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


@brief_repr
class Comparison(NamedTuple):
    """A mean over seeds, `value`, beside that of its control, whose own interval is control_low to control_high.

    low and high are the ends of the interval of value - control, moved by control: they lie on the scale of `value`,
    and `low > control` says that the value is above its control beyond chance. NaN where fewer than two seeds are left.

    >>> found = compare([0.72, 0.70, 0.74], [0.68, 0.67, 0.69])
    >>> found.low > found.control
    True
    """

    value: float
    control: float
    low: float
    high: float
    control_low: float
    control_high: float
    seeds: int
    """Of the pairs that are finite."""
    level: float = 0.95
    """With which probability the interval holds the truth, were the numbers Gaussian."""

    @property
    def difference(self) -> float:
        """value - control."""
        return self.value - self.control

    @property
    def half_width(self) -> float:
        """Half of the interval of value - control."""
        return (self.high - self.low) / 2


def compare(values: Number, control: Number = 0.0, *, paired: bool = True, level: float = 0.95) -> Comparison:
    """`values` over seeds, compared with `control`: both means, and the t interval of their difference.

    - values: one number per seed; seeds with a number that is not finite are left out
    - control: as many numbers, of the same seeds or of others; or one number that is known
    - paired: whether the control has the same seeds, which is narrower; if not, the interval is Welch's
    - level: of the interval

    With fewer than two seeds left, the interval is NaN: nothing is known of chance.

    >>> gain = compare([0.72, 0.70, 0.74], [0.68, 0.67, 0.69])
    >>> round(gain.difference, 4), round(gain.half_width, 4), gain.seeds
    (0.04, 0.0248, 3)
    """
    first, second = _row(values, "values"), _row(control, "control")
    known = as_numbers(control, "control").ndim == 0
    if known:
        if not isfinite(second[0]):
            raise ValueError(f"control must be finite where it is one number, got {second[0]}")
        second = np.broadcast_to(second, first.shape)
    if paired and len(first) != len(second):
        raise ValueError(f"paired values and control must be as many, got {len(first)} and {len(second)}")
    if paired or known:
        both = np.isfinite(first) & np.isfinite(second)
        first, second = first[both], second[both]
        half = _half_width(first - second, level)
    else:
        first, second = first[np.isfinite(first)], second[np.isfinite(second)]
        half = _welch(first, second, level)
    value, other = (float(row.mean()) if len(row) else nan for row in (first, second))
    other = float(_row(control, "control")[0]) if known else other
    around = 0.0 if known else _half_width(second, level)
    ends = (value - half, value + half, other - around, other + around)
    return Comparison(value, other, *ends, min(len(first), len(second)), level)


def seeds_to_decide(half_width: float, seeds: int, wanted: float, *, level: float = 0.95) -> int | None:
    """With how many seeds an interval would be no wider than `wanted` on either side, were they as unlike as these.

    None where nothing is known of how unlike seeds are, or where it would take more than a million.

    >>> seeds_to_decide(0.2, 5, 0.05)
    43
    """
    if seeds < 2 or not isfinite(half_width) or not wanted > 0:
        return None
    spread = half_width * sqrt(seeds) / t_quantile(level, seeds - 1)

    def enough(count: int) -> bool:
        return t_quantile(level, min(count - 1, 1000)) * spread / sqrt(count) <= wanted

    counts = range(2, 1_000_001)
    found = bisect_left(counts, True, key=enough)
    return counts[found] if found < len(counts) else None


def _row(values: Number, name: str) -> np.ndarray:
    """As one row of float64, whatever it came as."""
    tensor = as_numbers(values, name)
    if tensor.is_complex() or tensor.ndim > 1:
        got = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
        raise ValueError(f"{name} must be one row of numbers, one per seed, got {got}")
    row: np.ndarray = tensor.detach().reshape(-1).double().cpu().numpy()
    return row


def _half_width(row: np.ndarray, level: float) -> float:
    return nan if len(row) < 2 else t_quantile(level, len(row) - 1) * float(row.std(ddof=1)) / sqrt(len(row))


def _welch(first: np.ndarray, second: np.ndarray, level: float) -> float:
    """Half of Welch's interval, its degrees of freedom rounded down: the wider, safer side."""
    if min(len(first), len(second)) < 2:
        return nan
    parts = [float(row.var(ddof=1)) / len(row) for row in (first, second)]
    total = sum(parts)
    if total == 0:
        return 0.0
    freedom = total**2 / sum(part**2 / (len(row) - 1) for part, row in zip(parts, (first, second), strict=True))
    return t_quantile(level, max(1, int(min(freedom, 1e5)))) * sqrt(total)
