"""Curves of all layers, as Figures 6 and 8 draw them."""

from joma.figures.style import Axes, depth_colours, step_axis
from joma.recipes.language.curves import layer_curves, steps_of
from joma.runs import Run

WITH_RANGE = 5  # up to so many layers the range of seeds is drawn around every curve; beyond, one would hide the other


def plot_layers(axis: Axes, run: Run, variant: str, measure: str = "valid/entropy", rate: int = 0) -> None:
    """Mean curves of all layers, blue to ochre from the input upwards, and up to `WITH_RANGE` of them their range."""
    steps, curves = steps_of(run, variant), layer_curves(run, variant, measure, rate)
    if curves.shape[1]:
        few = len(curves) <= WITH_RANGE
        for layer, (curve, colour) in enumerate(zip(curves, depth_colours(len(curves)), strict=True), start=1):
            axis.plot(steps, curve.mean(0), color=colour, lw=None if few else 1.2, label=f"layer {layer}")
            if few:
                axis.fill_between(steps, curve.min(0), curve.max(0), color=colour, alpha=0.18, lw=0)
    else:
        axis.text(0.5, 0.5, "diverged", ha="center", transform=axis.transAxes)
    step_axis(axis)
