"""The study `fig8`: its claims and their judges."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, NamedTuple

import numpy as np

from joma.claims.config import Several
from joma.claims.contract import Claim, Finding, Progress, Study
from joma.claims.evidence import above, at_least, below
from joma.claims.sentences import show
from joma.claims.verdicts import by_effect, not_run
from joma.measure.correlation import spearman
from joma.measure.intervals import Comparison, compare
from joma.measure.rebound import FEWEST_POINTS
from joma.recipes.language import PAPER, LanguageModelConfig, corpus, recipe, same_text, train_variants
from joma.recipes.language.curves import alive, curve, layer_rebounds, mean_over_seeds
from joma.runs import Run
from joma.studies.language._published import NEARER, differs, find_stored, keep_distances, near_stored, not_wikitext_2
from joma.studies.language.fig8.figures import draw_sweep
from joma.studies.language.fig8.record import SWEEP, by_rate, comes_back

SPARSE = 0.1  # of the untrained network's entropy: below that, attention is extremely sparse
RESAMPLES = 2_000
PRINTED_BEST = 1e-4
FEWEST_RATES = 3  # two rates can always be put in order


@dataclass(frozen=True)
class Fig8Config(LanguageModelConfig):
    """Models that differ in rate and seed alone, trained as one ensemble."""

    layers: int = 2
    rates: Annotated[tuple[float, ...], Several(FEWEST_RATES)] = (3e-4, 1e-3, 3e-3, 1e-2, 1e-1)

    def __post_init__(self) -> None:
        super().__post_init__()
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
CURVES = Claim(
    "fig8-curves",
    "JoMA Fig. 8",
    "The attention entropy of every layer follows the curves of the runs that the figure shows.",
    matters=NEARER,
    unit="nats",
)


def run(config: Fig8Config, run: Run, progress: Progress) -> None:
    """Train all rates and seeds as one ensemble; keep the distance to the stored curves where there are any."""
    stored = None if differs(run.config) else find_stored(config.data)  # before the training: it may be damaged
    text = corpus(config, progress)
    variant = recipe(config, text, layers=config.layers, rates=sorted(config.rates))
    train_variants({SWEEP: variant}, text, run, progress)
    if stored is not None:
        keep_distances(run, {SWEEP: config.layers}, stored)


def _too_few(claim: Claim, expected: str, run: Run, *, fewest: int) -> Finding | None:
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


def judge_best(run: Run) -> Finding:
    """The loss of the best other rate minus that of the printed one, seed by seed."""
    expected = f"the lowest loss is at {PRINTED_BEST:g}, by at least 0.02 nats and by more than seeds differ (95 %)"
    command = "JOMA_DATA=FOLDER joma verify fig8 --scale paper"
    if reason := differs(run.config, layers=5, rates=list(STUDY.paper.rates)) or not_wikitext_2(run):
        return not_run(BEST, expected, reason, command)
    if finding := _too_few(BEST, expected, run, fewest=2):
        return finding
    found = by_rate(run)
    printed = int(np.argmin(np.abs(found.rates - PRINTED_BEST)))
    if not found.learned[printed]:
        reason = f"the networks at {PRINTED_BEST:g} diverged, or learned only how frequent words are"
        return not_run(BEST, expected, reason, f"{command} --fresh")
    gains = [compare(row - found.losses[printed]) for i, row in enumerate(found.losses) if i != printed]
    return by_effect(
        BEST,
        min((gain for gain in gains if np.isfinite(gain.value)), key=lambda gain: gain.value),
        expected=expected,
        what=f"loss at the best other rate minus that at {PRINTED_BEST:g}",
        details=found.details(run),
    )


def judge_pattern(run: Run) -> Finding:
    """The best rate's rebound against the largest of any other rate that learns."""
    expected = (
        "at the best rate, more of the drop comes back than at any other rate that learns, and every layer rebounds"
    )
    if finding := _too_few(PATTERN, expected, run, fewest=2):
        return finding
    found, back = by_rate(run), comes_back(run)
    means = np.array([mean_over_seeds(row) for row in back])
    rivals = [i for i in np.flatnonzero(found.learned) if i != found.best and np.isfinite(means[i])]
    if not rivals:
        reason = "too few runs are left of the other rates that learn"
        return not_run(PATTERN, expected, reason, "joma run fig8 with lower --rates")
    rival = max(rivals, key=lambda i: float(means[i]))
    each = layer_rebounds(run, SWEEP, rate=found.best)
    count = np.nan if each is None else float(each.rebounds.sum())
    shares = {f"{rate:g}": mean for rate, mean in zip(found.rates, means, strict=True) if np.isfinite(mean)}
    return by_effect(
        PATTERN,
        compare(back[found.best], back[rival]),
        expected=expected,
        what="share of the drop that comes back, at the best rate",
        size=[at_least("layers that drop and rebound at the best rate", count, int(run.config["layers"]))],
        controls=[above("lower end of that share", compare(back[found.best]).low, 0.0, "%")],
        details={
            "rates": {"the best": found.rates[found.best], "its control": found.rates[rival]},
            "share that comes back, by rate": shares,
            **found.details(run),
        },
    )


