"""What the decoders recorded, read back by seed; networks that diverged are NaN."""

from __future__ import annotations

import numpy as np

from joma.recipes.language_curves import alive, curve, steps_of
from joma.runs import Run
from joma.studies.galore._lowrank_networks import TEXT
from joma.studies.galore._lowrank_spectra import STATISTICS


def gradient(run: Run, name: str, batch: str, statistic: str, *, text: int = TEXT) -> np.ndarray:
    """A statistic of gradients, (seeds, points, layers, matrices); batch: large, other, small, gaussian."""
    return np.asarray(probe(run, name, f"gradient/{batch}", text=text)[..., STATISTICS.index(statistic)])


def probe(run: Run, name: str, measure: str, *, text: int = TEXT) -> np.ndarray:
    """One recorded series of the text or of the twins, (seeds, points, ...)."""
    found: np.ndarray = curve(run, name, f"probe/{measure}")[text].astype(float)
    found[~alive(run, name)[text]] = np.nan
    return found


def rank(run: Run, name: str, batch: str = "large", *, text: int = TEXT) -> np.ndarray:
    """Stable rank, the geometric mean over layers, (seeds, points, matrices)."""
    return np.asarray(np.exp(np.log(gradient(run, name, batch, "stable rank", text=text)).mean(2)))


def steps(run: Run, name: str) -> np.ndarray:
    """The points at which gradients were taken."""
    return steps_of(run, name)


def apart(run: Run, name: str) -> np.ndarray:
    """Which points have one before them that is `refresh` steps away, as indices."""
    return np.flatnonzero(np.diff(steps(run, name), prepend=-1) == int(run.config["refresh"]))
