"""Forecasts of entropy that have constants, which are fitted on open runs alone; and the law of focus and dilution.

The law (`joma.theory.spread`) says how much of what attention has stored is read. With a^2 the mean's share of what a
layer reads, shared logits are read with the factor sqrt(a^2 (1 - a^2)), specific ones with 1 - a^2. So

    shared = G_shared a^2 (1 - a^2),   specific = G_specific (1 - a^2)^2,

and what is stored, G, is known from what is measured. ln G of both and the logit of a^2 go on with their slopes in
log t, damped by one constant. The cross part keeps its correlation. The variance that results gives entropy by Gaussian
logits, and entropy changes from its present value by the difference. Not from the law: how G and a^2 move on.

The controls have as many constants or more, fitted in the same way on the same runs: a line in log t with one, and a
trend with two.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.polynomial import Chebyshev

from joma.measure.forecast import backtest, damped_trend, fit_damped_trend, log_linear
from joma.studies.rebound.forecast.history import History
from joma.theory.spread import gaussian_entropy

Entry = Callable[[History, float], Any]
"""Of a history and its last step t: the entropy of every layer at step 2t, (layers,)."""

AHEAD = 2
LATE = 500
"""Steps: skill is given over all t, and from here on. Before, entropy dips while words' frequencies are learned."""
SHARES = np.linspace(0, 1.5, 31)  # of a slope, tried in the fits: from standing still to half as fast again
TURN, NODES = 2.0, 14  # of the polynomial in the logits' size that stands for the entropy of Gaussian logits
LEAST = 1e-12  # a share of the mean or a part of the variance below this counts as this


class Constants(NamedTuple):
    """What is fitted on open runs."""

    line: float
    """Share of the slope that a damped line goes on with."""
    kept: float
    moved: float
    """Of `joma.measure.forecast.damped_trend`."""
    law: float
    """Share of their slopes that the quantities of the law go on with."""


def no_change(history: History, t: float) -> np.ndarray:
    """Entropy stays as it is."""
    return np.asarray(history.entropy[:, -1])


def damped_line(history: History, t: float, *, share: float) -> np.ndarray:
    """A line in log t through the past since t/2, with a share of its slope."""
    return log_linear(history.steps, history.entropy, AHEAD * t, share=share).numpy()


def trend(history: History, t: float, *, kept: float, moved: float) -> np.ndarray:
    """The damped trend of `joma.measure.forecast`."""
    return damped_trend(history.steps, history.entropy, AHEAD * t, kept=kept, moved=moved).numpy()


def focus_and_dilution(history: History, t: float, *, share: float) -> np.ndarray:
    """The law, see above."""
    stored = stored_and_read(history)
    ahead = log_linear(history.steps, stored, AHEAD * t, share=share).numpy()
    match = _correlation(history)[..., -1]
    change = _entropy(spread_of(ahead, match), history) - _entropy(spread_of(stored[..., -1], match), history)
    return np.asarray(history.entropy[:, -1] + change)


def stored_and_read(history: History) -> np.ndarray:
    """ln G of the shared and of the specific part and the logit of the mean's share, (3, layers, points)."""
    share = np.clip(history.mean_share, LEAST, 1 - LEAST)
    shared, specific = (np.maximum(part, LEAST) for part in (history.shared, history.specific))
    gains = np.log(shared / (share * (1 - share))), np.log(specific / (1 - share) ** 2)
    return np.stack([*gains, np.log(share / (1 - share))])


def spread_of(stored: np.ndarray, correlation: np.ndarray) -> np.ndarray:
    """`stored_and_read` turned back: the variance of the logits, (layers,)."""
    share = np.clip(1 / (1 + np.exp(-stored[2])), LEAST, 1 - LEAST)
    shared, specific = np.exp(stored[0]) * share * (1 - share), np.exp(stored[1]) * (1 - share) ** 2
    return np.asarray(shared + specific + 2 * correlation * np.sqrt(shared * specific))


def _correlation(history: History) -> np.ndarray:
    """Of the shared and the specific logits, (layers, points)."""
    size = 2 * np.sqrt(np.maximum(history.shared * history.specific, LEAST))
    return np.asarray(np.clip(history.cross / size, -1, 1))


def _entropy(variance: np.ndarray, history: History) -> np.ndarray:
    """Of Gaussian logits, mean over queries."""
    size = np.sqrt(np.maximum(variance, 0.0))
    return np.asarray(_entropy_curve(history.n_keys)(size / (size + TURN)))


@lru_cache(maxsize=8)
def _entropy_curve(n_keys: int) -> Chebyshev:
    """Mean of `gaussian_entropy` over n = 1 to n_keys, as a polynomial in s/(s + TURN), s^2 the variance."""
    n = torch.arange(1, n_keys + 1, dtype=torch.float64)

    def values(place: np.ndarray) -> np.ndarray:
        variance = torch.from_numpy((TURN * place / (1 - place)) ** 2)
        return gaussian_entropy(variance[:, None], n).mean(-1).numpy()

    return Chebyshev.interpolate(values, NODES, domain=[0, 1])


def made(entry: Entry, history: History, first: float) -> np.ndarray:
    """All forecasts of a run from step `first` on, (layers, origins). The entry gets the past alone."""
    return _predict(entry, _pasts(history, first))


def _pasts(history: History, first: float) -> list[tuple[History, float]]:
    return [(history.until(t), t) for t in backtest(history.steps, history.entropy, first=first).at.tolist()]


def _predict(entry: Entry, pasts: list[tuple[History, float]]) -> np.ndarray:
    return np.stack([np.asarray(entry(past, t)) for past, t in pasts], -1)


def came(history: History, first: float) -> np.ndarray:
    """What came, (layers, origins)."""
    return backtest(history.steps, history.entropy, first=first).truth.numpy()


def fit(runs: Sequence[History], first: float) -> Constants:
    """The constants with the smallest squared error over these runs, their layers and all t together."""
    line, law = (_best_share(way, runs, first) for way in (damped_line, focus_and_dilution))
    steps, curves = runs[0].steps, np.concatenate([run.entropy for run in runs])
    return Constants(line, *fit_damped_trend(steps, curves, first=first), law)


def _best_share(way: Callable[..., np.ndarray], runs: Sequence[History], first: float) -> float:
    known = [(_pasts(run, first), came(run, first)) for run in runs]

    def error(share: float) -> float:
        entry = partial(way, share=share)
        return float(sum(((_predict(entry, pasts) - truth) ** 2).sum() for pasts, truth in known))

    return float(SHARES[np.argmin([error(share) for share in SHARES])])


LINE, TREND, LAW = "damped line in log t", "damped trend", "focus and dilution"


def fitted(constants: Constants) -> dict[str, Entry]:
    """The entries by name, with their constants."""
    return {
        LINE: partial(damped_line, share=constants.line),
        TREND: partial(trend, kept=constants.kept, moved=constants.moved),
        LAW: partial(focus_and_dilution, share=constants.law),
    }
