"""What sets the step at which attention stops falling and begins to come back?

The paper says none of this in so many words. Equation 6 has a time of its own, so the dull expectation for the rate is
that steps x rate is constant, a slope of -1. Section 4 ties the speed of a component to how often its words co-occur.
Section 7 says that embeddings reduce the vocabulary and may speed attention up.
What matters and the slope that counts as -1 were decided before any run at paper scale.
"""

from functools import partial
from typing import Any

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding, Study
from joma.claims.verdicts import at_most, by_effect, not_run
from joma.figures.labels import end_label, label_lines
from joma.figures.reading import listing, number
from joma.figures.style import BLUE, CONTROL, GREEN, ORANGE, Axes, depth_colours, panels
from joma.measure.intervals import compare
from joma.measure.rebound import FEWEST_SEEDS
from joma.recipes.language import PAPER, called, same_text
from joma.recipes.language.curves import curve, mean_over_seeds, steps_of
from joma.runs import Run
from joma.studies.rebound.rebound_onset import record
from joma.studies.rebound.rebound_onset.run import GROUPINGS, ReboundOnsetConfig, run

MATTERS = 0.1  # a slope that matters: over a factor of ten the valley moves by a quarter, 10^0.1
NEAR = 0.2  # of 1: a slope as near counts as inverse proportion

SAYS = {
    "rate": ("JoMA eq. 6", "after a fixed sum of rates: rate × step is constant"),
    "words": ("JoMA Sec. 7", "sooner with fewer words"),
    "flatness": ("JoMA Sec. 4", "later where frequent words are split into labels that are equally rare"),
    "queries": ("JoMA Sec. 4", "sooner at frequent query words than at rare ones"),
    "embedding": ("JoMA Sec. 7", "sooner with larger initial embeddings"),
}
"""By factor, what the paper says or implies of when attention does something."""
DOES = {
    "fall": "A network has learned from context and its attention has fallen",
    "valley": "Attention entropy passes its valley and begins to come back",
}
CLAIMS = {
    (what, factor): Claim(f"{what}-by-{factor}", source, f"{does} {says}.", matters=MATTERS)
    for what, does in DOES.items()
    for factor, (source, says) in SAYS.items()
}
LATER = ("words", "flatness")  # where the claim expects a later step if the factor is larger, else an earlier one


def judge_slope(what: str, factor: str, run: Run) -> Finding:
    """Slopes of log step by log factor in every layer, with the claim's sign."""
    claim, sign = CLAIMS[what, factor], 1 if factor in LATER else -1
    control = "with shuffled words" if factor == "queries" else "base networks of other seeds give"
    expected = (
        f"log step of the {what} by log {factor}: a slope {'above' if sign > 0 else 'below'} 0, by at least "
        f"{MATTERS:g} and by more than {control}"
    ) + (f"; within {NEAR:g} of -1" if factor == "rate" else "")
    cases, details = {}, {}
    for place, (variant, layer) in record.places(run).items():
        values, steps = record.points_of(run, factor, what, variant, layer)  # (levels,), (levels, seeds)
        if factor == "queries":
            seeds = range(steps.shape[1])
            shuffled = [record.class_steps(run, variant, layer, 1 + i % GROUPINGS, what)[:, i] for i in seeds]
            chance = record.slopes(values, np.array(shuffled).T)
        else:
            chance = record.slopes_of_chance(values, record.steps_read(run, variant, layer, what)[0])
        cases[place] = compare(sign * record.slopes(values, steps), sign * chance)
        means = {f"{value:.3g}": mean_over_seeds(row) for value, row in zip(values, steps, strict=True)}
        details[f"{place}, step of the {what}"] = {value: step for value, step in means.items() if np.isfinite(step)}
    if all(case.seeds < FEWEST_SEEDS for case in cases.values()):
        reason = f"in every layer fewer than {FEWEST_SEEDS} seeds have a {what} at three levels"
        if run.config["corpus"] == PAPER["corpus"]:
            return not_run(claim, expected, reason, steps=2 * run.config["steps"])
        return not_run(claim, expected, reason, "JOMA_DATA=FOLDER joma verify rebound-onset --scale paper")
    off = {place: abs(case.value - 1) for place, case in cases.items() if factor == "rate"}
    return by_effect(
        claim,
        cases,
        expected=expected,
        what=f"{'minus ' if sign < 0 else ''}slope",
        size=[at_most(f"{place}, distance of the slope from -1", distance, NEAR) for place, distance in off.items()],
        details=details,
    )


