"""Figure 8: attention entropy and validation loss under several learning rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from joma.measure.rebound import FEWEST_POINTS, rebound
from joma.runs import Run
from joma.studies._language_model_curves import (
    alive,
    best_loss,
    curve,
    layer_curves,
    layer_rebounds,
    learned_at,
    over_seeds,
    steps_of,
)
from joma.studies._language_model_findings import differs, near_stored, not_run, not_wikitext_2, plot_layers
from joma.studies._language_models import PAPER, LanguageModelConfig, called, corpus, recipe, same_text, train_variants
from joma.studies._stored_curves import distances, find_stored
from joma.studies.contract import Claim, Drawing, Finding, Progress, Study
from joma.studies.drawing import CONTROL, panels, step_axis
from joma.studies.verdicts import by_effect, by_test

SMALLEST_DROP = 0.05  # of the untrained network's entropy: a layer that drops by less has nothing to make good
SPARSE = 0.1  # of the untrained network's entropy: below that, attention is extremely sparse
RESAMPLES = 2_000
SWEEP = "sweep"
PRINTED_BEST = 1e-4


@dataclass(frozen=True)
class Config(LanguageModelConfig):
    """Models that differ in rate and seed alone, trained as one ensemble."""

    layers: int = 2
    rates: tuple[float, ...] = (3e-4, 1e-3, 3e-3, 1e-2, 1e-1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.rates) < 3 or len(set(self.rates)) < len(self.rates):
            raise ValueError(f"rates must be at least three different ones, got {self.rates}")
        if self.steps // self.every + 1 < FEWEST_POINTS:
            raise ValueError(
                f"{self.steps} steps measured every {self.every} are fewer than {FEWEST_POINTS} points, too few to "
                "tell a rebound from noise"
            )


BEST = Claim(
    "fig8-best-rate",
    "JoMA Fig. 8",
    "Of seven rates from 1e-6 to 1e-2, 1e-4 has the lowest validation loss.",
    empirical=True,
)
PATTERN = Claim(
    "fig8-pattern-of-the-best",
    "JoMA Fig. 8",
    "The rate with the lowest validation loss is the one under which attention drops and rebounds as predicted.",
    empirical=True,
)
TOGETHER = Claim(
    "fig8-pattern-and-loss",
    "JoMA Sec. 6",
    "Across runs, the more attention rebounds after its drop, the lower the validation loss.",
    empirical=True,
)
LARGE = Claim(
    "fig8-large-rate",
    "JoMA Sec. 6",
    "With a large learning rate attention becomes extremely sparse.",
    empirical=True,
)
COMPARED = (BEST, PATTERN, TOGETHER, LARGE)
CURVES = Claim(
    "fig8-curves",
    "JoMA Fig. 8",
    "The entropy of every layer follows the curves of the runs that the figure shows.",
    empirical=True,
)


def run(config: Config, run: Run, progress: Progress) -> None:
    """Train all rates and seeds as one ensemble; keep the distance to the stored curves where there are any."""
    stored = None if differs(run.config) else find_stored(config.data)  # before the training: it may be damaged
    text = corpus(config, progress)
    variant = recipe(config, text, layers=config.layers, rates=sorted(config.rates))
    train_variants({SWEEP: variant}, text, run, progress)
    if stored is not None:
        run.keep("stored", lambda: distances(run, {SWEEP: config.layers}, stored))


def judge(run: Run) -> list[Finding]:
    """The best rate against the others; rebound and loss over all runs against rates exchanged at random."""
    if alive(run, SWEEP).any(-1).sum() < 2:
        reason = f"fewer than two rates are left to compare{_diverged(run)}"
        lost = [not_run(claim, "two rates that do not diverge", reason, "lower --rates") for claim in COMPARED]
        return [*lost, near_stored(CURVES, run)]
    return [_best(run), _pattern(run), _together(run), _large(run), near_stored(CURVES, run)]


def comes_back(run: Run) -> np.ndarray:
    """Which part of its drop in entropy every run made good, (rates, seeds); NaN for runs that diverged.

    Sums over the layers that drop by `SMALLEST_DROP` or more of where they began; 0 where none does.
    """
    curves = curve(run, SWEEP, "valid/entropy").mean(-1)  # (rates, seeds, points, layers)
    found = np.full(curves.shape[:2], np.nan)
    for at in np.argwhere(alive(run, SWEEP)):
        each = rebound(torch.from_numpy(curves[tuple(at)].T.copy()))
        drops = each.drop >= SMALLEST_DROP * each.start
        back = torch.minimum(each.rebound, each.drop)[drops].sum()
        found[tuple(at)] = float(back / each.drop[drops].sum()) if drops.any() else 0.0
    return found


def _by_rate(run: Run) -> tuple[np.ndarray, np.ndarray, int]:
    """Rates, best losses (rates, seeds), and the index of the rate with the lowest mean loss."""
    losses = best_loss(run, SWEEP)
    mean = np.array([over_seeds(row).mean for row in losses])
    return run.value(f"{SWEEP}/rates"), losses, int(np.argmin(np.where(np.isfinite(mean), mean, np.inf)))


def _best(run: Run) -> Finding:
    rates, losses, best = _by_rate(run)
    expected = f"the lowest mean loss at {PRINTED_BEST:g}, by more than seeds differ (95 %)"
    if reason := differs(run.config, layers=5, rates=list(STUDY.paper.rates)) or not_wikitext_2(run):
        return not_run(BEST, expected, reason, "JOMA_DATA=FOLDER joma verify fig8 --scale paper")
    printed = int(np.argmin(np.abs(rates - PRINTED_BEST)))
    gains = [over_seeds(row - losses[printed]) for i, row in enumerate(losses) if i != printed]
    nearest = min(gains, key=lambda gain: gain.mean - gain.half_width if np.isfinite(gain.mean) else np.inf)
    return by_effect(
        BEST,
        measured=nearest.mean,
        control=0.0,
        margin=nearest.half_width,
        expected=expected,
        shown=_losses_shown(rates, losses) + _diverged(run),
        control_shown=f"the nearest other rate: above by {nearest}",
        quantitative=best == printed,
    )


def _losses_shown(rates: np.ndarray, losses: np.ndarray) -> str:
    return "loss " + ", ".join(
        f"{over_seeds(row).mean:.3f} ({rate:g})"
        for rate, row in zip(rates, losses, strict=True)
        if np.isfinite(row).any()
    )


def _diverged(run: Run) -> str:
    """A remark about the runs whose loss was no longer finite, rate by rate, or nothing."""
    left = alive(run, SWEEP)
    parts = [
        f"{(~row).sum()} of {len(row)} runs at {rate:g}"
        for rate, row in zip(run.value(f"{SWEEP}/rates"), left, strict=True)
        if not row.all()
    ]
    return f"; diverged and left out: {', '.join(parts)}" if parts else ""


def _pattern(run: Run) -> Finding:
    """The best rate's rebound against the largest of any other rate that learns; of any if none does."""
    rates, _, best = _by_rate(run)
    back = comes_back(run)
    means = [over_seeds(row) for row in back]
    others = [i for i in range(len(rates)) if i != best and np.isfinite(means[i].mean)]
    learners = [i for i in others if learned_at(run, SWEEP)[i]]
    rival = max(learners or others, key=lambda i: means[i].mean)
    each = layer_rebounds(run, SWEEP, rate=best)
    count = 0 if each is None else int(each.rebounds.sum())
    ahead = over_seeds(back[best] - back[rival])
    known = np.isfinite(ahead.half_width)  # not where one pair of runs is left
    each_rate = ", ".join(
        f"{part.mean:.2f} ± {part.half_width:.2f} ({rate:g})"
        for part, rate in zip(means, rates, strict=True)
        if np.isfinite(part.mean)
    )
    return by_effect(
        PATTERN,
        measured=means[best].mean if known and learned_at(run, SWEEP)[best] else 0.0,
        control=max(means[rival].mean, 0.0),
        margin=ahead.half_width if known else 0.0,
        expected="at the best rate more of the drop comes back than at any other, and every layer rebounds",
        quantitative=count == run.config["layers"],
        shown=f"best rate {rates[best]:g}: {means[best]} of the drop comes back, {count} of {run.config['layers']} "
        f"layers rebound; all rates: {each_rate}" + _diverged(run),
        control_shown=f"the most at another rate{' that learns' if learners else ''}: "
        f"{means[rival]} ({rates[rival]:g})",
    )