def judge_together(run: Run) -> Finding:
    """Rank correlation of what comes back with a lower loss, over all runs that did not diverge.

    The rates are the witnesses: seeds of one rate are not independent of each other.
    """
    expected = (
        "over all runs, rebound and lower loss have a positive rank correlation, larger than with rates exchanged"
    )
    if finding := _too_few(TOGETHER, expected, run, fewest=FEWEST_RATES):
        return finding
    found, back = by_rate(run), comes_back(run)
    value, low, high, chance = correlation(back, -found.losses)
    if not np.isfinite(value):
        reason = "the same share comes back at every rate, or none, so a correlation cannot be computed"
        return not_run(TOGETHER, expected, reason, "joma run fig8 with more --steps")
    details = found.details(run)
    if not found.learned.all():
        part = correlation(back[found.learned], -found.losses[found.learned])
        details["only rates that learn"] = dict(zip(("correlation", "from", "to", "chance"), part, strict=True))
    return by_effect(
        TOGETHER,
        Comparison(value, 0.0, low, high, 0.0, 0.0, int(np.isfinite(back).any(-1).sum())),
        expected=expected,
        what="rank correlation",
        over="rates",
        controls=[above("the correlation, against 95 % of exchanges of rates,", value, chance)],
        details=details,
    )


class Correlation(NamedTuple):
    """A rank correlation with its 95 % interval, and what 5 % of exchanges between rates exceed."""

    value: float
    low: float
    high: float
    chance: float


def correlation(back: np.ndarray, gains: np.ndarray) -> Correlation:
    """Of (rates, seeds): its interval by drawing rates and, within them, seeds anew; the control exchanges rates."""
    generator = np.random.default_rng(0)
    rates, seeds = back.shape
    drawn, exchanged = np.empty((2, RESAMPLES))
    for place in range(RESAMPLES):
        rows = generator.integers(rates, size=(rates, 1))
        columns = generator.integers(seeds, size=(rates, seeds))
        drawn[place] = spearman(back[rows, columns], gains[rows, columns])
        exchanged[place] = abs(spearman(back, gains[generator.permutation(rates)]))

    def quantile(values: np.ndarray, level: float) -> float:
        known = values[np.isfinite(values)]
        return float(np.quantile(known, level)) if len(known) else float("nan")

    ends = quantile(drawn, 0.025), quantile(drawn, 0.975)
    return Correlation(spearman(back, gains), *ends, quantile(exchanged, 0.95))


def judge_large(run: Run) -> Finding:
    """The largest rate that learns: what it loses of the untrained network's entropy, against the best rate."""
    expected = (
        f"in every layer entropy ends below {show(SPARSE, '%')} of its start; it ends lower than at the best rate, by "
        f"at least {show(SPARSE, '%')} of the start and by more than seeds differ (95 %)"
    )
    if finding := _too_few(LARGE, expected, run, fewest=2):
        return finding
    found = by_rate(run)
    largest = int(np.flatnonzero(found.learned)[-1])
    if largest == found.best:
        reason = f"the largest rate that learns, {found.rates[largest]:g}, has the lowest loss"
        return not_run(LARGE, expected, reason, "joma run fig8 with a larger one in --rates that still learns")
    curves = curve(run, SWEEP, "valid/entropy").mean(-1)  # (rates, seeds, points, layers)
    kept = np.where(alive(run, SWEEP)[..., None], curves[:, :, -1] / curves[:, :, 0], np.nan)
    layers = [f"layer {layer + 1}" for layer in range(kept.shape[2])]
    most = float(np.nanmean(kept[largest], axis=0).max())
    idle = {}
    for i in np.flatnonzero(alive(run, SWEEP).any(-1)):
        if i > largest:
            lost = np.nanmean(1 - kept[i], axis=0).tolist()
            idle[f"lost at {found.rates[i]:g}, which learns nothing"] = dict(zip(layers, lost, strict=True))
    chosen = {"the largest that learns": found.rates[largest], "the best, its control": found.rates[found.best]}
    return by_effect(
        LARGE,
        {
            name: compare(1 - kept[largest, :, layer], 1 - kept[found.best, :, layer])
            for layer, name in enumerate(layers)
        },
        expected=expected,
        what="share of the entropy that is lost",
        size=[below("largest share of its entropy that a layer keeps", most, SPARSE, "%")],
        details={"rates": chosen} | idle | found.details(run),
    )


STUDY = Study(
    name="fig8",
    title="Figure 8: attention entropy and the learning rate",
    version=3,
    claims={
        BEST: judge_best,
        PATTERN: judge_pattern,
        TOGETHER: judge_together,
        LARGE: judge_large,
        CURVES: partial(near_stored, CURVES),
    },
    quick=Fig8Config(vocabulary=300, width=24, mlp=24, streams=4, valid_sequences=8, sequence=5, steps=240),
    paper=Fig8Config(**PAPER, layers=5, rates=(1e-6, 5e-6, 1e-5, 5e-5, 1e-4, 1e-3, 1e-2)),
    run=run,
    draw=lambda run: [draw_sweep(run)],
    check=same_text,
    about=(
        "Models of one depth are trained with several learning rates (the figure's seven at paper scale) and three "
        "seeds per rate, all as one ensemble. The predicted pattern is measured as the share of the drop in attention "
        "entropy that comes back later. The best rate is compared with the other rates that learn more than how "
        "frequent words are. Over all runs, that share is compared with the validation loss. Runs whose loss stops "
        "being finite are left out."
    ),
)