FACTORS = {
    "rate": ("Rate", "learning rate"),
    "words": ("Number of words", "words in the text"),
    "flatness": ("Flat frequencies", "effective words, frequencies flattened"),
    "embedding": ("Embeddings", "size of the initial embeddings"),
    "queries": ("Frequent and rare queries", "frequency of the query's word"),
}
"""Title and axis of every factor."""
COLOURS = (BLUE, ORANGE, GREEN, CONTROL)


def draw_factors(run: Run) -> Drawing:
    """One panel per factor, log axes, one line per layer."""
    figure, axes = panels(3, 2, width=3.3, height=2.6)
    for axis, (factor, (title, label)) in zip(axes, FACTORS.items(), strict=False):
        for (place, where), colour in zip(record.places(run).items(), COLOURS, strict=False):
            values, steps = record.points_of(run, factor, "valley", *where)
            for value, row in zip(values, steps, strict=True):
                axis.plot(np.full(row.shape, value), row, "o", ms=3, color=colour, alpha=0.45)
            _draw_means(axis, values, steps, color=colour, label=place)
            _draw_means(axis, *record.points_of(run, factor, "fall", *where), color=colour, ls="--", lw=1.1)
        _log_axes(axis, run.value("class frequency") if factor == "queries" else record.factor_levels(run, factor)[0])
        axis.set(xlabel=label, ylabel="training step", title=title)
    end_label(axes[2], "dashed: the fall", ls="--", lw=1.1)
    label_lines(axes[2])
    _draw_slopes(axes[5], run)
    powers = "; ".join(
        f"{title.lower()} {_powers(run, factor, 'valley')} ({_powers(run, factor, 'fall')})"
        for factor, (title, _) in FACTORS.items()
    )
    caption = (
        f"To which power of each factor the step of the minimum goes, in brackets that of the fall: {powers} "
        f"({listing(record.places(run))}). −1 means that factor × step is constant, 0 that the factor has no effect. "
        f"Dots: minima of single seeds; lines: geometric means; dashed: the fall by {record.FALLEN:g} nats. "
        f"{run.config['seeds']} seeds on {called(run.config['corpus'])}, {run.config['steps']:,} steps; where a dot is "
        "missing no minimum was passed."
    )
    return Drawing("minimum-by-factor", caption, figure)


def _powers(run: Run, factor: str, what: str) -> str:
    points = [record.points_of(run, factor, what, *where) for where in record.places(run).values()]
    found = [compare(record.slopes(*one)) for one in points]
    return listing(f"{one.value:.2f}".replace("-", "−") if one.seeds >= FEWEST_SEEDS else "unknown" for one in found)


def _draw_means(axis: Axes, values: np.ndarray, steps: np.ndarray, **style: Any) -> None:
    """Geometric means over seeds."""
    axis.plot(values, np.exp([mean_over_seeds(np.log(row)) for row in steps]), **style)


def _log_axes(axis: Axes, values: np.ndarray) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    axis.set(xscale="log", yscale="log")
    near = np.log(values[-1] / values[0]) / 6  # labels that stand nearer would overlap
    between = [v for v in values[1:-1] if near < np.log(v / values[0]) and near < np.log(values[-1] / v)]
    ticks = [values[0], *between, values[-1]]
    axis.set_xticks(ticks, [number(value) for value in ticks], fontsize=7.5)
    axis.xaxis.set_minor_locator(NullLocator())
    low, high = axis.get_ylim()
    if 0 < low < high < 4 * low:  # room for two ticks at least
        axis.set_ylim(low / 1.6, high * 1.6)
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _draw_slopes(axis: Axes, run: Run) -> None:
    for row, factor in enumerate(FACTORS):
        for shift, ((place, where), colour) in enumerate(zip(record.places(run).items(), COLOURS, strict=False)):
            for what, name, face in (("valley", "minimum", colour), ("fall", "fall", "none")):
                found = compare(record.slopes(*record.points_of(run, factor, what, *where)))
                if found.seeds >= FEWEST_SEEDS:
                    at = -row + 0.24 * (1 - shift) - (0.1 if what == "fall" else 0.0)
                    axis.plot([found.low, found.high], [at, at], color=colour, lw=1.2)
                    label = f"{name}, {place}"
                    axis.plot(found.value, at, "s", ms=3.5, color=colour, markerfacecolor=face, label=label)
    for slope, style in ((0.0, "-"), (-1.0, ":")):
        axis.axvline(slope, color=CONTROL, lw=0.9, ls=style)
    axis.set_yticks([-row for row in range(len(FACTORS))], ["rate", "words", "flatness", "embeddings", "queries"])
    axis.set(xlabel="slope, log by log (dotted: inverse)", ylabel="factor", title="Slopes and intervals (hollow: fall)")
    axis.set_ylim(-len(FACTORS) + 0.4, 0.6)


