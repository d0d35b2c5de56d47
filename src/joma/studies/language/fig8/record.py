"""What the sweep of Figure 8 recorded, read back: losses by rate, and the share of the drop that came back."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from joma.recipes.language.curves import alive, best_loss, curve, drops_and_rebounds, learned_at, mean_over_seeds
from joma.runs import Run

SWEEP = "sweep"
SMALLEST_DROP = 0.05  # of the untrained network's entropy: a layer that drops by less has nothing to get back


class Rates(NamedTuple):
    """The rates of a sweep, their losses, and which of them has the lowest mean loss."""

    rates: np.ndarray
    losses: np.ndarray
    """(rates, seeds); NaN for runs that diverged."""
    means: np.ndarray
    """(rates,): the losses' means over seeds."""
    best: int
    learned: np.ndarray
    """(rates,) bool: whether they learned more than the words' frequencies."""

    def details(self, run: Run) -> dict[str, dict[str, float]]:
        """The loss of every rate, and how many runs diverged, for the reader of a finding."""
        known = {f"{rate:g}": loss for rate, loss in zip(self.rates, self.means.tolist(), strict=True) if loss == loss}
        lost = (~alive(run, SWEEP)).sum(-1)
        gone = {f"runs at {rate:g}": float(count) for rate, count in zip(self.rates, lost, strict=True) if count}
        return {"best validation loss by rate": known} | ({"diverged and left out": gone} if gone else {})


def by_rate(run: Run) -> Rates:
    """What the sweep came to."""
    losses = best_loss(run, SWEEP)
    means = np.array([mean_over_seeds(row) for row in losses])
    best = int(np.argmin(np.where(np.isfinite(means), means, np.inf)))
    return Rates(run.value(f"{SWEEP}/rates"), losses, means, best, learned_at(run, SWEEP))


def comes_back(run: Run) -> np.ndarray:
    """Which share of its drop in entropy came back in every run, (rates, seeds); NaN for runs that diverged.

    Every seed is read at the valley of the others, so that noise alone makes it as often negative as positive. A sum
    over the layers whose mean drop is `SMALLEST_DROP` or more of where they began, as a share of these drops; 0 where
    none is. A layer counts for no more than its drop.
    """
    start = curve(run, SWEEP, "valid/entropy").mean(-1)[:, :, 0]  # (rates, seeds, layers)
    found = np.full(start.shape[:2], np.nan)
    for rate, kept in enumerate(alive(run, SWEEP)):
        drop, back = drops_and_rebounds(run, SWEEP, rate=rate)  # (layers, seeds)
        if np.isnan(drop[:, kept]).any() or not kept.any():
            continue
        mean = drop[:, kept].mean(1)
        counts = mean >= SMALLEST_DROP * start[rate, kept].mean(0)
        made_good = np.minimum(back, drop)[counts].sum(0) / (mean[counts].sum() if counts.any() else 1.0)
        found[rate, kept] = made_good[kept]
    return found
