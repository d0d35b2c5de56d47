"""Two figures for every ablation: curves of all variants, layer by layer, and their drops and rebounds side by side."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.labels import label_lines
from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, PURPLE, depth_colours, panels, step_axis
from joma.recipes.language import called
from joma.recipes.language_curves import alive, curve, steps_of
from joma.runs import Run
from joma.studies.ablations._captions import curves_alt, curves_caption, summary_alt, summary_caption
from joma.studies.ablations._twins import ENTROPY, Part, Quantity, by_layer, curves_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = (CONTROL, BLUE, ORANGE, GREEN, PURPLE)
"""The first variant is the one that the others are twins of."""
PARTS: tuple[Part, Part] = ("drop", "rebound")


def draws(variants: Collection[str], name: str) -> Callable[[Run], list[Drawing]]:
    """A study's `draw`: the curves of all variants, and their drops and rebounds."""

    def draw(run: Run) -> list[Drawing]:
        return [draw_curves(run, {"": list(variants)}, name), draw_summary(run, list(variants), f"{name}-summary")]

    return draw


def draw_curves(run: Run, groups: Mapping[str, Sequence[str]], name: str, of: Quantity = ENTROPY) -> Drawing:
    """One row per group of variants that read the same text, named where there are several: layers, then the loss."""
    layers = int(run.config["layers"])
    figure, axes = panels(layers + 1, len(groups), width=2.6 + 1.2 / (layers + 1), height=2.5)
    for row, (group, variants) in enumerate(groups.items()):
        here = axes[row * (layers + 1) : (row + 1) * (layers + 1)]
        for variant, colour in reversed(list(zip(variants, COLOURS, strict=False))):  # the first on top
            for axis, curves in zip(here, curves_of(run, variant, of), strict=False):
                band(axis, steps_of(run, variant), curves, colour, variant)
            losses = curve(run, variant, "valid/loss")[0][alive(run, variant)[0]]
            band(here[-1], steps_of(run, variant), losses, colour, variant)
        for layer, axis in enumerate(here[:-1]):
            axis.set_title(f"{of.short}, layer {layer + 1}" + (f" ({group})" if group else ""))
            axis.sharey(here[0])
            axis.set_ylabel(of.axis)
            step_axis(axis)
        _dress_losses(here[-1], run, variants)
    every = [variant for variants in groups.values() for variant in variants]
    text = called(run.config["corpus"])
    return Drawing(name, curves_caption(run, every, of, text), figure, curves_alt(run, groups, of))


def _dress_losses(axis: Axes, run: Run, variants: Sequence[str]) -> None:
    frequencies = float(run.value(f"{variants[0]}/loss by frequency"))
    axis.axhline(frequencies, color=INK, ls=":", lw=1, label="word frequency\nalone")
    lowest = min(float(np.nanmin(curve(run, variant, "valid/loss"))) for variant in variants)
    if lowest < frequencies:  # the fall from ln(vocabulary) would flatten all that follows
        spare = 0.1 * (frequencies - lowest)
        axis.set_ylim(lowest - spare, frequencies + spare)
    axis.set_ylabel("validation loss (nats)")
    step_axis(axis)
    axis.set_title("Validation loss")
    label_lines(axis)


def band(axis: Axes, steps: np.ndarray, curves: np.ndarray, colour: str, label: str) -> None:
    """Mean and range of (seeds, points); a variant whose seeds all diverged has only its name beside the panel."""
    if not len(curves):
        axis.plot([], [], color=colour, label=f"{label} (diverged)")
        return
    axis.plot(steps, curves.mean(0), color=colour, label=label)
    axis.fill_between(steps, curves.min(0), curves.max(0), color=colour, alpha=0.18, lw=0)


def draw_summary(run: Run, variants: Sequence[str], name: str, of: Quantity = ENTROPY) -> Drawing:
    """Bars of drop and rebound by variant and layer, with 95 % intervals over seeds."""
    layers = int(run.config["layers"])
    figure, axes = panels(2, width=4.3, height=0.8 + (0.1 + 0.17 * layers) * len(variants))
    places = [[row * (layers + 0.6) + layer for row in range(len(variants))] for layer in range(layers)]
    for axis, part in zip(axes, PARTS, strict=True):
        found = [list(by_layer(run, variant, part, of).values()) for variant in variants]
        for layer, colour in enumerate(depth_colours(layers)):
            bars = [one[layer] for one in found]
            reach = [bar.half_width if np.isfinite(bar.half_width) else 0.0 for bar in bars]
            axis.barh(places[layer], [bar.value for bar in bars], 0.85, color=colour)
            axis.errorbar(
                [bar.value for bar in bars], places[layer], xerr=reach, fmt="none", ecolor=INK, lw=1, capsize=2
            )
        axis.axvline(0, color=INK, lw=0.7)
        axis.invert_yaxis()
        axis.set_title(f"{part.capitalize()} of {of.short.lower()}")
        axis.set_xlabel(f"{part} ({of.scale})")
    ticks = [place for row in zip(*places, strict=True) for place in row]
    names = [
        f"{variant},  layer {i + 1}" if i == 0 else f"layer {i + 1}" for variant in variants for i in range(layers)
    ]
    axes[0].set_yticks(ticks, names)
    axes[1].set_yticks(ticks, [""] * len(ticks))
    return Drawing(name, summary_caption(run, variants, of), figure, summary_alt(run, variants, of))
