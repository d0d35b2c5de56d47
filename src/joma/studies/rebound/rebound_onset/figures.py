"""Two pictures of the onset: the valley's step against every factor, and the curves that it was read from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.labels import end_label, label_lines
from joma.figures.reading import listing, number
from joma.figures.style import BLUE, CONTROL, GREEN, ORANGE, depth_colours, panels
from joma.measure.intervals import compare
from joma.measure.rebound import FEWEST_SEEDS
from joma.recipes.language import called
from joma.recipes.language.curves import curve, mean_over_seeds, steps_of
from joma.runs import Run
from joma.studies.rebound.rebound_onset.record import FALLEN, factor_levels, first_learned, places, points_of, slopes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
        for (place, where), colour in zip(places(run).items(), COLOURS, strict=False):
            values, steps = points_of(run, factor, "valley", *where)
            for value, row in zip(values, steps, strict=True):
                axis.plot(np.full(row.shape, value), row, "o", ms=3, color=colour, alpha=0.45)
            _draw_means(axis, values, steps, color=colour, label=place)
            _draw_means(axis, *points_of(run, factor, "fall", *where), color=colour, ls="--", lw=1.1)
        _log_axes(axis, run.value("class frequency") if factor == "queries" else factor_levels(run, factor)[0])
        axis.set(xlabel=label, ylabel="training step", title=title)
    end_label(axes[2], "dashed: the fall", ls="--", lw=1.1)
    label_lines(axes[2])
    _draw_slopes(axes[5], run)
    powers = "; ".join(
        f"{title.lower()} {_powers(run, factor, 'valley')} ({_powers(run, factor, 'fall')})"
        for factor, (title, _) in FACTORS.items()
    )
    caption = (
        f"To which power of each factor the step of the valley goes, in brackets that of the fall: {powers} "
        f"({listing(places(run))}). −1 means that factor × step is constant, 0 that the factor does not matter. Dots: "
        f"valleys of single seeds; lines: geometric means; dashed: the fall by {FALLEN:g} nats. {run.config['seeds']} "
        f"seeds on {called(run.config['corpus'])}, {run.config['steps']:,} steps; where a dot is missing no valley was "
        "passed."
    )
    return Drawing("valley-by-factor", caption, figure)


def _powers(run: Run, factor: str, what: str) -> str:
    """The slopes of all layers, or that too few seeds have them."""
    found = [compare(slopes(*points_of(run, factor, what, *where))) for where in places(run).values()]
    return listing(f"{one.value:.2f}".replace("-", "−") if one.seeds >= FEWEST_SEEDS else "unknown" for one in found)


def _draw_means(axis: Axes, values: np.ndarray, steps: np.ndarray, **style: Any) -> None:
    """Geometric means over seeds."""
    axis.plot(values, np.exp([mean_over_seeds(np.log(row)) for row in steps]), **style)


def _log_axes(axis: Axes, values: np.ndarray) -> None:
    """Ticks at the levels themselves, and at 1, 2 and 5 times powers of ten on the other axis."""
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
    """All slopes with their 95 % intervals: squares for the valley, hollow for the fall."""
    for row, factor in enumerate(FACTORS):
        for shift, ((place, where), colour) in enumerate(zip(places(run).items(), COLOURS, strict=False)):
            for what, face in (("valley", colour), ("fall", "none")):
                found = compare(slopes(*points_of(run, factor, what, *where)))
                if found.seeds >= FEWEST_SEEDS:
                    at = -row + 0.24 * (1 - shift) - (0.1 if what == "fall" else 0.0)
                    axis.plot([found.low, found.high], [at, at], color=colour, lw=1.2)
                    label = f"{what}, {place}"
                    axis.plot(found.value, at, "s", ms=3.5, color=colour, markerfacecolor=face, label=label)
    for slope, style in ((0.0, "-"), (-1.0, ":")):
        axis.axvline(slope, color=CONTROL, lw=0.9, ls=style)
    axis.set_yticks([-row for row in range(len(FACTORS))], ["rate", "words", "flatness", "embeddings", "queries"])
    axis.set(xlabel="slope, log by log (dotted: inverse)", ylabel="factor", title="Slopes, 95 % (hollow: fall)")
    axis.set_ylim(-len(FACTORS) + 0.4, 0.6)


def draw_curves(run: Run) -> Drawing:
    """Entropy of one layer by rate, by embedding size and by class of the query: what valleys look like."""
    place, (variant, layer) = next(iter(places(run).items()))
    figure, axes = panels(3, width=3.4, height=2.8)
    steps, curves = steps_of(run, variant), curve(run, variant, "valid/entropy")[..., layer]
    learned = first_learned(run, variant) >= 0  # (levels, seeds)
    for axis, factor in zip(axes, ("rate", "embedding"), strict=False):
        values, levels = factor_levels(run, factor)
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
        label_lines(axis)
    by_rate, by_query = (_known(points_of(run, factor, "valley", variant, layer)[1]) for factor in ("rate", "queries"))
    caption = (
        f"From the lowest to the highest rate the valley is at step {by_rate}; from the most frequent to the rarest "
        f"queries, at step {by_query} ({place}). A dip in the first steps comes before the network knows more than "
        "how frequent words are, and is not counted. Mean attention entropy over seeds. Right: the base, queries in "
        "classes that have equally many occurrences."
    )
    return Drawing("curves-by-factor", caption, figure)


def _mean(rows: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Over the seeds that learned, from the first step on."""
    return np.asarray(rows[kept].mean(0) if kept.any() else np.full(rows.shape[1], np.nan))[1:]


def _known(steps: np.ndarray) -> str:
    """Mean steps (levels, seeds) that are known."""
    known = [number(mean) for row in steps if np.isfinite(mean := mean_over_seeds(row))]
    return listing(known) if known else "unknown"
