"""Curves of all layers, as Figures 6 and 8 draw them, and what they do in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joma.figures.reading import between
from joma.figures.style import depth_colours
from joma.recipes.language_curves import fall_and_rise, layer_curves, steps_of
from joma.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WITH_RANGE = 5
"""Up to so many layers the range of seeds is drawn around every curve; beyond, one would hide the other."""


def plot_layers(axis: Axes, run: Run, variant: str, measure: str = "valid/entropy", rate: int = 0) -> None:
    """Mean curves of all layers, blue to ochre from the input upwards, and up to `WITH_RANGE` of them their range."""
    steps, curves = steps_of(run, variant), layer_curves(run, variant, measure, rate)
    if not curves.shape[1]:
        axis.text(0.5, 0.5, "diverged", ha="center", transform=axis.transAxes)
        return
    few = len(curves) <= WITH_RANGE
    for layer, (curve, colour) in enumerate(zip(curves, depth_colours(len(curves)), strict=True), start=1):
        axis.plot(steps, curve.mean(0), color=colour, lw=None if few else 1.2, label=f"layer {layer}")
        if few:
            axis.fill_between(steps, curve.min(0), curve.max(0), color=colour, alpha=0.18, lw=0)


def layers_told(run: Run, variant: str, measure: str = "valid/entropy", rate: int = 0, unit: str = "nats") -> str:
    """What `plot_layers` shows: every curve of up to two layers, else the bottom, the top and where all end."""
    steps, curves = steps_of(run, variant), layer_curves(run, variant, measure, rate)
    if not curves.shape[1]:
        return "all runs diverged"
    means = curves.mean(1)
    told = [f"layer {i + 1} {fall_and_rise(steps, means[i], unit)}" for i in sorted({0, len(means) - 1})]
    more = [f"the {len(means)} layers end {between(means[:, -1], unit)}"] if len(means) > 2 else []
    return "; ".join(told + more)