def draw_curves(run: Run) -> Drawing:
    """Entropy of one layer by rate, by embedding size and by class of the query: what valleys look like."""
    place, (variant, layer) = next(iter(record.places(run).items()))
    figure, axes = panels(3, width=3.4, height=2.8)
    steps, curves = steps_of(run, variant), curve(run, variant, "valid/entropy")[..., layer]
    learned = record.first_learned(run, variant) >= 0  # (levels, seeds)
    for axis, factor in zip(axes, ("rate", "embedding"), strict=False):
        values, levels = record.factor_levels(run, factor)
        for value, level, colour in zip(values, levels, depth_colours(len(values)), strict=True):
            axis.plot(steps[1:], _mean(curves[level], learned[level]), color=colour, label=f"{factor} {value:g}")
        axis.set_title(f"{FACTORS[factor][0]}, {place}")
    classes = curve(run, variant, "valid/classes")[0][:, :, layer, 0]  # seeds, points, classes
    frequency = run.value("class frequency")
    for one, colour in enumerate(depth_colours(len(frequency))):
        mean = _mean(classes[..., one], learned[0])
        axes[2].plot(steps[1:], mean, color=colour, label=f"one in {1 / frequency[one]:,.0f}")
    axes[2].set_title(f"Queries by frequency, {place}")
    for axis in axes:
        axis.set(xscale="log", xlabel="training step", ylabel="attention entropy (nats)")
    valleys = [record.points_of(run, factor, "valley", variant, layer)[1] for factor in ("rate", "queries")]
    known = [[number(at) for row in one if np.isfinite(at := mean_over_seeds(row))] for one in valleys]
    by_rate, by_query = (listing(means) if means else "unknown" for means in known)
    caption = (
        f"From the lowest to the highest rate the minimum is at step {by_rate}; from the most frequent to the rarest "
        f"queries, at step {by_query} ({place}). A dip in the first steps comes before the network knows more than "
        "how frequent words are, and is not counted. Mean attention entropy over seeds. Right: the base, queries in "
        "classes that have equally many occurrences."
    )
    return Drawing("curves-by-factor", caption, figure)


def _mean(rows: np.ndarray, kept: np.ndarray) -> np.ndarray:
    return np.asarray(rows[kept].mean(0) if kept.any() else np.full(rows.shape[1], np.nan))[1:]


STUDY = Study(
    name="rebound-onset",
    title="What sets the step at which attention begins to come back",
    version=1,
    claims={claim: partial(judge_slope, what, factor) for (what, factor), claim in CLAIMS.items()},
    # With three seeds the rate had too few; of ten from 3000 on one lacked a level.
    # Six seeds of 1 on left three claims open that asked for up to 15, or for more steps. Judged on others.
    quick=ReboundOnsetConfig(steps=140, points=16, seeds=16, seed=100),
    # The rate of the base is four times Figure 6's and the words are cut, so that all valleys are passed within two
    # minutes of one GPU; 1e-4 is among the rates.
    paper=ReboundOnsetConfig(
        **PAPER | {"vocabulary": 8_000, "steps": 5_000, "every": 5, "valid_sequences": 40, "seeds": 6}, words=2_000,
        depths=(1, 2), length=35, points=60, rate=4e-4, rates=(1e-4, 2e-4, 8e-4), fewer_or_more=(500, 8_000),
        labels=(2_050, 2_400), scales=(0.25, 0.5, 2.0),
    ),
    run=run,
    draw=lambda run: [draw_factors(run), draw_curves(run)],
    check=same_text,
    about=(
        "Networks of one and two layers are trained from one base and from levels that differ in one factor: the "
        "rate, the number of words, how flat the words' frequencies are, the size of the initial embeddings. The "
        "minimum is the lowest point of attention entropy after the network knows more than how frequent words are, "
        "if entropy comes back by 0.05 nats after it. The fall is the first step at which the network knows as much "
        "and entropy is 0.2 nats below its start. Each step is fitted by a power of the factor, seed by seed. The "
        "control puts base networks of other seeds in place of the levels. In the base, queries of frequent and of "
        "rare words are measured separately; there the control shuffles the words."
    ),
)  # fmt: skip
