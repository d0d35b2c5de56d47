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
from joma.recipes.language_curves import curve, fall_and_rise, mean_over_seeds, steps_of
from joma.runs import Run
from joma.studies.rebound._onset_valleys import FALLEN, factor_levels, first_learned, places, points_of, slopes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AXES = {
    "rate": "learning rate",
    "words": "words in the text",
    "flatness": "effective words, frequencies flattened",
    "embedding": "size of the initial embeddings",
}
TITLES = {
    "rate": "Rate",
    "words": "Number of words",
    "flatness": "Flat frequencies",
    "embedding": "Embeddings",
    "queries": "Frequent and rare queries",
}
QUERIES = "frequency of the query's word"
COLOURS = (BLUE, ORANGE, GREEN, CONTROL)
Points = tuple[np.ndarray, np.ndarray]
"""Values of a factor (levels,), steps of the valley (levels, seeds)."""


def draw_factors(run: Run) -> Drawing:
    """One panel per factor, log axes, one line per layer."""
    figure, axes = panels(3, 2, width=3.3, height=2.6)
    for axis, (factor, label) in zip(axes, [*AXES.items(), ("queries", QUERIES)], strict=False):
        for (place, (variant, layer)), colour in zip(places(run).items(), COLOURS, strict=False):
            _draw_points(axis, points_of(run, factor, "valley", variant, layer), place, colour)
            _draw_means(axis, points_of(run, factor, "fall", variant, layer), color=colour, ls="--", lw=1.1)
        _log_axes(axis, factor_levels(run, factor)[0] if factor in AXES else run.value("class frequency"))
        axis.set(xlabel=label, ylabel="training step", title=TITLES[factor])
    end_label(axes[2], "dashed: the fall", ls="--", lw=1.1)
    label_lines(axes[2])
    _draw_slopes(axes[5], run)
    return Drawing("valley-by-factor", _caption(run), figure, _alt(run))


def _draw_points(axis: Axes, points: Points, label: str, colour: str) -> None:
    values, steps = points
    for value, row in zip(values, steps, strict=True):
        axis.plot(np.full(row.shape, value), row, "o", ms=3, color=colour, alpha=0.45)
    _draw_means(axis, points, color=colour, label=label)


def _draw_means(axis: Axes, points: Points, **style: Any) -> None:
    """Geometric means over seeds."""
    values, steps = points
    axis.plot(values, np.exp([mean_over_seeds(np.log(row)) for row in steps]), **style)


