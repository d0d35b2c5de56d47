"""Two figures for every ablation: curves of all variants, layer by layer, and their drops and rebounds side by side."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from joma.runs import Run
from joma.studies._ablation import ENTROPY, Quantity, curves_of, shape_of
from joma.studies._language_model_curves import Interval, alive, curve, over_seeds, steps_of
from joma.studies._language_models import called
from joma.studies.contract import Drawing
from joma.studies.drawing import BLUE, CONTROL, GREEN, ORANGE, PURPLE, depth_colours, panels, step_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = (CONTROL, BLUE, ORANGE, GREEN, PURPLE)
"""The first variant is the one that the others are twins of."""


def draws(variants: Collection[str], name: str) -> Callable[[Run], list[Drawing]]:
    """A study's `draw`: the curves of all variants, and their drops and rebounds."""

    def draw(run: Run) -> list[Drawing]:
        return [draw_curves(run, {"": list(variants)}, name), draw_summary(run, list(variants), f"{name}-summary")]

    return draw


def draw_curves(run: Run, groups: Mapping[str, Sequence[str]], name: str, of: Quantity = ENTROPY) -> Drawing:
    """One row a group of variants that read the same text, named where there are several: a panel a layer, the loss."""
    layers = int(run.config["layers"])
    figure, axes = panels(layers + 1, len(groups), width=2.9, height=2.5)
    for row, (group, variants) in enumerate(groups.items()):
        here = axes[row * (layers + 1) : (row + 1) * (layers + 1)]
        for variant, colour in reversed(list(zip(variants, COLOURS, strict=False))):  # the first on top
            for layer in range(layers):
                band(here[layer], steps_of(run, variant), curves_of(run, variant, of)[layer], colour, variant)
            losses = curve(run, variant, "valid/loss")[0][alive(run, variant)[0]]
            band(here[-1], steps_of(run, variant), losses, colour, variant)
        for layer, axis in enumerate(here[:-1]):
            axis.set_title(f"{group}, layer {layer + 1}" if group else f"Layer {layer + 1}")
            axis.sharey(here[0])
            step_axis(axis)
        here[0].set_ylabel(of.axis)
        frequencies = float(run.value(f"{variants[0]}/loss by frequency"))
        here[-1].axhline(frequencies, color=CONTROL, ls=":", lw=1)
        lowest = min(float(np.nanmin(curve(run, variant, "valid/loss"))) for variant in variants)
        if lowest < frequencies:  # the fall from ln(vocabulary) would flatten all that follows
            spare = 0.1 * (frequencies - lowest)
            here[-1].set_ylim(lowest - spare, frequencies + spare)
        here[-1].set_ylabel("validation loss")
        step_axis(here[-1])
        here[-1].set_title("Loss")
        lines, labels = here[-1].get_legend_handles_labels()
        here[-1].legend(lines[::-1], labels[::-1], fontsize=7)
    caption = (
        f"{of.name[0].upper()}{of.name[1:]} while training on {called(run.config['corpus'])}, and the loss on held-out "
        f"text: mean of {run.config['seeds']} seeds and their range; dotted: what the words' frequencies alone lose. "
        "Grey: the network that the others are twins of."
    )
    return Drawing(name, caption, figure)


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
    for axis, part in zip(axes, ("drop", "rebound"), strict=True):
        for layer, colour in enumerate(depth_colours(layers)):
            found = [_of_layer(run, variant, part, layer, of) for variant in variants]
            axis.barh(
                [place + (layer - (layers - 1) / 2) * height for place in range(len(variants))],
                [one.mean for one in found],
                height,
                xerr=[one.half_width if np.isfinite(one.half_width) else 0.0 for one in found],
                color=colour,
                error_kw={"lw": 1, "capsize": 2},
                label=f"layer {layer + 1}",
            )
        axis.axvline(0, color=CONTROL, lw=0.7)
        axis.set_yticks(range(len(variants)), variants if part == "drop" else [""] * len(variants))
        axis.invert_yaxis()
        axis.set_title(part.capitalize())
        axis.set_xlabel(of.unit.strip())
    if layers > 1:
        axes[1].legend(fontsize=7, loc="lower right", bbox_to_anchor=(1, 1), ncols=layers)
    caption = f"Drop and rebound of {of.name} by variant and layer: mean over seeds and its 95 % interval."
    return Drawing(name, caption, figure)


def _of_layer(run: Run, variant: str, part: str, layer: int, of: Quantity) -> Interval:
    found: np.ndarray = getattr(shape_of(run, variant, of), part)
    return over_seeds(found[:, layer])
