"""The picture of Figure 8: entropy by layer for every rate, and rebound against loss over all runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.labels import label_lines
from joma.figures.reading import number
from joma.figures.style import INK, panels, rate_colours
from joma.recipes.language import called
from joma.recipes.language.curves import curve, mean_over_seeds, steps_of
from joma.runs import Run
from joma.studies.language._figures import plot_layers
from joma.studies.language.fig8.record import SWEEP, Rates, by_rate, comes_back

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_sweep(run: Run) -> Drawing:
    """One panel per rate, and all runs."""
    found, back = by_rate(run), comes_back(run)
    columns = 3 if len(found.rates) < 6 else 4
    highest = np.nanmax(curve(run, SWEEP, "valid/entropy"))
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
    """One square per run; rates have an order, which colours, sizes and the legend keep."""
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
    """The best rate and its rebound beside the rate with the largest rebound; then how it was measured."""
    rates, best, shares = found.rates, found.best, np.array([mean_over_seeds(row) for row in back])
    learned = np.where(found.learned, shares, np.nan)
    largest = "No rate that learns shows a rebound."
    if (learned > 0).any():
        most = int(np.nanargmax(learned))
        largest = (
            f"The largest share among the rates that learn, {number(shares[most], '%')}, is at a rate of "
            f"{rates[most]:g}."
            if most != best
            else "That is the largest share among the rates that learn."
        )
    return (
        f"The lowest validation loss, {found.means[best]:.3f} nats, is reached at a rate of {rates[best]:g}, where "
        f"{number(shares[best], '%') if shares[best] > 0 else 'none'} of the drop in attention entropy comes back. "
        f"{largest} Lines: mean of {run.config['seeds']} seeds on held-out text of {called(run.config['corpus'])} at "
        f"{len(steps_of(run, SWEEP))} points; bands: their range. Layer 1 is the one next to the input; its colour, "
        "like that of every layer, is the same in all panels. Last panel: one square per run, from small and indigo "
        "(the lowest rate) to large and lime (the highest); hollow squares learned only how frequent words are."
    )
