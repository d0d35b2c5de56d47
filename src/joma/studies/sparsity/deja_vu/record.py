"""What a run of `deja-vu` recorded, of the networks that learned."""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np

from joma.claims.verdicts import Numbers
from joma.runs import Run
from joma.studies.sparsity._readings import known_mean, recorded_config
from joma.studies.sparsity.deja_vu.run import CARRIED, KEPT, NEURONS, DejaVuConfig

FALLEN = 0.1  # of the loss of guessing: networks that end less below it have not learned
NATS = 0.02  # of a loss: units that are worth less are not missed, whichever are left out; as in Figures 6 and 8


class Active:
    """What a run recorded. Every number is a row over seeds; networks that did not learn are NaN."""

    def __init__(self, run: Run) -> None:
        self.run, self.config = run, recorded_config(DejaVuConfig, run)
        guessing = log(int(run.value("words")))
        self.learned = {
            one: self.over_steps(one, NEURONS, "loss")[-1, :, 0] <= (1 - FALLEN) * guessing
            for one in self.config.activations
        }
        """By activation, (seeds,) bool."""
        self.trained = [one for one, learned in self.learned.items() if learned.sum() >= 2]
        """Activations with two networks that learned, or more."""
        count = sum(int((~learned).sum()) for learned in self.learned.values())
        self.lost: Numbers = {"left out because they did not learn": {"networks": float(count)}} if count else {}
        """How many networks do not count; empty where all do."""

    def steps(self, activation: str) -> Any:
        return self.run.steps(f"{activation}/active/{NEURONS} needed")

    def over_steps(self, activation: str, units: str, what: str) -> Any:
        """(steps, seeds, ...) of what is recorded; mean over layers."""
        found = self.run.array(f"{activation}/active/{units} {what}")
        return found if what == "loss" else found.mean(2)

    def _of_learned(self, activation: str, rows: Any) -> Any:
        return np.where(self.learned[activation], rows, np.nan)

    def needed(self, activation: str, units: str = NEURONS, step: int = -1) -> Any:
        """(seeds,)."""
        return self._of_learned(activation, self.over_steps(activation, units, "needed")[step])

    def carried(self, activation: str, units: str, by: str, step: int = -1) -> Any:
        """(seeds,)."""
        return self._of_learned(activation, self.over_steps(activation, units, "carried")[step][:, CARRIED.index(by)])

    def worth(self, activation: str, units: str, by: str) -> Any:
        """(seeds,): the share that is left of what the units are worth, which is what the loss lacks without any.

        NaN where they are worth nothing.
        """
        loss = self.over_steps(activation, units, "loss")[-1]
        none, everything = loss[:, KEPT.index("none")], loss[:, KEPT.index("all")]
        worth = np.where(none - everything >= NATS, none - everything, np.nan)
        return self._of_learned(activation, (none - loss[:, KEPT.index(by)]) / worth)

    def cost(self, activation: str, units: str, by: str) -> float:
        """In nats, mean over the networks that learned."""
        loss = self.over_steps(activation, units, "loss")[-1]
        return known_mean(self._of_learned(activation, loss[:, KEPT.index(by)] - loss[:, KEPT.index("all")]))
