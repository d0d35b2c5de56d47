"""What a run of `cdag` recorded, of the networks that can be judged."""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np

from joma.runs import Run
from joma.studies.cdag.cdag.network import COLUMNS

FALLEN = 0.1  # of ln(classes), what guessing loses: networks whose loss falls by less have not learned
SMALL, USUAL, RESIDUALS = "small start", "usual start", "residual"
NETWORKS = (SMALL, USUAL, RESIDUALS)


def sound(run: Run, name: str) -> Any:
    """(members,) whether a network trained to its end: it did not diverge, and its loss is a number throughout."""
    return (run.array(f"{name}/diverged_at")[-1] < 0) & np.isfinite(run.array(f"{name}/loss")).all(0)


def _of_sound(run: Run, name: str, values: Any) -> Any:
    """Values (points, members) of the members that are sound; NaN if there is none, so that there is a picture."""
    kept = sound(run, name)
    return values[:, kept] if kept.any() else np.full(values.shape, np.nan)


def column(run: Run, name: str, what: str) -> Any:
    """One of the counts over training, (points, members)."""
    return _of_sound(run, name, run.array(f"{name}/counts")[:, :, COLUMNS.index(what)])


def share(run: Run, name: str, what: str, of: str = "") -> Any:
    """Of the edges or nodes counted as `of` those counted as `what`, (points, members); NaN where none is counted.

    Without `of`, those of `what` that are positive.
    """
    part, total = (column(run, name, each) for each in ((what, of) if of else (f"{what} positive", what)))
    return np.divide(part, total, out=np.full(total.shape, np.nan), where=total > 0)


def learning(run: Run, name: str) -> Any:
    """Of each member the measuring points with between a tenth and nine tenths of the fall of its loss behind them.

    If there is none, that at which it is nearest to half; if the loss never falls, the last. (points, members) bool.
    """
    loss = _of_sound(run, name, run.array(f"{name}/loss"))
    fall = loss[0] - loss.min(0)
    fallen = (loss[0] - loss) / np.where(fall > 0, fall, 1.0)
    during = (fallen >= 0.1) & (fallen <= 0.9)
    chosen = np.where(fall > 0, np.abs(fallen - 0.5).argmin(0), len(loss) - 1)
    during[chosen, np.arange(loss.shape[1])] |= ~during.any(0)
    return during


def while_learning(run: Run, name: str, values: Any) -> Any:
    """The mean of values (points, members) over those points that have one, (members,)."""
    there = learning(run, name) & np.isfinite(values)
    total = np.where(there, values, 0.0).sum(0)
    return np.divide(total, there.sum(0), out=np.full(total.shape, np.nan), where=there.any(0))


def unlearned(run: Run, name: str) -> str | None:
    """Why nothing can be said of these networks; None if they learned."""
    if not sound(run, name).any():
        return f"all networks of the kind {name!r} diverged"
    loss = _of_sound(run, name, run.array(f"{name}/loss"))
    if (loss[0] - loss.min(0)).mean() < FALLEN * log(run.config["classes"]):
        return f"networks of the kind {name!r} did not learn the classes"
    return None
