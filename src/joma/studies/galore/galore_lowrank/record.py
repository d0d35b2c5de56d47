"""What the decoders recorded, read back by seed; networks that diverged are NaN."""

from __future__ import annotations

import numpy as np

from joma.host.words import counted
from joma.recipes.language.curves import alive, curve, steps_of
from joma.runs import Run
from joma.studies.galore.galore_lowrank.run import SERIES, TEXT
from joma.studies.galore.galore_lowrank.spectra import STATISTICS


def variants(run: Run) -> dict[str, int]:
    """The names of all decoders, with the shorter side m of all their matrices."""
    config = run.config
    return {counted(layers, "layer"): int(config["width"]) for layers in config["layers"]} | {
        SERIES: int(config["series_width"])
    }


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


def after_refresh(run: Run, name: str) -> np.ndarray:
    """Which points have one before them that is `refresh` steps away, as indices."""
    return np.flatnonzero(np.diff(steps_of(run, name), prepend=-1) == int(run.config["refresh"]))