def _log_axes(axis: Axes, values: np.ndarray) -> None:
    """Ticks at the levels themselves, and at 1, 2 and 5 times powers of ten on the other axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    axis.set(xscale="log", yscale="log")
    near = np.log(values[-1] / values[0]) / 6  # labels that stand nearer would overlap
    told = [values[0], *(v for v in values[1:-1] if near < np.log(v / values[0]) and near < np.log(values[-1] / v))]
    axis.set_xticks([*told, values[-1]], [number(value) for value in (*told, values[-1])], fontsize=7.5)
    axis.xaxis.set_minor_locator(NullLocator())
    low, high = axis.get_ylim()
    if 0 < low < high < 4 * low:  # room for two ticks at least
        axis.set_ylim(low / 1.6, high * 1.6)
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _draw_slopes(axis: Axes, run: Run) -> None:
    """All slopes with their 95 % intervals: squares for the valley, hollow for the fall."""
    for row, factor in enumerate(TITLES):
        for shift, ((_, where), colour) in enumerate(zip(places(run).items(), COLOURS, strict=False)):
            for what, face in (("valley", colour), ("fall", "none")):
                found = compare(slopes(*points_of(run, factor, what, *where)))
                if found.seeds >= FEWEST_SEEDS:
                    at = -row + 0.24 * (1 - shift) - (0.1 if what == "fall" else 0.0)
                    axis.plot([found.low, found.high], [at, at], color=colour, lw=1.2)
                    axis.plot(found.value, at, "s", ms=3.5, color=colour, markerfacecolor=face)
    for place, style in ((0.0, "-"), (-1.0, ":")):
        axis.axvline(place, color=CONTROL, lw=0.9, ls=style)
    axis.set_yticks([-row for row in range(len(TITLES))], ["rate", "words", "flatness", "embeddings", "queries"])
    axis.set(xlabel="slope, log by log (dotted: inverse)", ylabel="factor", title="Slopes, 95 % (hollow: fall)")
    axis.set_ylim(-len(TITLES) + 0.4, 0.6)


def _told(run: Run, factor: str, what: str) -> str:
    """The slopes of all layers, or that too few seeds have them."""
    found = [compare(slopes(*points_of(run, factor, what, *where))) for where in places(run).values()]
    return listing(f"{one.value:.2f}".replace("-", "−") if one.seeds >= FEWEST_SEEDS else "unknown" for one in found)


def _caption(run: Run) -> str:
    powers = [
        f"{TITLES[factor].lower()} {_told(run, factor, 'valley')} ({_told(run, factor, 'fall')})" for factor in TITLES
    ]
    return (
        f"To which power of each factor the step of the valley goes, in brackets that of the fall: {'; '.join(powers)} "
        f"({listing(places(run))}). −1 means that factor × step is constant, 0 that the factor does not matter. Dots: "
        f"valleys of single seeds; lines: geometric means; dashed: the fall by {FALLEN:g} nats. {run.config['seeds']} "
        f"seeds on {called(run.config['corpus'])}, {run.config['steps']:,} steps; where a dot is missing no valley was "
        "passed."
    )


def _alt(run: Run) -> str:
    parts = ["Six panels with logarithmic axes; the last has slopes."]
    for factor, label in [*AXES.items(), ("queries", QUERIES)]:
        told = [_course(place, *points_of(run, factor, "valley", *where)) for place, where in places(run).items()]
        parts.append(f"By {label}: {'; '.join(told)}.")
    return " ".join(parts)


def _course(place: str, values: np.ndarray, steps: np.ndarray) -> str:
    """Where the valley is at the first and the last level that has one."""
    means = [
        (number(value), mean) for value, row in zip(values, steps, strict=True) if (mean := mean_over_seeds(row)) > 0
    ]
    if not means:
        return f"{place} passes no valley"
    ends = [f"step {number(mean)} at {value}" for value, mean in (means[0], means[-1])]
    return f"{place} {' to '.join(dict.fromkeys(ends))}"


def draw_curves(run: Run) -> Drawing:
    """Entropy of one layer by rate, by embedding size and by class of the query: what valleys look like."""
    place, (variant, layer) = next(iter(places(run).items()))
    figure, axes = panels(3, width=3.4, height=2.8)
    steps, curves = steps_of(run, variant), curve(run, variant, "valid/entropy")[..., layer]
    told = []
    for axis, factor in zip(axes, ("rate", "embedding"), strict=False):
        values, levels = factor_levels(run, factor)
        for value, level, colour in zip(values, levels, depth_colours(len(values)), strict=True):
            mean = _mean_curve(curves[level], first_learned(run, variant)[level] >= 0)
            axis.plot(steps[1:], mean[1:], color=colour, label=f"{factor} {value:g}")
            told.append(f"{factor} {value:g} {fall_and_rise(steps, mean)}")
        axis.set_title(f"{TITLES[factor]}, {place}")
    classes = curve(run, variant, "valid/classes")[0][:, :, layer, 0]  # seeds, points, classes
    frequency = run.value("class frequency")
    for one, colour in zip(range(len(frequency)), depth_colours(len(frequency)), strict=True):
        mean = _mean_curve(classes[..., one], first_learned(run, variant)[0] >= 0)
        axes[2].plot(steps[1:], mean[1:], color=colour, label=f"one in {1 / frequency[one]:,.0f}")
        told.append(f"queries of frequency {number(frequency[one])} {fall_and_rise(steps, mean)}")
    axes[2].set_title(f"Queries by frequency, {place}")
    for axis in axes:
        axis.set(xscale="log", xlabel="training step", ylabel="attention entropy (nats)")
        label_lines(axis)
    return Drawing("curves-by-factor", _curves_caption(run, place), figure, f"Three panels. {'; '.join(told)}.")


def _mean_curve(rows: np.ndarray, kept: np.ndarray) -> np.ndarray:
    return np.asarray(rows[kept].mean(0) if kept.any() else np.full(rows.shape[1], np.nan))


def _curves_caption(run: Run, place: str) -> str:
    variant, layer = places(run)[place]
    by_rate, by_query = (_known(points_of(run, factor, "valley", variant, layer)[1]) for factor in ("rate", "queries"))
    return (
        f"From the lowest to the highest rate the valley is at step {by_rate}; from the most frequent to the rarest "
        f"queries, at step {by_query} ({place}). A dip in the first steps comes before the network knows more than "
        "how frequent words are, and is not counted. Mean attention entropy over seeds. Right: the base, queries in "
        "classes that have equally many occurrences."
    )


def _known(steps: np.ndarray) -> str:
    """Mean steps (levels, seeds) that are known."""
    known = [number(mean) for row in steps if np.isfinite(mean := mean_over_seeds(row))]
    return listing(known) if known else "unknown"
