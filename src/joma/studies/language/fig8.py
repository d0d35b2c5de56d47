"""Figure 8: attention entropy and validation loss under several learning rates."""

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding, NotRun, Progress, Study, Values
from joma.claims.declare import Claims
from joma.claims.guards import still_falls
from joma.claims.verdicts import above, at_least, below, by_effect
from joma.figures.labels import label_lines
from joma.figures.reading import number
from joma.figures.style import INK, Axes, panels, rate_colours
from joma.measure.correlation import spearman
from joma.measure.intervals import Comparison, compare
from joma.measure.rebound import FEWEST_POINTS
from joma.recipes.language import (
    PAPER,
    QUICK,
    LanguageModelConfig,
    called,
    corpus,
    curves,
    recipe,
    same_text,
    train_variants,
)
from joma.runs import Run
from joma.studies.language._figures import plot_layers
from joma.studies.language._published import (
    EXPECTED,
    NEARER,
    differs,
    find_stored,
    keep_distances,
    must_be_the_papers,
    near_stored,
)

SWEEP = "sweep"
SMALLEST_DROP = 0.05  # of the untrained network's entropy: a layer that drops by less has nothing to get back


class Rates(NamedTuple):
    """The rates of a sweep, their losses, and which of them has the lowest mean loss."""

    rates: np.ndarray
    losses: np.ndarray  # (rates, seeds); NaN for runs that diverged
    means: np.ndarray  # (rates,): the losses' means over seeds
    best: int
    learned: np.ndarray  # (rates,) bool: whether they learned more than the words' frequencies

    def details(self, run: Run) -> dict[str, dict[str, float]]:
        known = {f"{rate:g}": loss for rate, loss in zip(self.rates, self.means.tolist(), strict=True) if loss == loss}
        lost = (~curves.alive(run, SWEEP)).sum(-1)
        gone = {f"runs at {rate:g}": float(count) for rate, count in zip(self.rates, lost, strict=True) if count}
        return {"best validation loss by rate": known} | ({"diverged and left out": gone} if gone else {})


def by_rate(run: Run) -> Rates:
    """What the sweep came to."""
    losses = curves.best_loss(run, SWEEP)
    means = np.array([curves.mean_over_seeds(row) for row in losses])
    best = int(np.argmin(np.where(np.isfinite(means), means, np.inf)))
    return Rates(run.value(f"{SWEEP}/rates"), losses, means, best, curves.learned_at(run, SWEEP))


def comes_back(run: Run) -> np.ndarray:
    """Which share of its drop in entropy came back in every run, (rates, seeds); NaN for runs that diverged.

    Every seed is read at the valley of the others, so that noise alone makes it as often negative as positive. A sum
    over the layers whose mean drop is `SMALLEST_DROP` or more of where they began, as a share of these drops; 0 where
    none is. A layer counts for no more than its drop.
    """
    start = curves.curve(run, SWEEP, "valid/entropy").mean(-1)[:, :, 0]  # (rates, seeds, layers)
    found = np.full(start.shape[:2], np.nan)
    for rate, kept in enumerate(curves.alive(run, SWEEP)):
        drop, back = curves.drops_and_rebounds(run, SWEEP, rate=rate)  # (layers, seeds)
        if np.isnan(drop[:, kept]).any() or not kept.any():
            continue
        mean = drop[:, kept].mean(1)
        back = np.where(still_falls(curves.layer_curves(run, SWEEP, rate=rate))[:, None], np.nan, back)
        counts = mean >= SMALLEST_DROP * start[rate, kept].mean(0)
        made_good = np.minimum(back, drop)[counts].sum(0) / (mean[counts].sum() if counts.any() else 1.0)
        found[rate, kept] = made_good[kept]
    return found


SPARSE = 0.1  # of the untrained network's entropy: below that, attention is extremely sparse
RESAMPLES = 2_000
PRINTED_BEST = 1e-4
FEWEST_RATES = 3  # two rates can always be put in order


