"""What a run of `table1` recorded: scores by step, column and seed, and the table made of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from joma.data.latent_sets import TABLE1
from joma.measure.intervals import Comparison
from joma.runs import Run
from joma.studies.hierarchy._networks import Fates, mean_over, over_seeds
from joma.studies.hierarchy.table1.run import KINDS

ENOUGH = 0.5  # a network learned if it tells so many of its classes right; one that knows nothing tells at most 5 %
ENTRIES = ("paper", "trained", "untrained", "permuted")
TITLES = ("C", "N_ch", "(N₀, N₁)", *(f"s = {s}: {entry}" for s in (0, 1) for entry in ENTRIES))


class Scores:
    """What a run recorded, by step, column and seed; level s is read from block s + 1, as in the paper.

    only_learned: scores of networks that diverged or did not learn their classes are NaN, before training too.
    """

    def __init__(self, run: Run, *, only_learned: bool = False) -> None:
        self.steps = run.steps("networks/scores")
        columns = len(run.config["columns"])
        scores = run.array("networks/scores")  # (steps, members, kinds, blocks, levels)
        self.all = scores.reshape(len(self.steps), columns, -1, *scores.shape[2:])
        self.accuracy = run.array("networks/accuracy").reshape(len(self.steps), columns, -1)
        self.columns = [TABLE1[c - 1] for c in run.value("column").reshape(columns, -1)[:, 0]]
        diverged = (run.array("networks/diverged_at")[-1] >= 0).reshape(columns, -1)
        self.fates = Fates(diverged, self.accuracy[-1] >= ENOUGH)  # (columns, seeds) each
        if only_learned:
            self.all = np.where(self.fates.kept[None, :, :, None, None, None], self.all, np.nan)

    def at(self, kind: str, step: int, level: int) -> Any:
        """(seeds, columns); step counts the measuring points, -1 is the end and 0 the beginning."""
        return self.all[step, :, :, KINDS.index(kind), level, level].T

    def both(self, kind: str, step: int) -> Any:
        """(seeds, columns, levels)."""
        return np.stack([self.at(kind, step, level) for level in (0, 1)], axis=-1)

    def gain(self, kind: str, level: int, step: int = -1) -> Comparison:
        """Trained against untrained."""
        return over_seeds(self.at(kind, step, level), self.at(kind, 0, level))

    def paper(self, level: int) -> Any:
        """(columns,)."""
        return np.array([column.ncorr[level].mean for column in self.columns])

    def published(self, level: int) -> float:
        """The mean of the published values, over the networks that count at the end."""
        counted = np.isfinite(self.at("best neuron", -1, level))
        return float(mean_over(np.where(counted, self.paper(level), np.nan), (0, 1)))


def table(run: Run) -> list[tuple[str, ...]]:
    """Table 1 beside its controls as text: C, N_ch, (N0, N1), then paper, trained, untrained, permuted for both s.

    Means over seeds; the spread is the standard deviation, as far as one can tell that of the paper.
    """
    scores = Scores(run)
    lines = []
    for c, column in enumerate(scores.columns):
        line = [str(column.classes), str(column.children), str(column.latents)]
        for s in (0, 1):
            line.append(f"{column.ncorr[s].mean:.2f} ± {column.ncorr[s].spread:.2f}")
            for kind, step in (("best neuron", -1), ("best neuron", 0), ("permuted latents", -1)):
                values = scores.at(kind, step, s)[:, c]
                values = values[np.isfinite(values)]
                line.append(f"{values.mean():.2f} ± {values.std(ddof=1):.2f}" if len(values) > 1 else "diverged")
        lines.append(tuple(line))
    return lines