def _together(run: Run) -> Finding:
    """Rank correlation of what comes back with the loss, over all runs; and over those of rates that learn."""
    back, losses = comes_back(run), best_loss(run, SWEEP)
    whole = _correlation(back, losses)
    expected = "over all runs a negative rank correlation, its 95 % interval below 0"
    if not np.isfinite(whole.value):
        reason = "nothing, or the same part, comes back at every rate, and a correlation cannot be worked out"
        return not_run(TOGETHER, expected, reason + _diverged(run), "joma verify fig8")
    learned, rates = learned_at(run, SWEEP), run.value(f"{SWEEP}/rates")
    rest = ""
    if learned.sum() > 2 and not learned.all():
        part = _correlation(back[learned], losses[learned])
        idle = ", ".join(f"{rate:g}" for rate in rates[~learned])
        rest = f"; without {idle}, where only frequencies are learned: {part} (by chance ±{part.chance:.2f})"
    return by_effect(
        TOGETHER,
        measured=-whole.value,
        control=whole.chance,
        margin=0.0,
        expected=expected,
        quantitative=whole.high < 0,
        shown=f"rank correlation {whole} over {int(np.isfinite(back).sum())} runs{rest}" + _diverged(run),
        control_shown=f"losses exchanged between rates: beyond ±{whole.chance:.2f} in 5 % of cases",
    )