@dataclass(frozen=True)
class Fig8Config(LanguageModelConfig):
    """Models that differ in rate and seed alone, trained as one ensemble."""

    layers: int = 2
    rates: Annotated[tuple[float, ...], Values(FEWEST_RATES)] = (3e-4, 1e-3, 3e-3, 1e-2, 1e-1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps // self.every + 1 < FEWEST_POINTS:
            few = f"fewer than {FEWEST_POINTS} points, too few to tell a rebound from noise"
            raise ValueError(f"{self.steps} steps measured every {self.every} steps give {few}")


CLAIMS = Claims(source="JoMA Fig. 8")


def run(config: Fig8Config, run: Run, progress: Progress) -> None:
    """Train all rates and seeds as one ensemble; keep the distance to the stored curves where there are any."""
    stored = None if differs(run.config) else find_stored(config.data)  # before the training: it may be damaged
    text = corpus(config, progress)
    variant = recipe(config, text, layers=config.layers, rates=sorted(config.rates))
    train_variants({SWEEP: variant}, text, run, progress)
    if stored is not None:
        keep_distances(run, {SWEEP: config.layers}, stored)


def _must_learn(run: Run, *, fewest: int) -> None:
    found = by_rate(run)
    if found.learned.sum() >= fewest:
        return
    lost, rates = int((~curves.alive(run, SWEEP)).all(-1).sum()), run.config["rates"]
    reason = (
        f"only {int(found.learned.sum())} of {len(found.rates)} rates learn more than how frequent words are, and "
        f"{fewest} are needed ({lost} {'diverges' if lost == 1 else 'diverge'})"
    )
    remedy = {"rates": [rate / 3 for rate in rates]} if lost else {"steps": 2 * run.config["steps"]}
    raise NotRun(reason, **remedy)


# as in Figure 6: losses that are nearer than 0.02 nats count as the same
@CLAIMS.declare("fig8-best-rate", matters=0.02, unit="nats")
def judge_best(run: Run, claim: Claim) -> Finding:
    """Of seven rates from 1e-6 to 1e-2, 1e-4 has the lowest validation loss.

    Expected: the lowest loss is at 0.0001, by at least 0.02 nats and by more than seeds differ
    """
    command = "JOMA_DATA=FOLDER joma verify fig8 --scale paper"
    must_be_the_papers(run, command, layers=5, rates=list(STUDY.paper.rates))
    _must_learn(run, fewest=2)
    found = by_rate(run)
    printed = int(np.argmin(np.abs(found.rates - PRINTED_BEST)))
    if not found.learned[printed]:
        reason = f"the networks at {PRINTED_BEST:g} diverged, or learned only how frequent words are"
        raise NotRun(reason, f"{command} --fresh")
    gains = [compare(row - found.losses[printed]) for i, row in enumerate(found.losses) if i != printed]
    return by_effect(
        claim,
        min((gain for gain in gains if np.isfinite(gain.value)), key=lambda gain: gain.value),
        what=f"loss at the best other rate minus that at {PRINTED_BEST:g}",
        details=found.details(run),
    )


# of a drop of about one nat: the 0.05 nats by which single runs of one recipe differ
@CLAIMS.declare(
    "fig8-pattern-of-the-best",
    matters=0.05,
    unit="%",
    ceiling=1.0,
    uses=("eq6/entropy-drops", "eq6/entropy-rebounds"),
)
def judge_pattern(run: Run, claim: Claim) -> Finding:
    """The rate with the lowest validation loss is the one under which attention drops and rebounds as predicted.

    Expected: at the best rate, more of the drop comes back than at any other rate that learns, and every layer rebounds
    """
    _must_learn(run, fewest=2)
    found, back = by_rate(run), comes_back(run)
    means = np.array([curves.mean_over_seeds(row) for row in back])
    rivals = [i for i in np.flatnonzero(found.learned) if i != found.best and np.isfinite(means[i])]
    if not rivals:
        fewer = [rate / 3 for rate in run.config["rates"]]
        raise NotRun("too few runs are left of the other rates that learn", rates=fewer)
    rival = max(rivals, key=lambda i: float(means[i]))
    each = curves.layer_rebounds(run, SWEEP, rate=found.best)
    count = np.nan if each is None else float(each.rebounds.sum())
    shares = {f"{rate:g}": mean for rate, mean in zip(found.rates, means, strict=True) if np.isfinite(mean)}
    return by_effect(
        claim,
        compare(back[found.best], back[rival]),
        what="share of the drop that comes back, at the best rate",
        size=[at_least("layers that drop and rebound at the best rate", count, int(run.config["layers"]))],
        controls=[above("lower end of that share", compare(back[found.best]).low, 0.0, "%")],
        details={
            "rates": {"the best": found.rates[found.best], "its control": found.rates[rival]},
            "share that comes back, by rate": shares,
            **found.details(run),
        },
    )


# 0.05: as of the correlation in Figure 6
@CLAIMS.declare("fig8-pattern-and-loss", "JoMA Sec. 6", matters=0.05, ceiling=1.0, uses=("eq6/entropy-rebounds",))
def judge_together(run: Run, claim: Claim) -> Finding:
    """Over all runs, the more attention rebounds after its drop, the lower is the validation loss.

    Expected: over all runs, rebound and lower loss have a positive rank correlation, larger than with rates exchanged

    The rates are the witnesses: seeds of one rate are not independent of each other.
    """
    _must_learn(run, fewest=FEWEST_RATES)
    found, back = by_rate(run), comes_back(run)
    value, low, high, chance = correlation(back, -found.losses)
    if not np.isfinite(value):
        reason = "the same share comes back at every rate, or none, so a correlation cannot be computed"
        raise NotRun(reason, steps=2 * run.config["steps"])
    details = found.details(run)
    if not found.learned.all():
        part = correlation(back[found.learned], -found.losses[found.learned])
        details["only rates that learn"] = dict(zip(("correlation", "from", "to", "chance"), part, strict=True))
    rates = int(np.isfinite(back).any(-1).sum())
    return by_effect(
        claim,
        Comparison(value, 0.0, low, high, 0.0, 0.0, low, high, rates, freedom=rates - 1),  # drawn, read as a t interval
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
    draws, orders = [], []
    for _ in range(RESAMPLES):
        rows = generator.integers(rates, size=(rates, 1))
        draws.append(rows * seeds + generator.integers(seeds, size=(rates, seeds)))
        orders.append(generator.permutation(rates))
    places = np.stack(draws).reshape(RESAMPLES, -1)
    drawn = _spearmans(back.ravel()[places], gains.ravel()[places])
    as_they_are = np.broadcast_to(back.ravel(), places.shape)
    exchanged = np.abs(_spearmans(as_they_are, gains[np.stack(orders)].reshape(RESAMPLES, -1)))

    def quantile(values: np.ndarray, level: float) -> float:
        known = values[np.isfinite(values)]
        return float(np.quantile(known, level)) if len(known) else float("nan")

    ends = quantile(drawn, 0.025), quantile(drawn, 0.975)
    return Correlation(spearman(back, gains), *ends, quantile(exchanged, 0.95))


def _spearmans(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """`spearman` of every row: (rows, entries) each -> (rows,)."""
    known = np.isfinite(first) & np.isfinite(second)

    def centred(values: np.ndarray) -> np.ndarray:
        """Ranks by counting, equal ones share theirs; less their mean, and 0 where nothing is known."""
        pair = values[:, None, :], values[:, :, None]
        below, same = (relation(*pair) & known[:, None, :] for relation in (np.less, np.equal))
        ranks = np.where(known, below.sum(-1) + same.sum(-1) / 2, 0.0)
        return np.where(known, ranks - ranks.sum(-1, keepdims=True) / known.sum(-1, keepdims=True).clip(1), 0.0)

    one, other = centred(first), centred(second)
    lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    return np.where(lengths > 0, (one * other).sum(-1) / np.where(lengths > 0, lengths, 1.0), np.nan)


# extremely sparse is what keeps less than SPARSE; so much more must be lost than at the best rate
@CLAIMS.declare("fig8-large-rate", "JoMA Sec. 6", matters=SPARSE, unit="%", ceiling=1.0)
def judge_large(run: Run, claim: Claim) -> Finding:
    """With a large learning rate attention becomes extremely sparse.

    Expected: in every layer entropy ends below 10 % of its start; it ends lower than at the best rate, by at least 10 %
    of the start and by more than seeds differ
    """
    _must_learn(run, fewest=2)
    found = by_rate(run)
    largest = int(np.flatnonzero(found.learned)[-1])
    if largest == found.best:
        reason = f"the largest rate that learns, {found.rates[largest]:g}, has the lowest loss"
        larger = [*run.config["rates"], 1.5 * found.rates[largest]]  # the next one that was tried diverged, if any was
        raise NotRun(reason, rates=sorted(larger))
    entropy = curves.curve(run, SWEEP, "valid/entropy").mean(-1)  # (rates, seeds, points, layers)
    kept = np.where(curves.alive(run, SWEEP)[..., None], entropy[:, :, -1] / entropy[:, :, 0], np.nan)
    layers, lost = [f"layer {layer + 1}" for layer in range(kept.shape[2])], 1 - kept
    most = float(np.nanmean(kept[largest], axis=0).max())
    idle = {}
    for i in np.flatnonzero(curves.alive(run, SWEEP).any(-1)):
        if i > largest:
            means = np.nanmean(lost[i], axis=0).tolist()
            idle[f"lost at {found.rates[i]:g}, which learns nothing"] = dict(zip(layers, means, strict=True))
    chosen = {"the largest that learns": found.rates[largest], "the best, its control": found.rates[found.best]}
    return by_effect(
        claim,
        {name: compare(lost[largest, :, i], lost[found.best, :, i]) for i, name in enumerate(layers)},
        what="share of the entropy that is lost",
        size=[below("largest share of its entropy that a layer keeps", most, SPARSE, "%")],
        details={"rates": chosen} | idle | found.details(run),
    )


CLAIMS.declare(
    "fig8-curves",
    text="The attention entropy of every layer follows the curves of the runs that the figure shows.\n\n"
    f"Expected: {EXPECTED}",
    matters=NEARER,
    unit="nats",
)(near_stored)


def draw_sweep(run: Run) -> Drawing:
    """One panel per rate, and all runs."""
    found, back = by_rate(run), comes_back(run)
    columns = 3 if len(found.rates) < 6 else 4
    highest = np.nanmax(curves.curve(run, SWEEP, "valid/entropy"))
    figure, axes = panels(columns, -(-(len(found.rates) + 1) // columns), width=2.7, height=2.3)
    for index, (axis, rate) in enumerate(zip(axes, found.rates, strict=False)):
        plot_layers(axis, run, SWEEP, rate=index)
        best = " (best)" if index == found.best else ""
        axis.set(title=f"Rate {rate:g}: loss {found.means[index]:.3f}{best}", ylabel="entropy (nats)")
        axis.set_ylim(0, 1.05 * highest)
        if index % columns == columns - 1:  # once per row; the last row ends with the panel of all runs
            label_lines(axis)
    _draw_runs(axes[len(found.rates)], found, back)
    for axis in axes[len(found.rates) + 1 :]:
        axis.remove()
    return Drawing("learning-rate-sweep", _caption(run, found, back), figure)


def _draw_runs(axis: Axes, found: Rates, back: np.ndarray) -> None:
    order, sizes = np.argsort(found.rates), np.linspace(3.5, 7.0, len(found.rates))
    for at, colour, size in zip(order, rate_colours(len(order)), sizes, strict=True):
        face, name = colour if found.learned[at] else "none", f"rate {found.rates[at]:g}"
        look: Any = {"marker": "s", "edgecolors": colour, "facecolors": face, "linewidths": 1.0, "zorder": 2}
        axis.scatter(100 * back[at], found.losses[at], size**2, label=name, **look)
    axis.axvline(0, color=INK, lw=0.7)
    axis.set(xlabel="share of the drop that comes back (%)", ylabel="best validation loss (nats)")
    axis.set_title("All runs: rebound and loss")
    hollow = None if found.learned.all() else "hollow: learned only\nword frequencies"
    legend = axis.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), reverse=True, title=hollow, handletextpad=0.2)
    legend.get_title().set_fontsize(7.5)


def _caption(run: Run, found: Rates, back: np.ndarray) -> str:
    rates, best, shares = found.rates, found.best, np.array([curves.mean_over_seeds(row) for row in back])
    learned = np.where(found.learned, shares, np.nan)
    largest = "No rate that learns shows a rebound."
    if (learned > 0).any():
        largest = "That is the largest share among the rates that learn."
        if (most := int(np.nanargmax(learned))) != best:
            share = f"The largest share among the rates that learn, {number(shares[most], '%')}"
            largest = f"{share}, is at a rate of {rates[most]:g}."
    return (
        f"The lowest validation loss, {found.means[best]:.3f} nats, is reached at a rate of {rates[best]:g}, where "
        f"{number(shares[best], '%') if shares[best] > 0 else 'none'} of the drop in attention entropy comes back. "
        f"{largest} Lines: mean of {run.config['seeds']} seeds on held-out text of {called(run.config['corpus'])} at "
        f"{len(curves.steps_of(run, SWEEP))} points; bands: their range. Layer 1 is the one next to the input; its "
        "colour, like that of every layer, is the same in all panels. Last panel: one square per run, from small and "
        "indigo (the lowest rate) to large and lime (the highest); hollow squares learned only how frequent words are."
    )


AT_QUICK_SCALE: dict[str, Any] = {name: value for name, value in QUICK.items() if name != "rate"} | {
    "layers": 1, "rates": (3e-3, 1e-2, 2e-2, 4e-2), "seeds": 5, "seed": 200,
}  # fmt: skip
"""The networks of Figure 6. Of rates from 3e-4 to 1e-1 the largest that learned was the best one, and so none was too
large. On seeds 9100 to 9104 the largest of these, 4e-2, lost all entropy, and 3e-3 had the lowest loss."""

STUDY = Study(
    name="fig8",
    title="Figure 8: attention entropy and the learning rate",
    version=3,
    claims=CLAIMS,
    quick=Fig8Config(**AT_QUICK_SCALE),
    paper=Fig8Config(**PAPER, layers=5, rates=(1e-6, 5e-6, 1e-5, 5e-5, 1e-4, 1e-3, 1e-2)),
    run=run,
    draw=lambda run: [draw_sweep(run)],
    check=same_text,
    about=(
        "Models of one depth are trained with several learning rates (the figure's seven at paper scale) and several "
        "seeds per rate, all as one ensemble. The predicted pattern is measured as the share of the drop in attention "
        "entropy that comes back later. The best rate is compared with the other rates that learn more than how "
        "frequent words are. Over all runs, that share is compared with the validation loss. Runs whose loss stops "
        "being finite are left out."
    ),
)
