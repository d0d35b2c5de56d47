"""The past of one training run, as a forecaster gets it.

Everything that `forecast` records of a network's attention at its measuring points, without the words.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from joma.recipes.language.curves import alive, curve, steps_of
from joma.runs import Run

SPREAD = "spread"  # what the measure of the logits' spread is recorded under
OF_LAYERS = ("entropy", "variance", "shared", "specific", "cross", "growth", "alignment", "mean_share", "rank")
"""The fields of a history that have one row per layer."""


class History(NamedTuple):
    """What is known of a run up to a step: points last, layers before them. Heads are averaged."""

    optimizer: str
    """Adam or SGD."""
    n_keys: int
    """Tokens in a sequence: the query at place n sees n keys, n from 1 to this."""
    steps: np.ndarray
    """(points,), from 0 on."""
    loss: np.ndarray
    """(points,), nats."""
    entropy: np.ndarray
    """(layers, points), nats, as are the following."""
    variance: np.ndarray
    shared: np.ndarray
    specific: np.ndarray
    cross: np.ndarray
    growth: np.ndarray
    alignment: np.ndarray
    mean_share: np.ndarray
    rank: np.ndarray

    @property
    def n_layers(self) -> int:
        return len(self.entropy)

    def until(self, step: float) -> "History":
        """The same up to a step, that step included: copies, so that nothing of what comes after can be reached."""
        known = self.steps <= step
        past = {name: getattr(self, name)[..., known].copy() for name in ("steps", "loss", *OF_LAYERS)}
        return self._replace(**past)


def histories(run: Run, variant: str, members: Iterable[int]) -> list[History]:
    """Of some seeds of a variant of a finished run, each to its end."""

    def of_layers(name: str) -> np.ndarray:
        values = curve(run, variant, "valid/entropy" if name == "entropy" else f"{SPREAD}/{name}")[0].astype(np.float64)
        return np.moveaxis(values.mean(-1) if values.ndim > 3 else values, 1, 2)  # (seeds, layers, points)

    optimizer, steps = variant.split(",")[0], steps_of(run, variant).astype(np.float64)
    layers = {name: of_layers(name) for name in OF_LAYERS}
    loss = curve(run, variant, "valid/loss")[0].astype(np.float64)
    return [
        History(optimizer, int(run.config["length"]), steps, loss[n], **{key: part[n] for key, part in layers.items()})
        for n in members
    ]


def open_and_sealed(run: Run, variant: str) -> tuple[list[int], list[int]]:
    """Seeds that constants may be fitted on, and those that forecasts are judged by; diverged ones are in neither."""
    kept, count = alive(run, variant)[0], int(run.config["open_seeds"])
    return [n for n in range(count) if kept[n]], [n for n in range(count, len(kept)) if kept[n]]
