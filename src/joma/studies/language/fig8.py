"""Figure 8: attention entropy and validation loss under several learning rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding, Progress, Study, each_claim
from joma.claims.evidence import above, at_least, below
from joma.claims.verdicts import by_effect, not_run
from joma.claims.words import show
from joma.measure.correlation import spearman
from joma.measure.intervals import Comparison, compare
from joma.measure.rebound import FEWEST_POINTS
from joma.recipes.language import PAPER, LanguageModelConfig, corpus, recipe, same_text, train_variants
from joma.recipes.language_curves import (
    alive,
    best_loss,
    curve,
    drops_and_rebounds,
    layer_rebounds,
    learned_at,
    mean_over_seeds,
)
from joma.runs import Run
from joma.studies.language._as_the_paper import differs, not_wikitext_2
from joma.studies.language._fig8_figures import draw_sweep
from joma.studies.language._stored_curves import NEARER, find_stored, keep_distances, near_stored

SMALLEST_DROP = 0.05  # of the untrained network's entropy: a layer that drops by less has nothing to get back
SPARSE = 0.1  # of the untrained network's entropy: below that, attention is extremely sparse
RESAMPLES = 2_000
SWEEP = "sweep"
PRINTED_BEST = 1e-4
FEWEST_RATES = 3  # two rates can always be put in order


@dataclass(frozen=True)
class Config(LanguageModelConfig):
    """Models that differ in rate and seed alone, trained as one ensemble."""

    layers: int = 2
    rates: tuple[float, ...] = (3e-4, 1e-3, 3e-3, 1e-2, 1e-1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.rates) < 3 or len(set(self.rates)) < len(self.rates):
            raise ValueError(f"rates must be at least three different rates, got {self.rates}")
        if self.steps // self.every + 1 < FEWEST_POINTS:
            raise ValueError(
                f"{self.steps} steps measured every {self.every} steps give fewer than {FEWEST_POINTS} points, too few "
                "to tell a rebound from noise"
            )


BEST = Claim(
    "fig8-best-rate",
    "JoMA Fig. 8",
    "Of seven rates from 1e-6 to 1e-2, 1e-4 has the lowest validation loss.",
    matters=0.02,  # as in Figure 6: losses that are nearer than that count as the same
    unit="nats",
)
PATTERN = Claim(
    "fig8-pattern-of-the-best",
    "JoMA Fig. 8",
    "The rate with the lowest validation loss is the one under which attention drops and rebounds as predicted.",
    matters=0.05,  # of a drop of about one nat: the 0.05 nats by which single runs of one recipe differ
    unit="%",
    ceiling=1.0,
    uses=("eq6/entropy-drops", "eq6/entropy-rebounds"),
)
TOGETHER = Claim(
    "fig8-pattern-and-loss",
    "JoMA Sec. 6",
    "Over all runs, the more attention rebounds after its drop, the lower is the validation loss.",
    matters=0.05,  # as of the correlation in Figure 6
    ceiling=1.0,
    uses=("eq6/entropy-rebounds",),
)
LARGE = Claim(
    "fig8-large-rate",
    "JoMA Sec. 6",
    "With a large learning rate attention becomes extremely sparse.",
    matters=SPARSE,  # extremely sparse is what keeps less than this; so much more must be lost than at the best rate
    unit="%",
    ceiling=1.0,
)
COMPARED = (BEST, PATTERN, TOGETHER, LARGE)
CURVES = Claim(
    "fig8-curves",
    "JoMA Fig. 8",
    "The attention entropy of every layer follows the curves of the runs that the figure shows.",
    matters=NEARER,
    unit="nats",
)


def run(config: Config, run: Run, progress: Progress) -> None:
    """Train all rates and seeds as one ensemble; keep the distance to the stored curves where there are any."""
    stored = None if differs(run.config) else find_stored(config.data)  # before the training: it may be damaged
    text = corpus(config, progress)
    variant = recipe(config, text, layers=config.layers, rates=sorted(config.rates))
    train_variants({SWEEP: variant}, text, run, progress)
    if stored is not None:
        keep_distances(run, {SWEEP: config.layers}, stored)


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


class Rates(NamedTuple):
    """The rates of a sweep, their losses, and which of them has the lowest mean loss."""

    rates: np.ndarray
    losses: np.ndarray
    """(rates, seeds); NaN for runs that diverged."""
    best: int
    learned: np.ndarray
    """(rates,) bool: whether they learned more than the words' frequencies."""

    def beside(self, run: Run) -> dict[str, dict[str, float]]:
        """The loss of every rate, and how many runs diverged, for the reader of a finding."""
        losses = {f"{rate:g}": mean_over_seeds(row) for rate, row in zip(self.rates, self.losses, strict=True)}
        shown = {"best validation loss by rate": {name: loss for name, loss in losses.items() if np.isfinite(loss)}}
        lost = (~alive(run, SWEEP)).sum(-1)
        gone = {f"runs at {rate:g}": float(count) for rate, count in zip(self.rates, lost, strict=True) if count}
        return shown | ({"diverged and left out": gone} if gone else {})


