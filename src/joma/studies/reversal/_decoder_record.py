"""What both studies of decoders read from a record: numbers by condition, measuring point and seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from joma.runs import Run
from joma.studies.reversal._decoder_judging import LEARNED
from joma.studies.reversal._decoder_networks import Grouped, grouped

C = TypeVar("C", bound=Grouped)


class Record(Generic[C]):
    """Networks that diverged, or that do not know at the end what they were `taught`, are NaN."""

    def __init__(self, run: Run, conditions: Sequence[C], kinds: Sequence[str], taught: Sequence[str]) -> None:
        self.run, self.kinds = run, list(kinds)
        self.seeds = int(run.config["seeds"])
        self.depths: list[int] = list(run.config["depths"])
        self.conditions: dict[tuple[str, int], C] = {(one.name, one.layers): one for one in conditions}
        self.steps = run.steps(f"{conditions[0].group}/rank/beaten")
        self._taught = [self.kinds.index(kind) for kind in taught]
        self._read: dict[str, Any] = {}
        self._place = {
            one: (group, slice(place * self.seeds, (place + 1) * self.seeds))
            for group, members in grouped(conditions).items()
            for place, one in enumerate(members)
        }

    def named(self, name: str, layers: int) -> C:
        """One condition."""
        return self.conditions[name, layers]

    def array(self, condition: C, series: str) -> Any:
        """(points, seeds, ...) as recorded, of all networks."""
        group, members = self._place[condition]
        name = f"{group}/{series}"
        if name not in self._read:
            self._read[name] = self.run.array(name)
        return self._read[name][:, members]

    def learned(self, condition: C) -> Any:
        """(seeds,) bool: which networks answer what they were taught, at the end."""
        taught = self.array(condition, "facts/accuracy")[-1][:, self._taught]
        return (taught >= LEARNED).all(-1) & (self.array(condition, "diverged_at")[-1] < 0)

    def lost(self, *some: C) -> float:
        """How many networks do not count."""
        return float(sum(np.sum(~self.learned(one)) for one in some))

    def counting(self, condition: C, series: str) -> Any:
        """(points, seeds, ...): NaN for networks that do not count."""
        values = self.array(condition, series)
        return np.where(self.learned(condition).reshape(1, -1, *[1] * (values.ndim - 2)), values, np.nan)

    def over_training(self, condition: C, kind: str) -> Any:
        """(points, seeds): the probability of the right answer."""
        return self.counting(condition, "facts/probability")[..., self.kinds.index(kind)]

    def probability(self, condition: C, kind: str) -> Any:
        """(seeds,) at the end."""
        return self.over_training(condition, kind)[-1]