class Correlation(NamedTuple):
    """A rank correlation with its 95 % interval, and what 5 % of exchanges between rates exceed."""

    value: float
    low: float
    high: float
    chance: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def _correlation(back: np.ndarray, losses: np.ndarray) -> Correlation:
    """Of (rates, seeds): its interval by drawing rates and, within them, seeds anew; the control exchanges rates."""
    generator = np.random.default_rng(0)
    rates, seeds = back.shape
    drawn: list[float] = []
    exchanged: list[float] = []
    for _ in range(RESAMPLES):
        rows = generator.integers(rates, size=(rates, 1))
        columns = generator.integers(seeds, size=(rates, seeds))
        drawn.append(spearman(back[rows, columns], losses[rows, columns]))
        exchanged.append(abs(spearman(back, losses[generator.permutation(rates)])))
    (low, high), (chance,) = _quantiles(drawn, 0.025, 0.975), _quantiles(exchanged, 0.95)
    return Correlation(spearman(back, losses), low, high, chance)


def _quantiles(values: list[float], *levels: float) -> list[float]:
    finite = [value for value in values if np.isfinite(value)]
    return [float(np.quantile(finite, level)) for level in levels] if finite else [float("nan")] * len(levels)


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Rank correlation of all entries that are finite in both; NaN where one of the two does not vary.

    >>> round(spearman(np.array([1.0, 2.0, 3.0, np.nan]), np.array([9.0, 5.0, 1.0, 0.0])), 6)
    -1.0
    """
    both = np.isfinite(x) & np.isfinite(y)
    first, second = (_ranks(values[both]) for values in (x, y))
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return float("nan")
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Equal values share the mean of their ranks."""
    _, group, count = np.unique(values, return_inverse=True, return_counts=True)
    last = count.cumsum()
    return np.asarray((last - (count - 1) / 2)[group])


