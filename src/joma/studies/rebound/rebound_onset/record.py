"""When attention falls, when it begins to come back, and how these steps depend on a factor.

In the first steps, before a network knows more than how frequent words are, entropy dips and recovers: that is not the
fall of Figure 6, and it is not counted: both steps are read after that. A first run of 400 steps at paper scale had
been seen when this was fixed. In the run at paper scale entropy is 0.2 nats down in most networks by the time they know
as much, so that there the step of the fall is the step of learning.
"""

import numpy as np

from joma.recipes.language.curves import LEARNED, alive, curve, steps_of
from joma.runs import Run
from joma.studies.rebound._points import lowest_between
from joma.studies.rebound.rebound_onset.run import FACTORS

RISE = 0.05
"""Nats that entropy must come back for its lowest point to be a valley: what single runs of one recipe differ by."""
FALLEN = 0.2  # nats below the start at which attention counts as fallen: less than any layer falls by that learns
FEWEST_LEVELS = 3  # of a factor, the base among them: two always lie on a line


def places(run: Run) -> dict[str, tuple[str, int]]:
    """Every layer of every depth, in words: (variant, layer)."""
    return {
        "one layer" if layers == 1 else f"layer {layer + 1} of {layers}": (f"L{layers}", layer)
        for layers in map(int, run.config["depths"])
        for layer in range(layers)
    }


def first_learned(run: Run, variant: str) -> np.ndarray:
    """(levels, seeds): the first point at which a network knows more than the words' frequencies."""
    bound = np.asarray(run.value("loss by frequency")) - LEARNED
    below = (curve(run, variant, "valid/loss") < bound[:, None, None]) & alive(run, variant)[..., None]
    return np.asarray(np.where(below.any(-1), below.argmax(-1), -1))


def valley(steps: np.ndarray, entropy: np.ndarray, first: int) -> float:
    """The step of the valley of a curve (points,), NaN if there is none yet."""
    low = first + int(entropy[first:].argmin())
    if entropy[0] - entropy[low] < FALLEN or entropy[low:].max() - entropy[low] < RISE:
        return float("nan")
    if low < 2:  # step 0 has no logarithm
        return float(steps[low])
    around = slice(low - 1, low + 2)
    return float(np.exp(lowest_between(np.log(steps[around]), entropy[around])))


def fall(steps: np.ndarray, entropy: np.ndarray, first: int) -> float:
    """The first step, from `first` on, at which a curve (points,) is `FALLEN` below its start; NaN if none."""
    level = entropy[0] - FALLEN
    below = np.flatnonzero(entropy[first:] <= level)
    if not len(below):
        return float("nan")
    point = first + int(below[0])
    if point == first or point < 2:  # it was below when it learned; step 0 has no logarithm
        return float(steps[point])
    share = (entropy[point - 1] - level) / (entropy[point - 1] - entropy[point])
    return float(steps[point - 1] * (steps[point] / steps[point - 1]) ** share)


def steps_read(run: Run, variant: str, layer: int, what: str) -> np.ndarray:
    """(levels, seeds): the step of the fall or of the valley; NaN where there is none."""
    curves = curve(run, variant, "valid/entropy")[..., layer]  # levels, seeds, points
    return _read_all(run, variant, curves, first_learned(run, variant), what)


def class_steps(run: Run, variant: str, layer: int, grouping: int, what: str) -> np.ndarray:
    """(classes, seeds) of the base, by how frequent the query's word is, or by shuffled words."""
    curves = curve(run, variant, "valid/classes")[0][:, :, layer, grouping]  # seeds, points, classes
    curves = np.moveaxis(curves, 2, 0)
    first = np.broadcast_to(first_learned(run, variant)[0], curves.shape[:2])
    return _read_all(run, variant, curves, first, what)


def _read_all(run: Run, variant: str, curves: np.ndarray, first: np.ndarray, what: str) -> np.ndarray:
    steps, read = steps_of(run, variant), {"fall": fall, "valley": valley}[what]
    found = np.full(first.shape, np.nan)
    for place in zip(*np.nonzero(first >= 0), strict=True):
        found[place] = read(steps, curves[place], int(first[place]))
    return found


def factor_levels(run: Run, factor: str) -> tuple[np.ndarray, np.ndarray]:
    """Values of a factor in increasing order, and the levels that have them, the base among them."""
    which, value = run.value("factor"), run.value("value").copy()
    number = FACTORS.index(factor)
    value[0] = run.value("base")[number]
    levels = np.concatenate([[0], np.flatnonzero(which == number)])
    levels = levels[np.argsort(value[levels])]
    return value[levels], levels


def points_of(run: Run, factor: str, what: str, variant: str, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """Values of a factor (levels,), and the steps of the fall or the valley there, (levels, seeds)."""
    if factor == "queries":
        return run.value("class frequency"), class_steps(run, variant, layer, 0, what)
    values, levels = factor_levels(run, factor)
    return values, steps_read(run, variant, layer, what)[levels]


def slopes(values: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """d log step / d log value for every seed, least squares. values (levels,), steps (levels, seeds)."""
    found = np.full(steps.shape[1], np.nan)
    for seed, y in enumerate(np.log(steps.T)):
        known = np.isfinite(y)
        if known.sum() >= FEWEST_LEVELS:
            found[seed] = np.polyfit(np.log(values)[known], y[known], 1)[0]
    return found


def slopes_of_chance(values: np.ndarray, base: np.ndarray) -> np.ndarray:
    """The same where base networks of other seeds stand in for the other levels. base (seeds,)."""
    return slopes(values, np.array([np.roll(base, place) for place in range(len(values))]))
