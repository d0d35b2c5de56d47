"""What a run of `hblt-alignment` recorded: scores by depth, ρ, block and level, and the table made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from joma.measure.intervals import Comparison
from joma.runs import Run
from joma.studies.hierarchy._networks import ALL_BLOCKS, BLOCKS, Fates, mean_over, over_seeds
from joma.studies.hierarchy.hblt_alignment.run import KINDS

ERRORS = 3  # a network learned if it tells classes better than luck by so many standard errors of its fresh samples

Pick = Callable[[int, Any], Any]
"""Of a depth, what a claim is about in (seeds, rhos, places, levels)."""


class Scores:
    """What a run recorded, by depth; level 0 stands right above the tokens.

    only_learned: scores of networks that diverged or did not learn their classes are NaN, before training too.
    """

    def __init__(self, run: Run, *, only_learned: bool = False) -> None:
        self.depths: list[int] = run.config["depths"]
        self.rhos = np.array(run.config["rhos"])
        self.noisy = self.rhos < 1
        self.steps = run.steps(f"depth {self.depths[0]}/scores")
        self.seeds = int(run.config["seeds"])
        self._all, self.tokens, self.fates = {}, {}, {}
        luck, shape = 1 / run.config["classes"], (len(self.rhos), self.seeds)
        enough = luck + ERRORS * np.sqrt(luck * (1 - luck) / run.config["samples"])
        for depth in self.depths:
            scores = run.array(f"depth {depth}/scores")  # (steps, members, kinds, places, levels)
            scores = scores.reshape(len(self.steps), *shape, *scores.shape[2:])
            self.tokens[depth] = run.value(f"depth {depth}/tokens").reshape(*shape, -1)
            accuracy, diverged = (
                run.array(f"depth {depth}/{name}")[-1].reshape(shape) for name in ("accuracy", "diverged_at")
            )
            self.fates[depth] = Fates(diverged >= 0, accuracy > enough)
            kept = self.fates[depth].kept[None, :, :, None, None, None]
            self._all[depth] = np.where(kept, scores, np.nan) if only_learned else scores

    def of(self, rhos: Any) -> Fates:
        """What became of the networks with these rhos (a mask), at every depth."""
        return Fates.joined([self.fates[depth].of(rhos) for depth in self.depths])

    def at(self, depth: int, kind: str, step: int) -> Any:
        """(seeds, rhos, places, levels); step counts the measuring points, -1 is the end and 0 the beginning."""
        return self._all[depth][step, :, :, KINDS.index(kind)].swapaxes(0, 1)

    def picked(self, kind: str, pick: Pick, step: int) -> Any:
        """(seeds, all that `pick` takes of each depth)."""
        return np.concatenate([pick(d, self.at(d, kind, step)).reshape(self.seeds, -1) for d in self.depths], axis=1)

    def gain(self, kind: str, pick: Pick) -> Comparison:
        """Trained against untrained."""
        return over_seeds(*(self.picked(kind, pick, step) for step in (-1, 0)))

    def cells(self) -> list[tuple[int, int, float, list[Comparison]]]:
        """Depth, level, rho, and the neuron's gain in each block."""
        return [
            (depth, level, float(rho), [self.in_block(depth, level, r, block) for block in range(BLOCKS)])
            for depth in self.depths
            for level in range(depth - 1)
            for r, rho in enumerate(self.rhos)
        ]

    def gained(self, level: int, step: int) -> Any:
        """(seeds,) what one level of trees with several has gained by then, in any block, mean over trees and ρ < 1."""
        change = [self.at(d, "neuron", step) - self.at(d, "neuron", 0) for d in self.depths if d > 2]
        return mean_over(np.concatenate([x[:, self.noisy, ALL_BLOCKS, level] for x in change], axis=1), 1)

    def in_block(self, depth: int, level: int, rho: Any, place: int, step: int = -1) -> Comparison:
        """Of the neuron; rho is an index or a mask."""
        return over_seeds(*(self.at(depth, "neuron", s)[:, rho, place, level] for s in (step, 0)))
