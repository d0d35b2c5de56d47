"""Every statistic over seeds: what a mean of a few is worth, alone and beside its control.

Without torch, but for `mean_interval`, which takes tensors: verdicts are worked out where torch is not installed.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache
from math import atan, comb, cos, exp, floor, hypot, isfinite, lgamma, log2, nan, pi, sin, sqrt, tan
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from joma.host.numbers import integer, number, shown
from joma.host.words import brief_repr

if TYPE_CHECKING:
    from torch import Tensor

    from joma.host.arguments import Number

FEW_SEEDS, ASSURANCE, TINY, FREEDOMS = 4, 0.8, 1e-300, 10**5


@brief_repr
class MeanInterval(NamedTuple):
    """A mean and its half_width: how far it may be from the truth.

    Both have the shape of the values without `dim`, in float64.

    >>> gain = mean_interval([0.3, 0.5, 0.4])
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

    >>> import torch
    >>> trained, untrained = torch.tensor([0.72, 0.70, 0.74]), torch.tensor([0.68, 0.67, 0.69])
    >>> gain = mean_interval(trained - untrained)
    >>> round(gain.mean.item(), 4), round(gain.half_width.item(), 4)
    (0.04, 0.0248)
    """
    from joma.host.arguments import real
    from joma.measure._gram import magnitude

    wide = real(values, "values").double()
    dim = integer(dim, "dim", -wide.ndim)
    if dim >= wide.ndim:
        raise ValueError(f"dim must name a dimension of values {tuple(wide.shape)}, got {dim}")
    count = wide.shape[dim]
    if count < 2:
        raise ValueError(f"values must have at least 2 entries along dim {dim} for an interval, got {count}")
    size = magnitude(wide.abs().amax(dim))  # no square leaves the range
    scaled = wide / size.unsqueeze(dim)
    return MeanInterval(scaled.mean(dim) * size, t_quantile(level, count - 1) / sqrt(count) * scaled.std(dim) * size)


def t_quantile(level: float, freedom: int) -> float:
    """The t below which |T| stays with probability `level`, T of Student's law with `freedom` degrees.

    With t = sqrt(n) tan(a) that probability is a finite sum (Abramowitz & Stegun 26.7.3-4), and its slope in a is
    c cos^(n-1)(a). It is increasing and concave in a, so Newton's steps from a = 0 never pass the root.
    Right to 1e-8 (relative) for levels from 0.001 on. Beyond 10^5 degrees it is z + (z^3 + z) / 4n, z the Gaussian's.

    >>> round(t_quantile(0.95, 4), 6)
    2.776445
    """
    if not 0 < number(level, "level") <= 1 - 1e-6:  # closer to 1 rounding would eat into the digits
        raise ValueError(f"level must lie above 0 and be at most 1 - 1e-6, got {level!r}")
    if integer(freedom, "freedom", 1) > FREEDOMS:
        from scipy.special import ndtri  # it loads for a second

        z = float(ndtri((1 + level) / 2))
        return z + (z**3 + z) / 4 / min(freedom, 2**60)
    return _t_quantile(float(level), int(freedom))


@lru_cache(maxsize=256)
def _t_quantile(level: float, freedom: int) -> float:
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
    """A mean over seeds, `value`, that of its control, and their difference: each with the ends of its own interval.

    `difference_low > 0` says that the value is above its control beyond chance. Ends are NaN where fewer than two seeds
    are left.

    >>> found = compare([0.72, 0.70, 0.74, 0.71, 0.73], [0.68, 0.67, 0.69, 0.66, 0.70])
    >>> found.difference_low > 0
    True
    """

    value: float
    control: float
    low: float
    """Lower end of the value's own interval."""
    high: float
    """Upper end of the value's own interval."""
    control_low: float
    """Lower end of the control's own interval."""
    control_high: float
    """Upper end of the control's own interval."""
    difference_low: float
    """Lower end of the interval of value - control: where both have the same seeds, closer than the others suggest."""
    difference_high: float
    """Upper end of the interval of value - control."""
    seeds: int
    """Of the pairs that are finite."""
    level: float = 0.95
    """With which probability each interval holds the truth, were the numbers Gaussian."""
    freedom: int = 0
    """Degrees of freedom of the interval of value - control; 0 where there is none."""
    failed: int = 0
    """Seeds, or pairs, with a number that is not finite: a network that diverged, say."""
    sign_p: float | None = None
    """How often signs (of other seeds: ranks) alone lie this much to one side; without any law of seeds."""
    numbers: tuple[tuple[float, ...], ...] = ()
    """Those that were compared, seed by seed: the value's and the control's."""
    paired: bool = True
    """Whether value and control share their seeds, so that differences were taken seed by seed."""

    @property
    def difference(self) -> float:
        """value - control."""
        return self.value - self.control

    @property
    def half_width(self) -> float:
        """Half of the interval of value - control."""
        return (self.difference_high - self.difference_low) / 2


