"""Eq. 6 as a forecaster of an entropy curve: the curve that eq. 6 draws, fitted to the past.

As many components as the attention had keys to choose from at the start, exp(H), with targets mu spread evenly from one
value to another, and a clock: three constants on a grid, fitted to all of the past. Several of these curves may fit the
past as well and part in the future. So the forecast is their mean, each with the likelihood of its errors, which are
taken as Gaussian and as large as those of the best. It goes on from the present value as these curves do.

The attention is softmax(v^2/2), which Theorem 1 gives with eq. 6. The caption of Figure 4 prints softmax(v^2)
(ERRATA 26).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from joma.theory import salience

SCALES = {"printed": 1.0, "corrected": 0.5}
"""Of v^2 in the softmax."""
LOWEST, HIGHEST = np.arange(0.25, 2.1, 0.25), np.arange(0.5, 4.1, 0.25)
"""Ends of the spread of mu that are tried."""
CLOCKS = np.geomspace(1e-3, 30.0, 120)
"""Times of eq. 6 that the present is tried to be."""
SMALLEST = 0.003
"""Nats: no smaller error of a curve is taken for granted. Of 0.003, 0.01 and 0.03 and the best curve alone, this served
eq. 6 best on small networks and on 512 steps at paper scale; it was settled before the run that is judged."""
_TIMES = np.geomspace(1e-4, 100.0, 300)


def equation_6(steps: Tensor, curve: Tensor, to: float, *, scale: float) -> Tensor:
    """A forecaster for `joma.measure.forecast.backtest`: steps (points,), curve (..., points) -> (...)."""
    at, rows = np.asarray(steps, dtype=float), np.asarray(curve, dtype=float)
    told = [_told(at, row, float(to), scale) for row in rows.reshape(-1, rows.shape[-1])]
    return torch.tensor(told, dtype=torch.float64).view(curve.shape[:-1])


def _told(at: np.ndarray, past: np.ndarray, to: float, scale: float) -> float:
    if not np.isfinite(past).all():
        return float("nan")
    keys = int(np.clip(round(float(np.exp(past[0]))), 2, 1000))
    shape = np.append(at, to)[None] * CLOCKS[:, None] / at[-1]  # (clocks, points + 1), times of eq. 6
    drawn = _read(_table(keys, scale), shape)  # (spreads, clocks, points + 1)
    drawn = drawn - drawn[..., -2:-1]  # from the present on
    off = ((past - past[-1] - drawn[..., :-1]) ** 2).mean(-1)
    chance = np.exp(-len(past) * (off - off.min()) / (2 * max(off.min(), SMALLEST**2)))
    return float(past[-1] + (chance * drawn[..., -1]).sum() / chance.sum())


@lru_cache(maxsize=16)
def _table(keys: int, scale: float) -> np.ndarray:
    """Entropy by spread and by time of `_TIMES`, (spreads, times)."""
    spreads = [(low, high) for low in LOWEST for high in HIGHEST if low < high]
    mu = torch.stack([torch.linspace(low, high, keys, dtype=torch.float64) for low, high in spreads])
    return np.asarray(salience.entropy_curve(mu, torch.from_numpy(_TIMES), scale=scale))


def _read(table: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The rows of a table at other times, linearly in their logarithm; at time 0 as at the first."""
    place = np.log(np.maximum(times, _TIMES[0]) / _TIMES[0]) / np.log(_TIMES[1] / _TIMES[0])
    left = np.minimum(place.astype(int), len(_TIMES) - 2)
    share = np.minimum(place - left, 1.0)
    return np.asarray((1 - share) * table[:, left] + share * table[:, left + 1])