def by_rate(run: Run) -> Rates:
    """What the sweep came to."""
    losses = best_loss(run, SWEEP)
    mean = np.array([mean_over_seeds(row) for row in losses])
    best = int(np.argmin(np.where(np.isfinite(mean), mean, np.inf)))
    return Rates(run.value(f"{SWEEP}/rates"), losses, best, learned_at(run, SWEEP))


def _untold(claim: Claim, expected: str, run: Run, *, fewest: int) -> Finding | None:
    """The finding on a claim that needs so many rates under which something is learned; None if there are as many."""
    found = by_rate(run)
    if found.learned.sum() >= fewest:
        return None
    lost = int((~alive(run, SWEEP)).all(-1).sum())
    reason = (
        f"only {int(found.learned.sum())} of {len(found.rates)} rates learn more than how frequent words are, and "
        f"{fewest} are needed ({lost} {'diverges' if lost == 1 else 'diverge'})"
    )
    return not_run(claim, expected, reason, "joma run fig8 with other --rates, or with more --steps")


def _best(run: Run) -> Finding:
    """The loss of the best other rate minus that of the printed one, seed by seed."""
    expected = f"the lowest loss is at {PRINTED_BEST:g}, by at least 0.02 nats and by more than seeds differ (95 %)"
    if reason := differs(run.config, layers=5, rates=list(STUDY.paper.rates)) or not_wikitext_2(run):
        return not_run(BEST, expected, reason, "JOMA_DATA=FOLDER joma verify fig8 --scale paper")
    if untold := _untold(BEST, expected, run, fewest=2):
        return untold
    found = by_rate(run)
    printed = int(np.argmin(np.abs(found.rates - PRINTED_BEST)))
    if not found.learned[printed]:
        reason = f"the networks at {PRINTED_BEST:g} diverged, or learned only how frequent words are"
        return not_run(BEST, expected, reason, "JOMA_DATA=FOLDER joma verify fig8 --scale paper --fresh")
    gains = [compare(row - found.losses[printed]) for i, row in enumerate(found.losses) if i != printed]
    return by_effect(
        BEST,
        min((gain for gain in gains if np.isfinite(gain.value)), key=lambda gain: gain.value),
        expected=expected,
        what=f"loss at the best other rate minus that at {PRINTED_BEST:g}",
        details=found.beside(run),
    )


def _pattern(run: Run) -> Finding:
    """The best rate's rebound against the largest of any other rate that learns."""
    expected = (
        "at the best rate, more of the drop comes back than at any other rate that learns, and every layer rebounds"
    )
    if untold := _untold(PATTERN, expected, run, fewest=2):
        return untold
    found, back = by_rate(run), comes_back(run)
    means = np.array([mean_over_seeds(row) for row in back])
    rivals = [i for i in np.flatnonzero(found.learned) if i != found.best and np.isfinite(means[i])]
    if not rivals:
        reason = "too few runs are left of the other rates that learn"
        return not_run(PATTERN, expected, reason, "joma run fig8 with lower --rates")
    rival = max(rivals, key=lambda i: float(means[i]))
    each, layers = layer_rebounds(run, SWEEP, rate=found.best), int(run.config["layers"])
    count = np.nan if each is None else float(each.rebounds.sum())
    shares = {f"{rate:g}": mean for rate, mean in zip(found.rates, means, strict=True) if np.isfinite(mean)}
    return by_effect(
        PATTERN,
        compare(back[found.best], back[rival]),
        expected=expected,
        what="share of the drop that comes back, at the best rate",
        size=[at_least("layers that drop and rebound at the best rate", count, layers)],
        controls=[above("lower end of that share", compare(back[found.best]).low, 0.0, "%")],
        details={
            "rates": {"the best": found.rates[found.best], "its control": found.rates[rival]},
            "share that comes back, by rate": shares,
            **found.beside(run),
        },
    )


def _together(run: Run) -> Finding:
    """Rank correlation of what comes back with a lower loss, over all runs that did not diverge."""
    expected = (
        "over all runs, rebound and lower loss have a positive rank correlation, larger than with rates exchanged"
    )
    if untold := _untold(TOGETHER, expected, run, fewest=FEWEST_RATES):
        return untold
    found, back = by_rate(run), comes_back(run)
    whole = correlation(back, -found.losses)
    if not np.isfinite(whole.value):
        reason = "the same share comes back at every rate, or none, so a correlation cannot be computed"
        return not_run(TOGETHER, expected, reason, "joma run fig8 with more --steps")
    beside = found.beside(run)
    if not found.learned.all():
        part = correlation(back[found.learned], -found.losses[found.learned])
        beside["only rates that learn"] = {
            "correlation": part.value,
            "from": part.low,
            "to": part.high,
            "chance": part.chance,
        }
    return by_effect(
        TOGETHER,
        whole.over(int(np.isfinite(back).any(-1).sum())),
        expected=expected,
        what="rank correlation",
        over="rates",
        controls=[above("the correlation, against 95 % of exchanges of rates,", whole.value, whole.chance)],
        details=beside,
    )


