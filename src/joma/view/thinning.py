"""Fewer points of a curve, such that it looks the same: of every stretch of steps the smallest and the largest number.

A mean over a stretch would hide a spike; every n-th step would miss it. Smallest and largest of each stretch keep it,
in the order in which they come. The first and the last step stay as they are.

Each curve keeps its own extremes, so numbers of several curves at one point need not be of one step. What is made of
several curves (a mean, parts that add up, a heat map) takes whole steps instead.
"""

import numpy as np


def thin(steps: np.ndarray, values: np.ndarray, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values (steps, ...) with at most `points` steps, at least 4; fewer come back as they are.

    Each stretch becomes two points, at its first and at its last step. What is no number is passed over, unless a
    stretch has nothing else.
    """
    count = len(steps)
    if count <= max(points, 4):
        return steps, values
    stretches = (max(points, 4) - 2) // 2
    starts = 1 + np.arange(stretches) * (count - 2) // stretches  # of what lies between the first and the last step
    ends = np.append(starts[1:], count - 1)
    pairs = _ends(values.reshape(count, -1), starts, ends).reshape(2 * stretches, *values.shape[1:])
    at = np.stack([steps[starts], steps[ends - 1]], axis=1).reshape(-1)
    lonely = np.repeat(starts == ends - 1, 2) & (
        np.arange(2 * stretches) % 2 == 1
    )  # a stretch of one step is one point
    kept = np.concatenate([values[:1], pairs[~lonely], values[-1:]])
    return np.concatenate([steps[:1], at[~lonely], steps[-1:]]), kept


def _ends(values: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """(2 stretches, curves): the extremes of each stretch, the one that comes first before the other."""
    found = np.empty((2 * len(starts), values.shape[1]), values.dtype)
    columns = np.arange(values.shape[1])
    for at, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        part = values[start:end]
        real = np.isfinite(part)
        low = np.where(real, part, np.inf).argmin(0)
        high = np.where(real, part, -np.inf).argmax(0)
        found[2 * at] = part[np.minimum(low, high), columns]
        found[2 * at + 1] = part[np.maximum(low, high), columns]
    return found


def whole_steps(steps: np.ndarray, values: np.ndarray, points: int) -> tuple[np.ndarray, np.ndarray]:
    """At most `points` of the steps, evenly spread, with all numbers that were recorded there; first and last stay."""
    if len(steps) <= max(points, 2):
        return steps, values
    at = np.linspace(0, len(steps) - 1, max(points, 2)).round().astype(int)
    return steps[at], values[at]


def mean_over(values: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """The mean of the finite numbers along axes; NaN where there are none."""
    if not axes:
        return values
    real = np.isfinite(values)
    count = real.sum(axes)
    total = np.where(real, values, 0).sum(axes, dtype=float)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