def usual_level(seeds: int) -> float:
    """The level of an interval over so many seeds: 95 %, and 99 % for four or fewer.

    Whether four numbers are Gaussian cannot be seen. Where they are not, an interval holds the truth less often.

    >>> usual_level(4), usual_level(5)
    (0.99, 0.95)
    """
    return 0.99 if integer(seeds, "seeds", 0) <= FEW_SEEDS else 0.95


def compare(values: Number, control: Number = 0.0, *, paired: bool = True, level: float | None = None) -> Comparison:
    """`values` over seeds, compared with `control`: both means and their difference, each with its t interval.

    - values: one number per seed; one that is not finite is a seed that failed. It is counted and no part of a mean
    - control: as many numbers, of the same seeds or of others; or one number that is known
    - paired: whether the control has the same seeds, which is narrower; if not, the interval is Welch's
    - level: of the interval; if None, that of `usual_level`

    With fewer than two seeds left, the interval is NaN: nothing is known of chance.

    >>> gain = compare([0.72, 0.70, 0.74], [0.68, 0.67, 0.69])
    >>> round(gain.difference, 4), round(gain.half_width, 4), gain.seeds, gain.level
    (0.04, 0.0573, 3, 0.99)
    """
    first, second = _row(values, "values"), _row(control, "control")
    known = np.ndim(control) == 0  # of a tensor, too
    if known:
        if not isfinite(second[0]):
            raise ValueError(f"control must be finite where it is one number, got {second[0]}")
        second = np.broadcast_to(second, first.shape)
    if paired and len(first) != len(second):
        raise ValueError(f"paired values and control must be as many, got {len(first)} and {len(second)}")
    numbers = tuple(first.tolist()), tuple(second.tolist())
    if paired or known:
        both = np.isfinite(first) & np.isfinite(second)
        failed = int((~both).sum())
        first, second = first[both], second[both]
        seeds, freedom, sign_p = len(first), max(len(first) - 1, 0), _sign_p(first - second, failed)
    else:
        all_of_them = len(first) + len(second)
        first, second = first[np.isfinite(first)], second[np.isfinite(second)]
        failed = all_of_them - len(first) - len(second)
        seeds, freedom, sign_p = min(len(first), len(second)), _welch_freedom(first, second), _rank_p(first, second)
    level = usual_level(seeds) if level is None else level
    error = _error(first - second) if paired or known else hypot(_error(first), _error(second))
    half = t_quantile(level, freedom) * error if freedom else nan
    value, other = (float(row[0] if _agree(row) else row.mean()) if len(row) else nan for row in (first, second))
    other = float(_row(control, "control")[0]) if known else other
    own, around = (half, 0.0) if known else (_half_width(first, level), _half_width(second, level))
    ends = (value - own, value + own, other - around, other + around, value - other - half, value - other + half)
    return Comparison(value, other, *ends, seeds, level, freedom, failed, sign_p, numbers, paired or known)


def _sign_p(differences: np.ndarray, failed: int) -> float:
    """One-sided p of the sign test, on the side where most are; a seed that failed, or is equal, is on neither."""
    count = len(differences) + failed
    most = max(int((differences > 0).sum()), int((differences < 0).sum()))
    return float(min(1.0, sum(comb(count, k) for k in range(most, count + 1)) / 2**count))


def _rank_p(first: np.ndarray, second: np.ndarray) -> float:
    """One-sided p of Mann and Whitney's test, on the side that is more likely."""
    from scipy.stats import mannwhitneyu

    if not min(len(first), len(second)):
        return 1.0
    return float(min(mannwhitneyu(first, second, alternative=side).pvalue for side in ("less", "greater")))


def p_value(difference: float, half_width: float, level: float, freedom: int) -> float:
    """How often chance alone gives at least this difference, either way; from a t interval of the level.

    1 where there is no interval, and so nothing that speaks against chance.

    >>> round(p_value(0.04, 0.0248, 0.95, 2), 4)
    0.0201
    """
    difference = number(difference, "difference", finite=False)
    half_width = number(half_width, "half_width", finite=False)
    freedom = min(integer(freedom, "freedom", 0), FREEDOMS)
    if freedom < 1 or not (isfinite(difference) and isfinite(half_width)):
        return 1.0
    if half_width == 0:
        return 0.0 if difference else 1.0
    t = abs(difference) * t_quantile(level, freedom) / half_width
    return max(1 - _within(atan(t / sqrt(freedom)), freedom), 0.0)