class Correlation(NamedTuple):
    """A rank correlation with its 95 % interval, and what 5 % of exchanges between rates exceed."""

    value: float
    low: float
    high: float
    chance: float

    def over(self, rates: int) -> Comparison:
        """Beside none at all. The rates are the witnesses: seeds of one rate are not independent of each other."""
        return Comparison(self.value, 0.0, self.low, self.high, 0.0, 0.0, rates)


def correlation(back: np.ndarray, gains: np.ndarray) -> Correlation:
    """Of (rates, seeds): its interval by drawing rates and, within them, seeds anew; the control exchanges rates."""
    generator = np.random.default_rng(0)
    rates, seeds = back.shape
    drawn: list[float] = []
    exchanged: list[float] = []
    for _ in range(RESAMPLES):
        rows = generator.integers(rates, size=(rates, 1))
        columns = generator.integers(seeds, size=(rates, seeds))
        drawn.append(spearman(back[rows, columns], gains[rows, columns]))
        exchanged.append(abs(spearman(back, gains[generator.permutation(rates)])))
    (low, high), (chance,) = _quantiles(drawn, 0.025, 0.975), _quantiles(exchanged, 0.95)
    return Correlation(spearman(back, gains), low, high, chance)


def _quantiles(values: list[float], *levels: float) -> list[float]:
    finite = [value for value in values if np.isfinite(value)]
    return [float(np.quantile(finite, level)) for level in levels] if finite else [float("nan")] * len(levels)


def _large(run: Run) -> Finding:
    """The largest rate that learns: what it loses of the untrained network's entropy, against the best rate."""
    expected = (
        f"in every layer entropy ends below {show(SPARSE, '%')} of its start; it ends lower than at the best rate, by "
        f"at least {show(SPARSE, '%')} of the start and by more than seeds differ (95 %)"
    )
    if untold := _untold(LARGE, expected, run, fewest=2):
        return untold
    found = by_rate(run)
    largest = int(np.flatnonzero(found.learned)[-1])
    if largest == found.best:
        reason = f"the largest rate that learns, {found.rates[largest]:g}, has the lowest loss"
        return not_run(LARGE, expected, reason, "joma run fig8 with a larger one in --rates that still learns")
    kept = _kept(run)
    mean = np.nanmean(kept[largest], axis=0)
    idle = [i for i in np.flatnonzero(alive(run, SWEEP).any(-1)) if i > largest]
    beside = {f"lost at {found.rates[i]:g}, which learns nothing": _by_layer(1 - kept[i]) for i in idle}
    return by_effect(
        LARGE,
        {
            f"layer {layer + 1}": compare(1 - kept[largest, :, layer], 1 - kept[found.best, :, layer])
            for layer in range(kept.shape[2])
        },
        expected=expected,
        what="share of the entropy that is lost",
        size=[below("largest share of its entropy that a layer keeps", float(mean.max()), SPARSE, "%")],
        details={
            "rates": {
                "the largest that learns": found.rates[largest],
                "the best, its control": found.rates[found.best],
            },
            **beside,
            **found.beside(run),
        },
    )


def _kept(run: Run) -> np.ndarray:
    """Entropy at the end as a part of that before training, (rates, seeds, layers); NaN for runs that diverged."""
    curves = curve(run, SWEEP, "valid/entropy").mean(-1)  # (rates, seeds, points, layers)
    return np.where(alive(run, SWEEP)[..., None], curves[:, :, -1] / curves[:, :, 0], np.nan)


def _by_layer(kept: np.ndarray) -> dict[str, float]:
    return {f"layer {layer + 1}": float(part) for layer, part in enumerate(np.nanmean(kept, axis=0))}


def _curves(run: Run) -> Finding:
    return near_stored(CURVES, run)


def draw(run: Run) -> list[Drawing]:
    """Entropy by layer for every rate, and rebound against loss over all runs."""
    return [draw_sweep(run, SWEEP, comes_back(run))]


STUDY = Study(
    name="fig8",
    title="Figure 8: attention entropy and the learning rate",
    version=3,
    claims=(*COMPARED, CURVES),
    quick=Config(vocabulary=300, width=24, mlp=24, streams=4, valid_sequences=8, sequence=5, steps=240),
    paper=Config(**PAPER, layers=5, rates=(1e-6, 5e-6, 1e-5, 5e-5, 1e-4, 1e-3, 1e-2)),
    run=run,
    judge=each_claim(_best, _pattern, _together, _large, _curves),
    draw=draw,
    check=same_text,
    about=(
        "Models of one depth are trained with several learning rates (the figure's seven at paper scale) and three "
        "seeds per rate, all as one ensemble. The predicted pattern is measured as the share of the drop in attention "
        "entropy that comes back later. The best rate is compared with the other rates that learn more than how "
        "frequent words are. Over all runs, that share is compared with the validation loss. Runs whose loss stops "
        "being finite are left out."
    ),
)
