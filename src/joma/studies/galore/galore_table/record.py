"""What `galore-table` recorded, by method, rate and seed: losses on held-out text, time, memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from joma.measure.intervals import Comparison, compare
from joma.runs import Run
from joma.studies.galore.galore_table.networks import FULL, METHODS, SCALED

SWEEP, LONG = "sweep", "long"
BYTES = ("weights", "gradients", "states", "peak")


def place(horizon: str, method: str, rate: float, seed: int) -> str:
    """The beginning of the names of a trial's series."""
    return f"{horizon}/{method}/{rate:g}/seed {seed}"


class Table:
    """A run, read. Losses are nats per held-out token; a trial that diverged, or is not there, has NaN."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.rates: list[float] = sorted(run.config["rates"])
        self.seeds = [int(run.config["seed"]) + seed for seed in range(int(run.config["seeds"]))]
        self.tried: list[str] = [method for method in METHODS if method in run.config["methods"]]
        self.tokens_per_step = int(run.config["batch"]) * int(run.config["context"])
        self._there = set(run.names())
        self.by_frequency = float(run.value("text/by frequency").mean())

    def end(self, horizon: str, method: str, rate: float, seed: int) -> float:
        """The last loss on held-out text, all sources together: as many tokens of each."""
        name = f"{place(horizon, method, rate, seed)}/held out"
        return float(self.run.value(name)[-1].mean()) if name in self._there else np.nan

    def sweep(self, method: str) -> Any:
        """(rates,) losses at the short horizon."""
        return np.array([self.end(SWEEP, method, rate, self.seeds[0]) for rate in self.rates])

    def best_of(self, horizon: str, method: str) -> float | None:
        """The rate with the lowest loss of the first seed; None where all diverged or none was tried."""
        ends = np.array([self.end(horizon, method, rate, self.seeds[0]) for rate in self.rates])
        return None if np.isnan(ends).all() else self.rates[int(np.nanargmin(ends))]

    def rate(self, method: str) -> float | None:
        """The rate that a method is compared at."""
        return self.best_of(LONG, method)

    def final(self, method: str) -> Any:
        """(seeds,) losses at the long horizon; NaN for who diverged, did not learn, or was not trained."""
        rate = self.rate(method)
        if rate is None:
            return np.full(len(self.seeds), np.nan)
        ends = np.array([self.end(LONG, method, rate, seed) for seed in self.seeds])
        return np.where(ends < self.by_frequency, ends, np.nan)

    @property
    def tuned(self) -> str:
        """The better kind of full rank, by the first seed: one rate for all weights, or a smaller one in the blocks."""
        return min((FULL, SCALED), key=lambda method: np.nan_to_num(self.final(method)[0], nan=np.inf))

    def more(self, method: str, than: str) -> Comparison:
        """The loss of `method` beside that of `than`, over the seeds that both have."""
        return compare(self.final(method), self.final(than))

    def long_trials(self, method: str) -> list[str]:
        """The beginnings of the names of all long trials at the method's rate."""
        rate = self.rate(method)
        wanted = [] if rate is None else [place(LONG, method, rate, seed) for seed in self.seeds]
        return [one for one in wanted if f"{one}/held out" in self._there]

    def seconds(self, method: str) -> Any:
        """(seeds,) seconds per step at the long horizon."""
        found = [float(self.run.value(f"{one}/seconds per step")) for one in self.long_trials(method)]
        return np.array(found + [np.nan] * (len(self.seeds) - len(found)))

    def bytes(self, method: str) -> dict[str, float]:
        """Weights, gradients, states of the optimizer, and the peak of the device, of the first seed."""
        trials = self.long_trials(method)
        found = self.run.value(f"{trials[0]}/bytes") if trials else np.full(len(BYTES), np.nan)
        return dict(zip(BYTES, map(float, found), strict=True))

    def curve(self, method: str) -> Any:
        """Training losses of the first seed at the long horizon, step by step; none where it was not trained."""
        trials = self.long_trials(method)
        return self.run.value(f"{trials[0]}/losses") if trials else np.empty(0)

    def methods(self) -> list[str]:
        """Those that learned something, the best first."""
        ends = {method: np.nanmean(final) for method in self.tried if np.isfinite(final := self.final(method)).any()}
        return sorted(ends, key=lambda method: ends[method])
