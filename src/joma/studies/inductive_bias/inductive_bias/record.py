"""What a run recorded of the hypercube and of the digits, by seed."""

from typing import Any

import numpy as np

from joma.claims.guards import mean_known
from joma.data.stroke_digits import CLASSES
from joma.recipes.grid import Grid
from joma.runs import Run
from joma.studies.inductive_bias.inductive_bias.hypercube import BUILT, LINEAR, MLP, decayed
from joma.studies.inductive_bias.inductive_bias.random_labels import DEEP, SHAPES

CHANCE = 1 / CLASSES
FIT_AT = 0.95  # training accuracy from which labels count as fitted


class Contrast:
    """What a run recorded of the hypercube. A network that diverged or whose loss did not fall does not count."""

    def __init__(self, run: Run) -> None:
        self.steps = run.steps(f"{LINEAR}/scores/loss")
        self._run = run
        self.decayed = tuple(decayed(decay) for decay in run.config["weight_decays"])
        self.methods = (LINEAR, *self.decayed, MLP)

    def curve(self, method: str, what: str = "accuracy") -> Any:
        """(steps, seeds)."""
        return self._run.array(f"{method}/scores/{what}").astype(float)

    def learned(self, method: str) -> Any:
        """(seeds,) bool."""
        loss = self.curve(method, "loss")
        return (self._run.array(f"{method}/diverged_at")[-1] < 0) & (loss[-1] < loss[0])

    def end(self, method: str, what: str = "accuracy") -> Any:
        """(seeds,), NaN for what does not count."""
        return np.where(self.learned(method), self.curve(method, what)[-1], np.nan)

    def mean(self, method: str, what: str = "accuracy") -> float:
        """At the end, over the seeds that count."""
        return mean_known(self.end(method, what))

    def at_loss(self, method: str, wanted: Any) -> Any:
        """(seeds,): accuracy where the loss of each seed first falls to `wanted`, NaN where it never does."""
        losses, accuracies = self.curve(method, "loss"), self.curve(method)
        found = np.full(losses.shape[1], np.nan)
        for seed in range(losses.shape[1]):
            after = np.flatnonzero(losses[1:, seed] <= wanted[seed])
            if after.size and self.learned(method)[seed]:
                i = after[0] + 1
                share = np.interp(wanted[seed], losses[[i, i - 1], seed], [1.0, 0.0])
                found[seed] = share * accuracies[i, seed] + (1 - share) * accuracies[i - 1, seed]
        return found

    def built(self, name: str, what: str = "accuracy") -> Any:
        """(seeds,)."""
        return self._run.value(f"built/{what}")[BUILT.index(name)]

    def rows(self) -> dict[str, dict[str, float]]:
        """For the reader, by method: means at the end, and of the untrained network."""
        return {
            method: {
                "loss": self.mean(method, "loss"),
                "accuracy": self.mean(method),
                "untrained accuracy": float(self.curve(method)[0].mean()),
            }
            for method in self.methods
        }


class Fits:
    """What a run recorded of the digits. A network that diverged does not count: its numbers are NaN."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.seeds = int(run.config["seeds"])
        self.epochs = run.steps(f"{DEEP}/scores/train") / (run.config["images"] // run.config["image_batch"])

    def curve(self, shape: str, kind: str, what: str = "train") -> Any:
        """(points, seeds)."""
        kinds = SHAPES[shape].kinds
        values, diverged_at = (
            Grid(kinds, self.seeds).fold(self.run.array(f"{shape}/{name}").astype(float), axis=1)[:, kinds.index(kind)]
            for name in (f"scores/{what}", "diverged_at")
        )
        return np.where(diverged_at[-1] >= 0, np.nan, values)

    def end(self, shape: str, kind: str, what: str = "train") -> Any:
        """(seeds,)."""
        return self.curve(shape, kind, what)[-1]

    def mean(self, shape: str, kind: str, what: str = "train") -> float:
        """At the end, over the seeds that count."""
        return mean_known(self.end(shape, kind, what))

    def epochs_to_fit(self, kind: str, shape: str = DEEP) -> Any:
        """(seeds,): when the training accuracy first reaches FIT_AT, between measuring points; NaN if never."""
        curves = self.curve(shape, kind)
        found = np.full(self.seeds, np.nan)
        for seed in range(self.seeds):
            after = np.flatnonzero(curves[1:, seed] >= FIT_AT)
            if after.size:
                i = after[0] + 1
                found[seed] = np.interp(FIT_AT, curves[[i - 1, i], seed], self.epochs[[i - 1, i]])
        return found
