"""The picture of Figure 8: entropy by layer for every rate, and rebound against loss over all runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.labels import label_lines
from joma.figures.reading import between, number
from joma.figures.style import INK, panels, rate_colours, step_axis
from joma.recipes.language import called
from joma.recipes.language_curves import best_loss, curve, learned_at, mean_over_seeds, steps_of
from joma.runs import Run
from joma.studies.language._figures import layers_told, plot_layers

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_sweep(run: Run, variant: str, back: np.ndarray) -> Drawing:
    """One panel per rate, and all runs; back: the share of its drop that came back in every run, (rates, seeds)."""
    rates, means = run.value(f"{variant}/rates"), _means(best_loss(run, variant))
    columns = 3 if len(rates) < 6 else 4
    highest = np.nanmax(curve(run, variant, "valid/entropy"))
    figure, axes = panels(columns, -(-(len(rates) + 1) // columns), width=2.7, height=2.3)
    for index, (axis, rate) in enumerate(zip(axes, rates, strict=False)):
        plot_layers(axis, run, variant, rate=index)
        axis.set_title(f"Rate {rate:g}: loss {means[index]:.3f}" + (" (best)" if index == _best(means) else ""))
        axis.set_ylim(0, 1.05 * highest)
        axis.set_ylabel("entropy (nats)")
        step_axis(axis)
        if index % columns == columns - 1:  # once per row; the last row ends with the panel of all runs
            label_lines(axis)
    _draw_runs(axes[len(rates)], run, variant, back)
    for axis in axes[len(rates) + 1 :]:
        axis.remove()
    return Drawing("learning-rate-sweep", _caption(run, variant, back), figure, _alt(run, variant, back))


def _draw_runs(axis: Axes, run: Run, variant: str, back: np.ndarray) -> None:
    """One square per run; rates have an order, which colours, sizes and the legend keep."""
    rates, losses, learned = run.value(f"{variant}/rates"), best_loss(run, variant), learned_at(run, variant)
    order, sizes = np.argsort(rates), np.linspace(3.5, 7.0, len(rates))
    for at, colour, size in zip(order, rate_colours(len(rates)), sizes, strict=True):
        face, name = colour if learned[at] else "none", f"rate {rates[at]:g}"
        axis.plot(100 * back[at], losses[at], "s", ms=size, color=colour, markerfacecolor=face, label=name)
    axis.axvline(0, color=INK, lw=0.7)
    axis.set(xlabel="share of the drop that comes back (%)", ylabel="best validation loss (nats)")
    axis.set_title("All runs: rebound and loss")
    hollow = None if learned.all() else "hollow: learned only\nword frequencies"
    legend = axis.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), reverse=True, title=hollow, handletextpad=0.2)
    legend.get_title().set_fontsize(7.5)


def _means(rows: np.ndarray) -> np.ndarray:
    return np.array([mean_over_seeds(row) for row in rows])


def _best(means: np.ndarray) -> int:
    return int(np.argmin(np.where(np.isfinite(means), means, np.inf)))


def _caption(run: Run, variant: str, back: np.ndarray) -> str:
    """The best rate and its rebound beside the rate with the largest rebound; then how it was measured."""
    rates, means, shares = run.value(f"{variant}/rates"), _means(best_loss(run, variant)), _means(back)
    best = _best(means)
    finding = (
        f"The lowest validation loss, {means[best]:.3f} nats, is reached at a rate of {rates[best]:g}, where "
        f"{number(shares[best], '%') if shares[best] > 0 else 'none'} of the drop in attention entropy comes back. "
    )
    return f"{finding}{_largest(rates, np.where(learned_at(run, variant), shares, np.nan), best)} " + (
        f"Lines: mean of {run.config['seeds']} seeds on held-out text of {called(run.config['corpus'])} at "
        f"{len(steps_of(run, variant))} points; bands: their range. Layer 1 is the one next to the input; its colour, "
        "like that of every layer, is the same in all panels. Last panel: one square per run, from small and indigo "
        "(the lowest rate) to large and lime (the highest); hollow squares learned only how frequent words are."
    )


def _largest(rates: np.ndarray, shares: np.ndarray, best: int) -> str:
    """At which rate most comes back; shares (rates,), NaN for rates that do not learn."""
    if not (shares > 0).any():
        return "No rate that learns shows a rebound."
    most = int(np.nanargmax(shares))
    if most == best:
        return "That is the largest share among the rates that learn."
    return (
        f"The largest share among the rates that learn, {number(shares[most], '%')}, is at a rate of {rates[most]:g}."
    )


def _alt(run: Run, variant: str, back: np.ndarray) -> str:
    rates, losses = run.value(f"{variant}/rates"), best_loss(run, variant)
    parts = [f"{len(rates) + 1} panels."]
    parts += [f"Rate {rate:g}: {layers_told(run, variant, rate=index)}." for index, rate in enumerate(rates)]
    dots = [
        f"at rate {rate:g} shares lie {between(row, '%')} and losses {between(loss, 'nats')}"
        for rate, row, loss in zip(rates, back, losses, strict=True)
    ]
    return " ".join([*parts, f"All runs: {'; '.join(dots)}."])
