"""Skill over persistence from the squared errors that were kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from joma.recipes.language_curves import learned_at, mean_over_seeds
from joma.runs import Run
from joma.studies.rebound._forecast_scores import PERSISTENCE

OPTIMIZERS = ("Adam", "SGD")


def variants_of(run: Run) -> dict[str, list[str]]:
    """By optimizer the variants that learned more than the words' frequencies and of which something was foretold."""
    names = [name.removesuffix("/at") for name in run.names() if name.endswith("/at")]
    return {
        optimizer: [name for name in names if name.startswith(optimizer) and learned_at(run, name)[0]]
        for optimizer in OPTIMIZERS
    }


def errors(run: Run, variants: Sequence[str], quantity: str, forecaster: str) -> np.ndarray:
    """Squared errors of all layers of these variants, (seeds, layers, origins)."""
    return np.concatenate([run.value(f"{name}/{quantity}/{forecaster}") for name in variants], axis=1)


def skill_of(run: Run, variants: Sequence[str], quantity: str, forecaster: str) -> np.ndarray:
    """Over all layers and all t, one number per seed, as `joma.measure.forecast.skill` has it; NaN of diverged ones."""
    return _skill(*(errors(run, variants, quantity, name).mean((1, 2)) for name in (forecaster, PERSISTENCE)))


def skill_by_step(run: Run, variants: Sequence[str], quantity: str, forecaster: str) -> np.ndarray:
    """The same for every t, (seeds, origins)."""
    return _skill(*(errors(run, variants, quantity, name).mean(1) for name in (forecaster, PERSISTENCE)))


def _skill(error: np.ndarray, still: np.ndarray) -> np.ndarray:
    known = np.isfinite(still[:, 0] if still.ndim > 1 else still)
    mean = still[known].mean(0)
    return np.asarray((still - error) / np.where(mean > 0, mean, np.nan))


def skills(run: Run, variants: Sequence[str], quantity: str, names: Iterable[str]) -> dict[str, float]:
    """Means over seeds by forecaster."""
    return {name: mean_over_seeds(skill_of(run, variants, quantity, name)) for name in names}
