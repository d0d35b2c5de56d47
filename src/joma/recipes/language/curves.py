"""What `joma.recipes.language` recorded, read back by variant.

Curves, losses, rebounds, means over seeds; and why a record may show nothing.
"""

import json
from collections.abc import Iterable
from math import isfinite
from typing import Any, Literal

import numpy as np
import torch

from joma.claims.contract import NotRun
from joma.measure.intervals import compare
from joma.measure.rebound import FEWEST_SEEDS, Rebound, drop_and_rebound, rebound
from joma.runs import Run

LEARNED = 0.05  # nats by which a loss must be below that of the words' frequencies for a network to have learned


def steps_of(run: Run, variant: str) -> np.ndarray:
    """The measuring points, (points,)."""
    return run.steps(f"{variant}/valid/loss")


def curve(run: Run, variant: str, measure: str) -> np.ndarray:
    """One measure over training, (rates, seeds, points, ...). `train_loss` is NaN at step 0: no step was taken yet."""
    recorded = run.array(f"{variant}/{measure}")  # (points, members, ...)
    rates, seeds = len(run.value(f"{variant}/rates")), len(run.value(f"{variant}/seeds"))
    return np.moveaxis(recorded.reshape(len(recorded), rates, seeds, *recorded.shape[2:]), 0, 2)


def alive(run: Run, variant: str) -> np.ndarray:
    """Which members never diverged, (rates, seeds) bool."""
    return curve(run, variant, "diverged_at")[:, :, -1] < 0


def best_loss(run: Run, variant: str) -> np.ndarray:
    """The lowest validation loss of each member, (rates, seeds); NaN for one that diverged."""
    return np.asarray(np.where(alive(run, variant)[..., None], curve(run, variant, "valid/loss"), np.nan).min(-1))


def learned_at(run: Run, variant: str) -> np.ndarray:
    """For every rate, whether its networks learned more than the words' frequencies, (rates,)."""
    mean = np.array([mean_over_seeds(row) for row in best_loss(run, variant)])
    return np.asarray(mean < float(run.value(f"{variant}/loss by frequency")) - LEARNED)


def layer_curves(run: Run, variant: str, measure: str = "valid/entropy", rate: int = 0) -> np.ndarray:
    """(layers, seeds, points) of the members of one rate that did not diverge; heads are averaged."""
    values = curve(run, variant, measure)[rate][alive(run, variant)[rate]]  # (seeds, points, layers[, heads])
    values = values if values.ndim == 3 else values.mean(-1)
    return np.moveaxis(values, 2, 0)


def allocated(run: Run, variant: str, what: Literal["parts", "part_errors"] = "parts") -> tuple[list[str], np.ndarray]:
    """The groups of parameters, and how much of each layer's change of entropy came through each of them.

    what: that part, or its numerical error.

    (rates, seeds, points, groups, layers), each point since the one before; 0 at the first. Only of variants whose
    recipe asks for it, see `joma.recipes.language.Recipe.allocate`.
    """
    groups: list[str] = json.loads(bytes(run.value(f"{variant}/groups")).decode())
    return groups, curve(run, variant, f"allocation/{what}")


def layer_rebounds(run: Run, variant: str, measure: str = "valid/entropy", rate: int = 0) -> Rebound | None:
    """Drop and rebound of every layer, (layers,) each, with margins from the seeds (see `joma.measure.rebound`).

    None where too few members survived to know what chance does.
    """
    curves = layer_curves(run, variant, measure, rate)
    if curves.shape[1] < FEWEST_SEEDS:
        return None
    return rebound(torch.from_numpy(curves.copy()), steps=torch.from_numpy(steps_of(run, variant)), over_seeds=True)


def drops_and_rebounds(
    run: Run, variant: str, measure: str = "valid/entropy", rate: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Drop and rebound of every layer and seed, (layers, seeds) each, read at the valley of the other seeds' mean.

    NaN for members that diverged, and for all of them where fewer than `FEWEST_SEEDS` are left.
    """
    curves, kept = layer_curves(run, variant, measure, rate), alive(run, variant)[rate]
    drop, back = (np.full((len(curves), len(kept)), np.nan) for _ in range(2))
    if curves.shape[1] >= FEWEST_SEEDS:
        found = drop_and_rebound(torch.from_numpy(curves.astype(np.float64)))
        drop[:, kept], back[:, kept] = (part.numpy() for part in found)
    return drop, back


def mean_over_seeds(values: Any) -> float:
    """The mean of one number per seed; NaN ones (diverged) are left out, and NaN if none is left.

    >>> mean_over_seeds([5.0, 5.5, float("nan")])
    5.25
    """
    return compare(np.asarray(values, dtype=float).reshape(-1)).value


def diverged(run: Run, variants: Iterable[str]) -> dict[str, dict[str, float]]:
    """How many members of each variant had a loss that was no longer finite, for a finding's `details`; {} if none."""
    lost = {f"runs of {name}": float((~alive(run, name)).sum()) for name in variants}
    lost = {name: count for name, count in lost.items() if count}
    return {"diverged and left out": lost} if lost else {}


def must_tell(run: Run, variants: Iterable[str]) -> None:
    """Refuse (`NotRun`) to judge by networks of which too many diverged, or that learned nothing."""
    for name in variants:
        if (left := int(alive(run, name).sum())) < FEWEST_SEEDS:
            raise NotRun(f"too many runs of {name} diverged: {left} are left", rate=run.config["rate"] / 3)
        if reason := learned_nothing(run, name):
            raise NotRun(reason, steps=2 * run.config["steps"])


def learned_nothing(run: Run, variant: str, rate: int = 0) -> str:
    """Why the networks of one rate show nothing: they learned the words' frequencies and no more. Empty if more.

    Where all diverged there is no loss, and nothing was learned either.
    """
    if learned_at(run, variant)[rate]:
        return ""
    loss = mean_over_seeds(best_loss(run, variant)[rate])
    if not isfinite(loss):
        return f"the networks of {variant} learned nothing: all diverged"
    frequencies = float(run.value(f"{variant}/loss by frequency"))
    return (
        f"the networks of {variant} learned no more than how frequent words are: their best loss is {loss:.3f} nats, "
        f"predicting by frequency alone has {frequencies:.3f} nats, and they must be {LEARNED:g} nats lower than that"
    )
