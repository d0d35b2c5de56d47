"""The picture of Figure 8: entropy by layer for every rate, and rebound against loss over all runs."""

from __future__ import annotations

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.style import CONTROL, panels, step_axis
from joma.recipes.language import called
from joma.recipes.language_curves import alive, best_loss, curve, learned_at, mean_over_seeds, steps_of
from joma.runs import Run
from joma.studies.language._figures import plot_layers


def draw_sweep(run: Run, variant: str, back: np.ndarray) -> Drawing:
    """A panel a rate, and all runs; back: the part of its drop that every run made good, (rates, seeds)."""
    rates, losses = run.value(f"{variant}/rates"), best_loss(run, variant)
    means = np.array([mean_over_seeds(row) for row in losses])
    best = int(np.argmin(np.where(np.isfinite(means), means, np.inf)))
    columns = 3 if len(rates) < 6 else 4
    highest = np.nanmax(curve(run, variant, "valid/entropy"))
    figure, axes = panels(columns, -(-(len(rates) + 1) // columns), width=2.4, height=2.2)
    for index, (axis, rate) in enumerate(zip(axes, rates, strict=False)):
        plot_layers(axis, run, variant, rate=index)
        axis.set_title(f"{rate:g}: loss {means[index]:.3f}" + (" (best)" if index == best else ""))
        axis.set_ylim(0, 1.05 * highest)
        if index % columns == 0:
            axis.set_ylabel("entropy (nats)")
        step_axis(axis, "step")
    if alive(run, variant)[0].any():
        axes[0].legend(fontsize=7, loc="lower left")
    last = axes[len(rates)]
    dots = zip(back, losses, rates, _rate_colours(len(rates)), learned_at(run, variant), strict=True)
    for row, loss, rate, colour, learned in dots:
        last.scatter(row, loss, facecolor=colour if learned else "none", edgecolor=colour, s=16, label=f"{rate:g}")
    last.axvline(0, color=CONTROL, lw=0.7)
    last.set(xlabel="part that comes back", ylabel="best validation loss")
    last.set_title("All runs")
    last.legend(fontsize=6.5, handletextpad=0.1, loc="center left", bbox_to_anchor=(1.0, 0.5))
    for axis in axes[len(rates) + 1 :]:
        axis.remove()
    points = len(steps_of(run, variant))
    caption = (
        f"Attention entropy on held-out text of {called(run.config['corpus'])} under {len(rates)} rates, each with the "
        f"loss at its best: mean of {run.config['seeds']} seeds and their range, {points} points, layers dark to light "
        "from the input upwards. Last: the part of its drop that attention made good, against the loss, one dot a run; "
        "hollow where nothing was learned but the words' frequencies."
    )
    return Drawing("learning-rate-sweep", caption, figure)


def _rate_colours(count: int) -> list[str]:
    """From the lowest rate to the highest, and no colour of a layer."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps["plasma"](0.02 + 0.86 * i / max(count - 1, 1))) for i in range(count)]
