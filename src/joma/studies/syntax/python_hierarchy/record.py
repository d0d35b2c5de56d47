"""What a run of `python-hierarchy` recorded, by level of syntax: gains over controls, order of learning, depth."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

import numpy as np

from joma.measure.intervals import Comparison, compare
from joma.runs import Run
from joma.studies.syntax.python_hierarchy.alignment import LEVELS, VERSIONS, places

FEWEST = 3  # levels that must have been learned (interval above 0) before an order can be spoken of
FALLEN = 0.1  # of ln(vocabulary), what guessing loses: networks whose loss ends less below it have not learned


class Scores:
    """What a run recorded, by level: seeds that diverged left out, means over the latents of a level."""

    def __init__(self, run: Run) -> None:
        self.level: Any = run.value("level")
        self.names: list[list[str]] = json.loads(run.value("latents").tobytes())
        self.layers: int = run.config["layers"]
        self.row = {place: i for i, place in enumerate(places(self.layers))}
        self.steps: Any = run.steps("alignment")
        every, seeds = run.array("alignment"), run.config["seeds"]
        sound = (run.array("diverged_at")[-1] < 0) & np.isfinite(every[-1]).any((1, 2, 3))
        self.diverged = int((~sound).sum())
        self.alone = not sound[:seeds].any()
        """Whether no network on the text as written is left."""
        self.written, self.shuffled = every[:, :seeds][:, sound[:seeds]], every[:, seeds:][:, sound[seeds:]]
        if self.alone:
            self.written = np.full_like(every[:, :1], np.nan)  # so that there is a picture
        self.token: Any = self.by_level(run.value("token")[sound[:seeds] | self.alone])
        self.loss = float(np.mean(run.array("train_loss")[-1][:seeds][sound[:seeds]])) if not self.alone else np.nan
        self.guessing = float(np.log(run.config["vocabulary"]))

    @property
    def unlearned(self) -> str | None:
        """Why nothing can be said of these networks; None if they learned."""
        if self.alone:
            return "all networks on the text as written diverged"
        if not self.loss <= (1 - FALLEN) * self.guessing:
            return "the networks did not learn to predict the next token"
        return None

    def by_level(self, values: Any) -> Any:
        """(..., latents) as (..., levels)."""
        return np.stack([mean(values[..., self.level == level]) for level in range(len(LEVELS))], -1)

    def of(self, place: str, version: str, *, shuffled: bool = False) -> Any:
        """(steps, seeds, levels) correlations."""
        networks = self.shuffled if shuffled else self.written
        return self.by_level(networks[:, :, self.row[place], VERSIONS.index(version)])

    def against_controls(self, place: str, version: str) -> dict[str, Comparison]:
        """Trained networks beside all that they must exceed, means over levels; shuffled text has seeds of its own."""
        trained = self.of(place, version)[-1].mean(-1)
        found = {"beside the untrained network": compare(trained, self.of(place, version)[0].mean(-1))}
        if version == "labels":
            found["beside rotated labels"] = compare(trained, self.of(place, "rotated")[-1].mean(-1))
        shuffled = self.of(place, version, shuffled=True)[-1].mean(-1)
        found["beside networks on shuffled text"] = compare(trained, shuffled, paired=False)
        return found

    @cached_property
    def learned(self) -> Any:
        """(steps, seeds, levels) what all hidden nodes together have come to tell beyond the token."""
        found = self.of("hidden", "beyond")
        return found - found[:1]

    def rise(self) -> Any:
        """(levels,) in octaves of steps, when each level rose; NaN for a level that was not learned."""
        learned = np.array([compare(gained).low > 0 for gained in self.learned[-1].T])
        return np.where(learned, octave(self.steps, self.learned.mean(1)), np.nan)

    def order(self) -> Any:
        """(seeds,) by how many octaves a level higher ones rise later: pseudo-values of a jackknife over seeds.

        The octave of one seed is a ratio of two noisy numbers; that of the mean over seeds is much less so. Leaving out
        each seed in turn says how far it may be off. NaN where fewer than `FEWEST` levels were learned.
        """
        count = self.learned.shape[1]
        there = np.isfinite(self.rise())
        if count < 2 or there.sum() < FEWEST:
            return np.full(count, np.nan)

        def of(seeds: Any) -> float:
            rise = octave(self.steps, self.learned[:, seeds].mean(1))
            return float(slope(rise[there], np.flatnonzero(there)))

        everyone = np.arange(count)
        left_out = np.array([of(everyone != seed) for seed in everyone])
        return count * of(everyone) - (count - 1) * left_out

    def deepening(self, step: int) -> Any:
        """(seeds, levels) how much better the best node of the last block is than that of the first."""
        last, first = (self.of(f"neuron {block}", "beyond")[step] for block in (self.layers, 1))
        return last - first


def mean(values: Any) -> Any:
    """Over the last axis, what is NaN left out; NaN where nothing is left."""
    kept = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return np.where(kept, values, 0.0).sum(-1) / np.where(kept.any(-1), kept.sum(-1), np.nan)


def octave(steps: Any, gain: Any) -> Any:
    """log2 of the step at which a gain (steps, ...) was made, averaged over the gain.

    Each part counts in the middle, in octaves, of the steps between which it was made. Where a gain rises evenly in log
    time this is the step of half of it; unlike a first crossing of the half, noise does not make it early.
    """
    made = np.log2(steps[1:])
    middle = np.concatenate([made[:1], (made[1:] + made[:-1]) / 2])
    with np.errstate(invalid="ignore", divide="ignore"):  # where nothing was gained there is no such step
        return np.tensordot(middle, np.diff(gain, axis=0), 1) / gain[-1]


def slope(values: Any, rank: Any) -> Any:
    """The least-squares slope of values (..., levels) over the ranks of the levels."""
    centred = rank - np.mean(rank)
    return values @ centred / (centred @ centred)
