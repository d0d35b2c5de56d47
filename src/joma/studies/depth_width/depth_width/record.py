"""What was recorded, read back: losses at the rate that a shape was given, gains by depth, costs of a step.

No seed chooses its own rate. For every seed the rate is the one with the lowest mean loss of the OTHER seeds, on the
half of the validation data that is not judged. The step at which a network is read, and the best shape, are chosen on
that half too. So what is judged had no part in any choice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from joma.measure.intervals import compare
from joma.runs import Run
from joma.studies.depth_width.depth_width.networks import record_name
from joma.studies.depth_width.depth_width.texts import SHUFFLED

DEEP, FLAT = "deep tree", "flat tree"
LEARNED = 0.05
"""Nats by which a loss must lie below that of a reader who knows nothing, for a network to have learned."""


def kinds_of(run: Run) -> dict[str, tuple[str, int]]:
    """Every kind of data that was read, with its family and its place there: the texts, shuffled text, the trees."""
    present = run.value("text/present").astype(bool)
    texts = [name for name, there in zip(run.config["texts"], present, strict=True) if there]
    return {name: ("text", i) for i, name in enumerate([*texts, SHUFFLED])} | {DEEP: ("tree", 0), FLAT: ("tree", 1)}


class Sweep:
    """All networks that read one kind of data: shapes x rates x seeds.

    choosing, judging: (shapes, rates, seeds), the losses on either half where the choosing one was lowest; NaN for
    networks that diverged.
    """

    def __init__(self, run: Run, kind: str) -> None:
        self.run, self.kind = run, kind
        self.family, self.place = kinds_of(run)[kind]
        prefix = "" if self.family == "text" else "tree_"
        self.layers: list[int] = list(run.config[f"{prefix}layers"])
        self.rates: list[float] = list(run.config[f"{prefix}rates"])
        self.seeds = int(run.config["seeds"])
        self.names = [record_name(self.family, layers) for layers in self.layers]
        self.steps = run.steps(f"{self.names[0]}/valid/judging")
        curves = [np.stack([self._members(f"{name}/valid/{half}") for name in self.names]) for half in _HALVES]
        self.curves: np.ndarray = curves[1]
        """The judged loss over training, (shapes, points, rates, seeds)."""
        lost = np.stack([self._members(f"{name}/diverged_at")[-1] >= 0 for name in self.names])
        stop = np.where(np.isfinite(curves[0]), curves[0], np.inf).argmin(1)[:, None]
        self.choosing, self.judging = (
            np.where(lost, np.nan, np.take_along_axis(curve, stop, 1)[:, 0]) for curve in curves
        )
        self.diverged = int(lost.sum())
        self.known_without = float(run.value(f"{self.family}/known without")[self.place])

    def _members(self, name: str) -> np.ndarray:
        """A record of one shape as (points, rates, seeds) of this kind."""
        recorded = self.run.array(name)
        return np.asarray(recorded.reshape(len(recorded), -1, len(self.rates), self.seeds)[:, self.place])

    def ranked(self, shape: int, seed: int) -> list[int]:
        """The rates of a shape from the best on, as the other seeds see them."""
        return list(np.argsort(_of_others(self.choosing[shape], seed), kind="stable"))

    def at_rank(self, shape: int, rank: int) -> np.ndarray:
        """(seeds,) the judged loss at the best rate (rank 0) or at the next best (rank 1)."""
        return np.array([self.judging[shape, self.ranked(shape, seed)[rank], seed] for seed in range(self.seeds)])

    def at_best(self, shape: int) -> np.ndarray:
        """(seeds,) the judged loss at the rate that the other seeds chose."""
        return self.at_rank(shape, 0)

    def rate_cost(self, shapes: Any) -> np.ndarray:
        """(seeds,) what the next-best rate adds to the loss, in the mean over these shapes."""
        return np.asarray(np.mean([self.at_rank(shape, 1) - self.at_rank(shape, 0) for shape in shapes], 0))

    def chosen(self, shapes: list[int], worst: bool = False) -> np.ndarray:
        """(seeds,) the judged loss of the shape among these that is best (or worst) as the other seeds see it."""
        pick: Callable[..., int] = max if worst else min
        found = []
        for seed in range(self.seeds):
            seen = {shape: _of_others(self.choosing[shape], seed).min() for shape in shapes}
            shape = pick(seen, key=seen.__getitem__)
            found.append(self.at_best(shape)[seed])
        return np.array(found)

    def learned(self, shape: int) -> bool:
        """Whether the networks of a shape at their best rate know more than a reader who knows nothing."""
        return bool(compare(self.at_best(shape)).value < self.known_without - LEARNED)

    @property
    def deeper(self) -> list[int]:
        """The shapes with more layers than the shallowest that learned."""
        return [shape for shape in range(1, len(self.layers)) if self.learned(shape)]

    def gain(self) -> np.ndarray:
        """(seeds,) loss of the shallowest shape minus that of the best deeper one."""
        return np.asarray(self.at_best(0) - self.chosen(self.deeper or list(range(1, len(self.layers)))))

    @property
    def best_layers(self) -> int:
        """Of the shape with the lowest mean loss on the choosing half."""
        means = [_of_others(self.choosing[shape], None).min() for shape in range(len(self.layers))]
        return self.layers[int(np.argmin(means))]

    def best_rate(self, shape: int) -> int:
        """The place of the rate with the lowest mean loss of all seeds on the choosing half: for figures and tables."""
        return int(np.argmin(_of_others(self.choosing[shape], None)))

    @property
    def at_the_edge(self) -> int:
        """For how many shapes the best rate is the lowest or the highest of the grid."""
        return sum(self.best_rate(shape) in (0, len(self.rates) - 1) for shape in range(len(self.layers)))

    def facts(self, shape: int) -> dict[str, float]:
        """Sizes and costs of one shape."""
        return facts(self.run, self.names[shape])


_HALVES = ("choosing", "judging")
_FACTS = ("width", "heads", "mlp", "parameters", "embeddings", "operations per token")


def facts(run: Run, name: str) -> dict[str, float]:
    """Width, heads, MLP, parameters, embedding share, operations per token, and the seconds of a network's step.

    The seconds are the middle ones of those between measuring points: the first hold the compiling, and where a run
    was taken up again the time between has no meaning. NaN where time was not recorded.
    """
    found = dict(zip(_FACTS, run.value(f"{name}/shape").tolist(), strict=True))
    found["embedding share"] = found["embeddings"] / found["parameters"]
    found["seconds per step"] = float("nan")
    if f"{name}/begins" in run.names():
        begins, ends = run.array(f"{name}/begins"), run.array(f"{name}/ends")
        made = np.diff(run.steps(f"{name}/begins"))
        found["seconds per step"] = float(np.median((begins[1:, 0] - ends[:-1, 0]) / made)) / begins.shape[1]
    return found


def _of_others(losses: np.ndarray, seed: int | None) -> np.ndarray:
    """(rates,) the mean over all seeds but this one; infinite where one of them diverged."""
    others = losses if seed is None else np.delete(losses, seed, -1)
    return np.where(np.isfinite(others).all(-1), others.mean(-1), np.inf)
