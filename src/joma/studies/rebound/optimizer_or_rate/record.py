"""Runs read where they are alike: at the moment when the validation loss crosses a level.

Between two measuring points all is read in the logarithm of the step. A run that never gets there has NaN.
"""

from typing import Literal, NamedTuple

import numpy as np

from joma.recipes.language.curves import alive, curve, steps_of
from joma.runs import Run

OPTIMIZERS = ("Adam", "SGD")
QK = "first QK"
Alike = Literal["steps", "way"]
FEWEST = 3  # seeds that must reach a level for a rate to count there


class Reading(NamedTuple):
    """One optimizer's runs at one level, (rates, seeds) first."""

    rates: np.ndarray
    steps: np.ndarray  # when they are there, (rates, seeds)
    entropy: np.ndarray  # (rates, seeds, layers)
    way: np.ndarray  # how far the query and key weights of the first layer are from their start, (rates, seeds)


def levels(run: Run) -> list[float]:
    """The losses at which runs are compared, the highest first."""
    return sorted(run.config["levels"], reverse=True)


def at_loss(run: Run, optimizer: str, level: float) -> Reading:
    """Where the validation loss first is as low as `level`."""
    losses = curve(run, optimizer, "valid/loss")
    there = (losses <= level) & alive(run, optimizer)[..., None]
    reached = there.any(-1) & ~there[..., 0]
    place = np.where(reached, there.argmax(-1), 1)
    before, after = (_taken(losses, place - back) for back in (1, 0))
    share = np.where(reached, (level - before) / np.where(after == before, 1.0, after - before), np.nan)

    def read(values: np.ndarray) -> np.ndarray:
        """(rates, seeds, points, ...) between the point before and the one that is there."""
        earlier, later = (_taken(values, place - back) for back in (1, 0))
        return np.asarray(earlier + share.reshape(*share.shape, *[1] * (later.ndim - 2)) * (later - earlier))

    log_steps = np.broadcast_to(np.log(np.maximum(steps_of(run, optimizer), 1.0)), losses.shape)
    entropy, way = curve(run, optimizer, "valid/entropy").mean(-1), curve(run, optimizer, f"way/{QK}")
    return Reading(run.value(f"{optimizer}/rates"), np.exp(read(log_steps)), read(entropy), read(way))


def _taken(values: np.ndarray, place: np.ndarray) -> np.ndarray:
    """(rates, seeds, points, ...) at one point each, (rates, seeds, ...)."""
    index = place.reshape(*place.shape, *[1] * (values.ndim - 2))
    return np.take_along_axis(values, index, axis=2)[:, :, 0]


def reaching(found: Reading) -> list[int]:
    """The rates that get there with at least `FEWEST` seeds, in increasing order."""
    count = np.isfinite(found.steps).sum(1)
    return [int(i) for i in np.argsort(found.rates) if count[i] >= FEWEST]


class Pairs(NamedTuple):
    """Adam and SGD where they are alike, (rates, seeds) each."""

    rates: np.ndarray  # of SGD
    adam: np.ndarray
    sgd: np.ndarray


def at_equal(adam: Reading, sgd: Reading, by: Alike = "steps", layer: int = 0) -> Pairs:
    """Entropy of Adam and of SGD where both took as many steps to the level, or went as far.

    For every rate of SGD, Adam is read between its rates, linearly in the logarithm of steps or way. Rates of SGD that
    lie beyond all of Adam's are left out.
    """
    rates, rows, twins = [], [], []
    for rate in reaching(sgd):
        wanted = getattr(sgd, by)[rate]
        twin = np.array([_between_rates(adam, by, float(one), seed, layer) for seed, one in enumerate(wanted)])
        if np.isfinite(twin).sum() >= FEWEST:
            rates.append(sgd.rates[rate])
            rows.append(sgd.entropy[rate, :, layer])
            twins.append(twin)
    shape = (len(rates), sgd.steps.shape[1])
    return Pairs(np.array(rates), np.reshape(twins, shape), np.reshape(rows, shape))


def _between_rates(adam: Reading, by: Alike, wanted: float, seed: int, layer: int) -> float:
    kept = np.isfinite(adam.steps[:, seed])
    x, entropy = getattr(adam, by)[kept, seed], adam.entropy[kept, seed, layer]
    if not len(x) or not x.min() <= wanted <= x.max():
        return float("nan")
    order = np.argsort(x)
    return float(np.interp(np.log(wanted), np.log(x[order]), entropy[order]))
