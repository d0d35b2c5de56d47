"""What each layer does in each network, and how alike two networks are in it.

A pattern is one number per layer: how far entropy drops there (from the untrained network to the layer's own lowest
point), how far it comes back (from there to the end), and where it ends. The correlation of two networks' patterns says
whether the same layers do the same. It is an estimate of the share of the variance, within a network, that a layer's
position explains.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from joma.measure.correlation import pearson
from joma.measure.intervals import Comparison, compare
from joma.recipes.language.curves import LEARNED, alive, best_loss, curve
from joma.runs import Run
from joma.studies.rebound.layer_lottery.run import KINDS, NETWORKS

PATTERNS = ("drop", "rebound", "end")
SHUFFLES = 1_000


def entropies(run: Run) -> np.ndarray:
    """(members, points, layers); NaN for a member that diverged or learned only how frequent words are."""
    found = curve(run, NETWORKS, "valid/entropy")[0].mean(-1)
    return np.asarray(np.where(learned(run)[:, None, None], found, np.nan))


def learned(run: Run) -> np.ndarray:
    """(members,) bool: neither diverged nor left with the words' frequencies."""
    bound = float(run.value(f"{NETWORKS}/loss by frequency")) - LEARNED
    return np.asarray(alive(run, NETWORKS)[0] & (best_loss(run, NETWORKS)[0] < bound))


def members(run: Run, kind: str) -> np.ndarray:
    """The numbers of the members of one kind that learned."""
    return np.flatnonzero((run.value(f"{NETWORKS}/kind") == KINDS.index(kind)) & learned(run))


def patterns(run: Run) -> dict[str, np.ndarray]:
    """By name, (members, layers)."""
    curves = entropies(run)
    start, low, end = curves[:, 0], curves.min(1), curves[:, -1]
    return {"drop": start - low, "rebound": end - low, "end": end}


def inner(layers: int) -> slice:
    """The layers between the bottom and the top fifth; at least one is left out on either side.

    >>> inner(10), inner(6)
    (slice(2, 8, None), slice(1, 5, None))
    """
    fifth = max(1, layers // 5)
    return slice(fifth, layers - fifth)


def alike(pattern: np.ndarray) -> np.ndarray:
    """(networks, layers) -> (networks, networks): the correlation of every two."""
    return np.asarray(pearson(pattern[:, None], pattern[None]))


def between_seeds(pattern: np.ndarray) -> Comparison:
    """The mean correlation of two seeds' patterns (seeds, layers), beside none, over seeds.

    Pairs share seeds and are not independent: the interval is the jackknife's, which leaves out one seed at a time. A
    seed whose layers all do the same, none of which comes back say, correlates with nothing and is left out.
    """
    pattern = pattern[np.ptp(pattern, axis=1) > 0]
    if len(pattern) < 3:
        return compare([])
    pairs = alike(pattern)
    np.fill_diagonal(pairs, 0.0)
    count, sums, total = len(pairs), pairs.sum(1), pairs.sum()
    mean = total / (count * (count - 1))
    without = (total - 2 * sums) / ((count - 1) * (count - 2))
    return compare(count * mean - (count - 1) * without, 0.0)


class Share(NamedTuple):
    """How much of the variance within a network a layer's position explains, and what 5 % of shufflings exceed."""

    value: float
    chance: float


def share_of_position(pattern: np.ndarray) -> Share:
    """Of (seeds, layers); the control shuffles the layers of every seed."""
    if len(pattern) < 2:
        return Share(np.nan, np.nan)
    rows = pattern - pattern.mean(1, keepdims=True)
    generator = np.random.default_rng(0)

    def share(rows: np.ndarray) -> float:
        total = float((rows**2).sum())
        return len(rows) * float((rows.mean(0) ** 2).sum()) / total if total > 0 else np.nan

    shuffled = [share(generator.permuted(rows, axis=1)) for _ in range(SHUFFLES)]
    return Share(share(rows), float(np.quantile(shuffled, 0.95)))


def winner(pattern: np.ndarray, layers: slice) -> dict[str, float]:
    """The layer that has the largest number in most seeds, of (seeds, layers), and in how many of them."""
    first, _, _ = layers.indices(pattern.shape[1])
    wins = np.bincount(pattern[:, layers].argmax(1), minlength=1)
    return {"layer": float(1 + first + wins.argmax()), "in seeds": float(wins.max()), "of": float(len(pattern))}


def twins(run: Run, kind: str, pattern: np.ndarray) -> Comparison:
    """Correlation of a twin with its seed, beside that of this seed with the others; over pairs.

    Of deviations from the mean over the other seeds: what position does to every network is not counted.
    """
    pairs = twin_pairs(run, kind, pattern)
    return compare(pairs[:, 0], pairs[:, 1])


def twin_pairs(run: Run, kind: str, pattern: np.ndarray) -> np.ndarray:
    """(pairs, 2): every twin's correlation with its seed, and the mean of this seed's with the others."""
    seeds, of = members(run, "seed"), run.value(f"{NETWORKS}/of")
    found = []

    def correlation(one: int, other: int) -> float:
        mean = pattern[[seed for seed in seeds if seed not in (one, other)]].mean(0)
        return float(pearson(pattern[one] - mean, pattern[other] - mean))

    for twin in members(run, kind):
        seed = int(of[twin])
        if seed in seeds and len(seeds) > 3:
            others = [correlation(seed, other) for other in seeds if other != seed]
            found.append((correlation(seed, twin), float(np.mean(others))))
    return np.array(found).reshape(-1, 2)


def distance(run: Run, kind: str) -> np.ndarray:
    """(pairs, points): how far entropy is between a twin and its seed, RMS over layers; of seeds, between two of them.

    Levels that all layers share count as well as the pattern.
    """
    curves, of, seeds = entropies(run), run.value(f"{NETWORKS}/of"), members(run, "seed")
    if kind == "seed":
        pairs = list(zip(seeds, np.roll(seeds, 1), strict=True))
    else:
        pairs = [(int(of[twin]), twin) for twin in members(run, kind) if of[twin] in seeds]
    rows = [np.sqrt(((curves[a] - curves[b]) ** 2).mean(-1)) for a, b in pairs]
    return np.array(rows).reshape(len(pairs), curves.shape[1])


def halves(pattern: np.ndarray) -> np.ndarray:
    """(networks, layers) -> (networks,): the mean of the top half of the layers minus that of the bottom half."""
    middle = pattern.shape[1] // 2
    return np.asarray(pattern[:, -middle:].mean(1) - pattern[:, :middle].mean(1))
