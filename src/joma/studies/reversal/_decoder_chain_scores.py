"""What a run of `chain-of-thought-decoder` recorded, by condition."""

from __future__ import annotations

from typing import Any

import numpy as np

from joma.runs import Run
from joma.studies.reversal._decoder_chains import KINDS, RANKED, WAYS, Condition, conditions
from joma.studies.reversal._decoder_record import Record


class Scores(Record[Condition]):
    """Numbers of `chain-of-thought-decoder`; networks that did not learn or diverged are NaN."""

    def __init__(self, run: Run) -> None:
        super().__init__(run, conditions(run.config), KINDS, taught=("first step", "second step", "compositions"))
        self.spelled: list[int] = list(run.config["spelled"])
        self.uniform = 1 / (3 * run.config["chains"])

    def steps_known(self, condition: Condition) -> Any:
        """(seeds,) at the end: the probability of the step that is known less."""
        return np.minimum(*(self.probability(condition, kind) for kind in ("first step", "second step")))

    def rank(self, condition: Condition, kind: str) -> Any:
        """(seeds,) at the end: the share of rival answers that are less likely than the right one."""
        return self.counting(condition, "rank/beaten")[-1][:, RANKED.index(kind)]

    def answered(self, condition: Condition, way: str) -> Any:
        """(seeds,) at the end: the share of held-out chains whose end is reached."""
        return self.counting(condition, "answered")[-1][:, WAYS.index(way)]
