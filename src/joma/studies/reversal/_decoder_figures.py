"""What both studies of decoders draw: probabilities over training, and bars by condition and depth."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from joma.claims.guards import mean_known
from joma.figures.bands import bound, share_errors
from joma.figures.labels import label_lines
from joma.figures.style import INK, depth_colours, panels
from joma.figures.types import Axes, Figure
from joma.measure.intervals import compare
from joma.studies.reversal._decoders import C, Record, layers_of

FLOOR = 1e-5  # probabilities below it are drawn at it
NOBODY = "Too few networks learned what they were taught to show anything."  # what a caption says then


def draw_over_training(scores: Record[C], shown: Mapping[str, C], lines: Mapping[str, tuple[str, str]]) -> Figure:
    """One panel per condition that is shown; of every kind of statement a line, with its colour and label."""
    columns = 2 if len(shown) in (2, 4) else min(3, len(shown))
    figure, axes = panels(columns, -(-len(shown) // columns), width=9.6 / columns, height=2.5)
    for index, (axis, (title, condition)) in enumerate(zip(axes, shown.items(), strict=False)):
        for kind, (colour, label) in lines.items():
            mean = [mean_known(seeds) for seeds in scores.over_training(condition, kind)]
            axis.plot(np.maximum(scores.steps, 1), np.maximum(mean, FLOOR), "o-", ms=2.5, color=colour, label=label)
        bound(axis, scores.uniform, "uniform guess")
        axis.set_xlim(0.8, 1.4 * float(np.max(scores.steps)))
        axis.set(xscale="log", yscale="log", ylim=(FLOOR / 2, 2), title=title, ylabel="probability of the answer")
        axis.set_xlabel("training step (0 is drawn at 1)")
        if index % columns == columns - 1 or index == len(shown) - 1:
            label_lines(axis)
    for axis in axes[len(shown) :]:
        axis.remove()
    return figure


def draw_bars(axis: Axes, names: Sequence[str], depths: Sequence[int], values: Callable[[str, int], Any]) -> None:
    """The mean of (seeds,) `values` of every name and depth, with its interval."""
    for place, (depth, colour) in enumerate(zip(depths, depth_colours(len(depths)), strict=True)):
        rows = np.arange(len(names)) + (place - (len(depths) - 1) / 2) * 0.36
        found = [compare(values(name, depth)) for name in names]
        means = [one.value for one in found]
        axis.barh(rows, means, height=0.7 / len(depths), color=colour, alpha=0.75, label=layers_of(depth))
        axis.errorbar(means, rows, xerr=share_errors(found), fmt="none", ecolor=INK, elinewidth=0.9, capsize=2)
    axis.set_yticks(range(len(names)), names)
    axis.set_xlim(0, 1.05)
    axis.invert_yaxis()
