"""Entropy and loss of networks over training, each read at its own minimum, its end, or at equal loss."""

from typing import NamedTuple

import numpy as np


class Path(NamedTuple):
    """A network from its beginning on, the way down of its base included."""

    steps: np.ndarray  # (points,)
    entropy: np.ndarray  # (layers, seeds, points); NaN for seeds that diverged
    loss: np.ndarray  # (seeds, points), on the validation text


def valleys(found: Path) -> np.ndarray:
    """The lowest point of the mean of the other seeds, as a number of measuring points, (layers, seeds)."""
    known = np.nan_to_num(found.entropy)  # a seed that diverged counts for nobody
    return np.asarray((known.sum(1, keepdims=True) - known).argmin(-1))


def valley_steps(found: Path) -> np.ndarray:
    """When each seed's entropy is lowest, (layers, seeds) steps; NaN for seeds that diverged."""
    at = found.steps[np.nan_to_num(found.entropy, nan=np.inf).argmin(-1)].astype(float)
    return np.asarray(np.where(np.isfinite(found.entropy).all(-1), at, np.nan))


def rises(found: Path, window: int, ends: np.ndarray | None = None) -> np.ndarray:
    """From the own valley to the end, (layers, seeds); 0 where the end comes before the valley."""
    low, place = valleys(found)[..., None], np.arange(len(found.steps))
    ends = np.full(found.entropy.shape[1], place[-1]) if ends is None else ends
    last = found.steps[ends][:, None]
    near = (found.steps > last - window) & (found.steps <= last) & (place >= low)  # (layers, seeds, points)
    above = np.where(near, found.entropy - np.take_along_axis(found.entropy, low, -1), 0.0)
    return np.asarray(above.sum(-1) / np.maximum(near.sum(-1), 1))


def equal_loss(one: Path, other: Path) -> tuple[np.ndarray, np.ndarray]:
    """By seed, the measuring points at which the losses of both are first as low as the lowest that both reach."""
    lowest = [np.minimum.accumulate(path.loss, -1) for path in (one, other)]
    level = np.maximum(lowest[0][:, -1], lowest[1][:, -1])
    first, second = ((low <= level[:, None]).argmax(-1) for low in lowest)
    return first, second