def _large(run: Run) -> Finding:
    """The largest rate that did not diverge; its entropy at the end as a share of the untrained network's."""
    rates, _, best = _by_rate(run)
    largest = int(np.flatnonzero(alive(run, SWEEP).any(-1))[-1])
    expected = f"in every layer entropy ends below {SPARSE:.0%} of its start"
    if largest == best:
        reason = f"the largest rate that does not diverge, {rates[best]:g}, has the lowest loss{_diverged(run)}"
        return not_run(LARGE, expected, reason, "--rates with a larger one that does not diverge")
    shares = []
    for index in (largest, best):
        curves = layer_curves(run, SWEEP, rate=index).mean(1)  # (layers, points)
        shares.append(curves[:, -1] / curves[:, 0])
    return by_test(
        LARGE,
        measured=f"at {rates[largest]:g} entropy ends at "
        + ", ".join(f"{share:.0%}" for share in shares[0])
        + " of its start, from the first layer upwards"
        + _diverged(run),
        expected=expected,
        as_printed=bool((shares[0] < SPARSE).all()),
        in_direction=bool(shares[0].min() < min(SPARSE, shares[1].min())),
        tolerance=SPARSE,
        control=f"at the best rate, {rates[best]:g}: " + ", ".join(f"{share:.0%}" for share in shares[1]),
    )


def draw(run: Run) -> list[Drawing]:
    """Entropy by layer for every rate, and rebound against loss over all runs."""
    rates, losses, best = _by_rate(run)
    columns = 3 if len(rates) < 6 else 4
    highest = np.nanmax(curve(run, SWEEP, "valid/entropy"))
    figure, axes = panels(columns, -(-(len(rates) + 1) // columns), width=2.4, height=2.2)
    for index, (axis, rate) in enumerate(zip(axes, rates, strict=False)):
        plot_layers(axis, run, SWEEP, rate=index)
        loss = over_seeds(losses[index]).mean
        axis.set_title(f"{rate:g}: loss {loss:.3f}" + (" (best)" if index == best else ""))
        axis.set_ylim(0, 1.05 * highest)
        if index % columns == 0:
            axis.set_ylabel("entropy (nats)")
        step_axis(axis, "step")
    if alive(run, SWEEP)[0].any():
        axes[0].legend(fontsize=7, loc="lower left")
    last, back = axes[len(rates)], comes_back(run)
    dots = zip(back, losses, rates, _rate_colours(len(rates)), learned_at(run, SWEEP), strict=True)
    for row, loss, rate, colour, learned in dots:
        last.scatter(row, loss, facecolor=colour if learned else "none", edgecolor=colour, s=16, label=f"{rate:g}")
    last.axvline(0, color=CONTROL, lw=0.7)
    last.set(xlabel="part that comes back", ylabel="best validation loss")
    last.set_title("All runs")
    last.legend(fontsize=6.5, handletextpad=0.1, loc="center left", bbox_to_anchor=(1.0, 0.5))
    for axis in axes[len(rates) + 1 :]:
        axis.remove()
    points = len(steps_of(run, SWEEP))
    caption = (
        f"Attention entropy on held-out text of {called(run.config['corpus'])} under {len(rates)} rates, each with the "
        f"loss at its best: mean of {run.config['seeds']} seeds and their range, {points} points, layers dark to light "
        "from the input upwards. Last: the part of its drop that attention made good, against the loss, one dot a run; "
        "hollow where nothing was learned but frequencies."
    )
    return [Drawing("learning-rate-sweep", caption, figure)]


def _rate_colours(count: int) -> list[str]:
    """From the lowest rate to the highest, and no colour of a layer."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps["plasma"](0.02 + 0.86 * i / max(count - 1, 1))) for i in range(count)]


STUDY = Study(
    name="fig8",
    title="Figure 8: attention entropy and the learning rate",
    version=3,
    claims=(*COMPARED, CURVES),
    quick=Config(vocabulary=300, width=24, mlp=24, streams=4, valid_sequences=8, sequence=5, steps=240),
    paper=Config(**PAPER, layers=5, rates=(1e-6, 5e-6, 1e-5, 5e-5, 1e-4, 1e-3, 1e-2)),
    run=run,
    judge=judge,
    draw=draw,
    check=same_text,
    about=(
        "Models of one depth are trained with several rates (at paper scale the figure's seven) and three seeds each, "
        "all as one ensemble. What counts as "
        "the predicted pattern is the part of attention's drop in entropy that comes back later. The best rate is "
        "compared with the others, and over all runs that part is set against the validation loss. A run whose loss "
        "is no longer finite is marked and left out."
    ),
)
