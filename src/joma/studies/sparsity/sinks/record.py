"""What a run of `sinks` recorded: the mass on the first key of the networks that learned, beside its controls."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Any

import numpy as np

from joma.claims.verdicts import Numbers
from joma.measure.intervals import Comparison, compare
from joma.runs import Run
from joma.studies.sparsity._readings import COPY, TEXT, recorded_config
from joma.studies.sparsity.sinks.run import SinksConfig, uniform

FALLEN = 0.1  # of the loss of guessing: networks that read the text and end less below it have not learned
FETCHED = 0.5  # of the loss after a trigger without attention: networks that keep more have not learned to attend
READINGS = {COPY: "made language", TEXT: "text"}
"""As findings and figures call them."""


class Sinks:
    """What a run recorded. Every number is a row over seeds; networks that diverged or did not learn are NaN."""

    def __init__(self, run: Run) -> None:
        self.run, self.config = run, recorded_config(SinksConfig, run)
        self.uniform = uniform(self.config.length)

    def steps(self, reading: str, kind: str) -> Any:
        return self.run.steps(f"{reading}/{kind}/attention/mass")

    def over_steps(self, reading: str, kind: str, what: str = "mass", first: str = "fixed") -> Any:
        """(steps, seeds, ...) of what is recorded, of networks whose first token is fixed or free."""
        found = self.run.array(f"{reading}/{kind}/attention/{what}")
        start = self.config.firsts.index(first) * self.config.seeds
        return found[:, start : start + self.config.seeds]

    def learned(self, reading: str, kind: str, first: str = "fixed") -> Any:
        """(seeds,) bool. In the made language, whether it attends where it must: one that never does needs no sink."""
        if reading == COPY:
            fetched = self.over_steps(reading, kind, "fetched", first)[-1]
            return fetched <= FETCHED * float(self.run.value("unfetched"))
        guessing = log(int(self.run.value(f"{reading}/words")) + 1)  # with the fixed first token
        return self.over_steps(reading, kind, "loss", first)[-1] <= (1 - FALLEN) * guessing

    def mean(self, reading: str, kind: str, what: str = "mass", first: str = "fixed", step: int = -1) -> Any:
        """(seeds, ...), mean over layers and heads, of the networks that learned."""
        found = self.over_steps(reading, kind, what, first)[step].mean((1, 2))
        kept = self.learned(reading, kind, first)
        return np.where(kept.reshape(-1, *(1,) * (found.ndim - 1)), found, np.nan)

    def first_key(self, reading: str, kind: str, first: str = "fixed", step: int = -1) -> Any:
        """(seeds,)."""
        return self.mean(reading, kind, "mass", first, step)[:, 0]

    def controls(self, reading: str, mass: Any = None) -> Mapping[str, Comparison]:
        """Softmax's mass on the first key, or another mass, beside all of its controls."""
        mass = self.first_key(reading, "softmax") if mass is None else mass
        return {
            "uniform attention": compare(mass, self.uniform),
            "untrained": compare(mass, self.first_key(reading, "softmax", step=0)),
            "the second key": compare(mass, self.mean(reading, "softmax")[:, 1]),
        }

    @property
    def lost(self) -> Numbers:
        """How many networks do not count, for the reader; empty where all do."""
        count = sum(
            int((~self.learned(reading, kind, first)).sum())
            for reading, kind in self.config.variants
            for first in self.config.firsts
        )
        return {"left out because they did not learn": {"networks": float(count)}} if count else {}
