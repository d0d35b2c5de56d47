"""Two pictures: entropy against loss by optimizer and rate, and entropy where runs are alike in loss or in way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.labels import label_lines
from joma.figures.reading import listing, number
from joma.figures.style import BLUE, INK, ORANGE, depth_colours, panels
from joma.measure.intervals import compare
from joma.recipes.language import called
from joma.recipes.language.curves import alive, curve, mean_over_seeds
from joma.runs import Run
from joma.studies.rebound.optimizer_or_rate.record import (
    OPTIMIZERS,
    Alike,
    Reading,
    at_equal,
    at_loss,
    levels,
    reaching,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = dict(zip(OPTIMIZERS, (BLUE, ORANGE), strict=True))
ACROSS: dict[Alike, tuple[str, str]] = {
    "steps": ("steps taken to this loss", "equal speed"),
    "way": ("way of the first QK at this loss", "equal way"),
}
"""What runs are alike in: its axis, and its name in captions."""


def draw_against_loss(run: Run) -> Drawing:
    """One row per optimizer: its first and its last layer."""
    layers = int(run.config["layers"])
    shown = [0, layers - 1] if layers > 1 else [0]
    figure, axes = panels(len(shown), len(OPTIMIZERS), width=4.3, height=2.6)
    # from a little below the lowest loss to a little above that of the words' frequencies
    lowest = min(float(np.nanmin(curve(run, optimizer, "valid/loss"))) for optimizer in OPTIMIZERS)
    highest = float(run.value(f"{OPTIMIZERS[0]}/loss by frequency"))
    spare = 0.05 * max(highest - lowest, 0.1)
    for axis, (optimizer, layer) in zip(axes, ((one, layer) for one in OPTIMIZERS for layer in shown), strict=True):
        rates, kept = run.value(f"{optimizer}/rates"), alive(run, optimizer)
        loss, entropy = (curve(run, optimizer, f"valid/{what}") for what in ("loss", "entropy"))
        for i, colour in enumerate(depth_colours(len(rates))):
            if kept[i].any():  # means over seeds at every measuring point after the start
                x, y = loss[i][kept[i]].mean(0), entropy[i][kept[i]][:, :, layer].mean((0, -1))
                axis.plot(x[1:], y[1:], color=colour, lw=1.3, marker=".", ms=3, label=f"{rates[i]:g}")
        for level in levels(run):
            axis.axvline(level, color=INK, lw=0.6, ls=":")
        axis.set(xlabel="validation loss (nats; training to the right)", ylabel="attention entropy (nats)")
        axis.set_title(f"{optimizer} at several rates: layer {layer + 1}")
        axis.set_xlim(max(highest, lowest + 0.1) + spare, lowest - spare)
    _one_height(axes)
    for axis in axes:
        label_lines(axis)
    return Drawing("entropy-against-loss", _loss_caption(run), figure)


def _loss_caption(run: Run) -> str:
    finding = "No two rates reach a common loss level. "
    for level in levels(run):  # the lowest that two rates reach is said
        parts = []
        for optimizer in OPTIMIZERS:
            found = at_loss(run, optimizer, level)
            if len(rates := reaching(found)) > 1:
                means = [number(mean_over_seeds(found.entropy[i, :, 0]), "nats") for i in (rates[0], rates[-1])]
                ends = zip(means, found.rates[[rates[0], rates[-1]]], strict=True)
                parts.append(f"{listing(f'{mean} at {rate:g}' for mean, rate in ends)} with {optimizer}")
        if parts:
            finding = f"At a loss of {level:g} nats, the first layer's entropy is {listing(parts)}. "
    return (
        f"{finding}Lines: mean over {run.config['seeds']} seeds on {called(run.config['corpus'])}, one per rate; one "
        "dot per measuring point. Loss falls to the right. Dotted lines: the losses at which runs are compared."
    )


def draw_alike(run: Run) -> Drawing:
    """The first layer's entropy at each level by the steps taken there, and by the way gone: one dot per rate."""
    readings = {level: [at_loss(run, name, level) for name in OPTIMIZERS] for level in levels(run)}
    figure, axes = panels(len(readings), len(ACROSS), width=max(8.6 / len(readings), 3.0), height=2.6)
    places = [(by, level) for by in ACROSS for level in readings]
    for axis, (by, level) in zip(axes, places, strict=True):
        for optimizer, found in zip(OPTIMIZERS, readings[level], strict=True):
            _dots(axis, found, by, optimizer)
        axis.set(xscale="log", xlabel=ACROSS[by][0], ylabel="entropy of layer 1 (nats)", title=f"At loss {level:g}")
        _plain_ticks(axis)
        label_lines(axis)
    _one_height(axes)
    return Drawing("entropy-where-alike", _alike_caption(run, readings), figure)


def _dots(axis: Axes, found: Reading, by: Alike, optimizer: str) -> None:
    rates = reaching(found)
    if not rates:
        axis.plot([], [], color=COLOURS[optimizer], label=f"{optimizer} (not there)")
        return
    x = np.array([np.exp(mean_over_seeds(np.log(getattr(found, by)[i]))) for i in rates])
    order = np.argsort(x)
    read = [compare(found.entropy[rates[i], :, 0]) for i in order]
    y, reach = ([getattr(one, part) for one in read] for part in ("value", "half_width"))
    axis.errorbar(x[order], y, yerr=reach, color=COLOURS[optimizer], marker="o", ms=4, lw=1.2, capsize=2)
    axis.plot(x[order], y, color=COLOURS[optimizer], lw=1.2, label=optimizer)
    for i, value in zip(order, y, strict=True):
        name, last = f"{found.rates[rates[i]]:g}", i == order[-1]
        above = optimizer != OPTIMIZERS[0]  # so that numbers of both optimizers do not meet
        side: Any = {"xytext": (-4 if last else 4, 4 if above else -10), "ha": "right" if last else "left"}
        axis.annotate(name, (x[i], value), textcoords="offset points", fontsize=7, **side)


def _one_height(axes: Sequence[Axes]) -> None:
    """All panels from the lowest to the highest of them."""
    ends = [axis.get_ylim() for axis in axes if axis.has_data()]
    for axis in axes:
        axis.set_ylim(min((low for low, _ in ends), default=0.0), max((high for _, high in ends), default=1.0))


def _plain_ticks(axis: Axes) -> None:
    """1, 2 and 5 of every power of ten, as plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.3g}" if value < 1000 else f"{value:,.0f}")
    axis.xaxis.set_minor_formatter(NullFormatter())


def _alike_caption(run: Run, readings: dict[float, list[Reading]]) -> str:
    finding = ""
    for by, (_, name) in ACROSS.items():
        parts = []
        for level, (adam, sgd) in readings.items():
            pairs = at_equal(adam, sgd, by=by)
            if len(pairs.rates):
                gap = compare(pairs.adam.mean(0), pairs.sgd.mean(0))
                width = f" ± {number(gap.half_width)}" if np.isfinite(gap.half_width) else ""
                parts.append(f"{number(gap.difference)}{width} nats at loss {level:g}")
        finding += f"At equal loss and {name}, Adam minus SGD is {listing(parts)}. " if parts else ""
    return (
        f"{finding or 'No rate of SGD is as fast as one of Adam, or goes as far. '}Each dot is one rate, written "
        f"beside it: mean over {run.config['seeds']} seeds with 95 % interval. "
        "If only speed (top) or way (bottom) mattered, both optimizers would lie on one line. If nothing mattered at "
        "equal loss, both lines would be flat and equal. Way: how far the first layer's queries and keys are from "
        "their start. Rates of SGD beyond all of Adam's are not in the differences."
    )