def seeds_to_decide(
    difference: float, half_width: float, seeds: int, between: tuple[float, float], *,
    level: float | None = None, freedom: int | None = None, assurance: float = ASSURANCE,
) -> int | None:  # fmt: skip
    """With how many seeds an interval no longer holds both numbers of `between`, with probability `assurance`.

    - difference, half_width, seeds, level, freedom: the interval as it is. The truth is taken to be there, and further
      seeds to be as unlike as these. level: if None, that of `usual_level`; freedom: if None, seeds - 1
    - between: nothing and what matters, say. Twice the same number: the interval is to lie on one side of it

    None where nothing is known of how unlike seeds are, as where all gave the same number, or where it would take more
    than a million.

    >>> seeds_to_decide(0.02, 0.2, 5, (0.0, 0.1)), seeds_to_decide(0.3, 0.4, 5, (0.0, 0.1))
    (28, 12)
    """
    difference = number(difference, "difference", finite=False)
    half_width = number(half_width, "half_width", finite=False)
    if len(ends := _row(between, "between")) != 2:
        raise ValueError(f"between must be two numbers, got {shown(between)}")
    low, high = ends.tolist()
    number(integer(seeds, "seeds", 0), "seeds")
    freedom = seeds - 1 if freedom is None else min(integer(freedom, "freedom", 0), 2**60)
    assurance = number(assurance, "assurance")
    unknown = seeds < 2 or freedom < 1 or not (isfinite(half_width) and isfinite(difference)) or half_width == 0
    if unknown or not low <= high:
        return None
    from scipy.special import ndtr

    spread = half_width * sqrt(seeds) / t_quantile(usual_level(seeds) if level is None else level, freedom)

    def enough(count: int) -> bool:
        now = usual_level(count) if level in (None, usual_level(seeds)) else level
        free = max(1, round(freedom / (seeds - 1) * (count - 1)))
        error = spread / sqrt(count)
        half = t_quantile(now, min(free, 1000)) * error * _errors_of_spread(min(free, 1000))
        reach = ndtr(np.stack([low + half - difference, high - half - difference]) / max(error, TINY))
        still_open = np.where(2 * half < high - low, 0.0, reach[0] - reach[1])
        return 1 - float(still_open.mean()) >= assurance

    counts = range(2, 1_000_001)
    found = bisect_left(counts, True, key=enough)
    return counts[found] if found < len(counts) else None


@lru_cache(maxsize=64)
def _errors_of_spread(freedom: int) -> np.ndarray:
    """An estimated standard deviation over the true one: 400 values, as likely as each other."""
    grid = np.linspace(0, 1 + 8 / sqrt(freedom), 20001)[1:]
    log_density = (freedom - 1) * np.log(grid) - freedom * grid**2 / 2
    share = np.exp(log_density - log_density.max()).cumsum()
    middles = (np.arange(400) + 0.5) / 400
    found: np.ndarray = grid[np.searchsorted(share / share[-1], middles)]
    return found


def _row(values: Number, name: str) -> np.ndarray:
    """As one row of float64, whatever it came as."""
    if hasattr(values, "detach"):  # whoever has a tensor has torch
        from joma.host.arguments import as_numbers

        values = as_numbers(values, name).detach().double().cpu().numpy()
    try:
        read = np.asarray(values)
        if read.dtype.kind not in "biuf" or isinstance(values, np.ma.MaskedArray):  # a mask would be lost
            raise TypeError
    except (TypeError, ValueError, OverflowError, RuntimeError):
        wanted = "a real number, a list or an array of them, or a tensor"
        raise ValueError(f"{name} must be {wanted}, got {shown(values)}") from None
    if read.ndim > 1:
        raise ValueError(f"{name} must be one row of numbers, one per seed, got shape {read.shape}")
    return read.reshape(-1).astype(np.float64)


def _half_width(row: np.ndarray, level: float) -> float:
    return nan if len(row) < 2 else t_quantile(level, len(row) - 1) * _error(row)


def _agree(row: np.ndarray) -> bool:
    """Whether all numbers are the same. Rounded sums would give three times 0.05 another mean, and a spread."""
    return bool((row == row[0]).all())


def _error(row: np.ndarray) -> float:
    """The standard error of a mean."""
    if len(row) < 2:
        return nan
    if _agree(row):
        return 0.0
    size = 2.0 ** floor(log2(max(np.abs(row).max(), TINY)))  # no square leaves the range
    return float((row / size).std(ddof=1)) / sqrt(len(row)) * size


def _welch_freedom(first: np.ndarray, second: np.ndarray) -> int:
    """Welch's degrees of freedom, rounded down: the wider, safer side. 0 where there is no interval."""
    if min(len(first), len(second)) < 2:
        return 0
    errors = _error(first), _error(second)
    if not max(errors):
        return len(first) + len(second) - 2
    parts = [(error / max(errors)) ** 2 for error in errors]
    freedom = sum(parts) ** 2 / sum(part**2 / (len(row) - 1) for part, row in zip(parts, (first, second), strict=True))
    return max(1, int(min(freedom, 1e5)))
