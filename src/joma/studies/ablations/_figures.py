"""Two figures for every ablation: curves of all variants, layer by layer, and their drops and rebounds side by side."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.style import BLUE, CONTROL, GREEN, ORANGE, PURPLE, depth_colours, panels, step_axis
from joma.recipes.language import called
from joma.recipes.language_curves import alive, curve, steps_of
from joma.runs import Run
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
    figure, axes = panels(layers + 1, len(groups), width=2.9, height=2.5)
    for row, (group, variants) in enumerate(groups.items()):
        here = axes[row * (layers + 1) : (row + 1) * (layers + 1)]
        for variant, colour in reversed(list(zip(variants, COLOURS, strict=False))):  # the first on top
            for axis, curves in zip(here, curves_of(run, variant, of), strict=False):
                band(axis, steps_of(run, variant), curves, colour, variant)
            losses = curve(run, variant, "valid/loss")[0][alive(run, variant)[0]]
            band(here[-1], steps_of(run, variant), losses, colour, variant)
        for layer, axis in enumerate(here[:-1]):
            axis.set_title(f"{group}, layer {layer + 1}" if group else f"Layer {layer + 1}")
            axis.sharey(here[0])
            step_axis(axis)
        here[0].set_ylabel(of.axis)
        _dress_losses(here[-1], run, variants)
    caption = (
        f"{of.name[0].upper()}{of.name[1:]} while training on {called(run.config['corpus'])}, and the loss on held-out "
        f"text: mean of {run.config['seeds']} seeds and their range. Dotted: the loss of predicting each word by its "
        "frequency. Grey: the network that the others are twins of."
    )
    return Drawing(name, caption, figure)


def _dress_losses(axis: Axes, run: Run, variants: Sequence[str]) -> None:
    frequencies = float(run.value(f"{variants[0]}/loss by frequency"))
    axis.axhline(frequencies, color=CONTROL, ls=":", lw=1)
    lowest = min(float(np.nanmin(curve(run, variant, "valid/loss"))) for variant in variants)
    if lowest < frequencies:  # the fall from ln(vocabulary) would flatten all that follows
        spare = 0.1 * (frequencies - lowest)
        axis.set_ylim(lowest - spare, frequencies + spare)
    axis.set_ylabel("validation loss")
    step_axis(axis)
    axis.set_title("Loss")
    lines, labels = axis.get_legend_handles_labels()
    axis.legend(lines[::-1], labels[::-1], fontsize=7)


def band(axis: Axes, steps: np.ndarray, curves: np.ndarray, colour: str, label: str) -> None:
    """Mean and range of (seeds, points); a variant whose seeds all diverged only has its name in the legend."""
    if not len(curves):
        axis.plot([], [], color=colour, label=f"{label} (diverged)")
        return
    axis.plot(steps, curves.mean(0), color=colour, label=label)
    axis.fill_between(steps, curves.min(0), curves.max(0), color=colour, alpha=0.18, lw=0)


def draw_summary(run: Run, variants: Sequence[str], name: str, of: Quantity = ENTROPY) -> Drawing:
    """Bars of drop and rebound by variant and layer, with 95 % intervals over seeds."""
    layers = int(run.config["layers"])
    figure, axes = panels(2, width=3.6, height=0.9 + 0.35 * len(variants))
    height = 0.8 / layers
    for axis, part in zip(axes, PARTS, strict=True):
        found = [list(by_layer(run, variant, part, of).values()) for variant in variants]
        for layer, colour in enumerate(depth_colours(layers)):
            bars = [one[layer] for one in found]
            axis.barh(
                [place + (layer - (layers - 1) / 2) * height for place in range(len(variants))],
                [bar.value for bar in bars],
                height,
                xerr=[bar.half_width if np.isfinite(bar.half_width) else 0.0 for bar in bars],
                color=colour,
                error_kw={"lw": 1, "capsize": 2},
                label=f"layer {layer + 1}",
            )
        axis.axvline(0, color=CONTROL, lw=0.7)
        axis.set_yticks(range(len(variants)), variants if part == "drop" else [""] * len(variants))
        axis.invert_yaxis()
        axis.set_title(part.capitalize())
        axis.set_xlabel(of.scale)
    if layers > 1:
        axes[1].legend(fontsize=7, loc="lower right", bbox_to_anchor=(1, 1), ncols=layers)
    caption = f"Drop and rebound of {of.name} by variant and layer: mean over seeds and its 95 % interval."
    return Drawing(name, caption, figure)
