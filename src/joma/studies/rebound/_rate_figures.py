"""Two pictures: entropy against loss by optimizer and rate, and entropy where runs are alike in loss or in way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.labels import label_lines
from joma.figures.reading import course, listing, number
from joma.figures.style import BLUE, INK, ORANGE, depth_colours, panels
from joma.measure.intervals import compare
from joma.recipes.language import called
from joma.recipes.language_curves import alive, curve, mean_over_seeds
from joma.runs import Run
from joma.studies.rebound._rate_reading import OPTIMIZERS, Alike, Reading, at_equal, at_loss, reaching

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = dict(zip(OPTIMIZERS, (BLUE, ORANGE), strict=True))
ACROSS: dict[Alike, tuple[str, str]] = {
    "steps": ("steps taken to this loss", "equal speed"),
    "way": ("way of the first QK at this loss", "equal way"),
}
"""What runs are alike in: its axis, and its name in captions."""


def draw_against_loss(run: Run, levels: Sequence[float]) -> Drawing:
    """One row per optimizer: its first and its last layer."""
    layers = int(run.config["layers"])
    shown = [0, layers - 1] if layers > 1 else [0]
    figure, axes = panels(len(shown), len(OPTIMIZERS), width=4.3, height=2.6)
    places = [(optimizer, layer) for optimizer in OPTIMIZERS for layer in shown]
    for axis, (optimizer, layer) in zip(axes, places, strict=True):
        _curves(axis, run, optimizer, layer)
        for level in levels:
            axis.axvline(level, color=INK, lw=0.6, ls=":")
        axis.set(xlabel="validation loss (nats), training to the right", ylabel="attention entropy (nats)")
        axis.set_title(f"{optimizer} at several rates: layer {layer + 1}")
        axis.set_xlim(*reversed(_loss_range(run)))
    _one_height(axes)
    for axis in axes:
        label_lines(axis)
    return Drawing("entropy-against-loss", _loss_caption(run, levels), figure, _loss_alt(run))


def _curves(axis: Axes, run: Run, optimizer: str, layer: int) -> None:
    rates = run.value(f"{optimizer}/rates")
    for i, (rate, colour) in enumerate(zip(rates, depth_colours(len(rates)), strict=True)):
        kept = alive(run, optimizer)[i]
        if not kept.any():
            continue
        loss, entropy = _means(run, optimizer, i, layer)
        axis.plot(loss, entropy, color=colour, lw=1.3, marker=".", ms=3, label=f"{rate:g}")


def _means(run: Run, optimizer: str, rate: int, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """Loss and entropy at every measuring point after the start, means over the seeds that did not diverge."""
    kept = alive(run, optimizer)[rate]
    loss = curve(run, optimizer, "valid/loss")[rate][kept].mean(0)
    entropy = curve(run, optimizer, "valid/entropy")[rate][kept][:, :, layer].mean((0, -1))
    return loss[1:], entropy[1:]


def _loss_range(run: Run) -> tuple[float, float]:
    """From a little below the lowest loss to a little above that of the words' frequencies."""
    lowest = min(float(np.nanmin(curve(run, optimizer, "valid/loss"))) for optimizer in OPTIMIZERS)
    highest = float(run.value(f"{OPTIMIZERS[0]}/loss by frequency"))
    spare = 0.05 * max(highest - lowest, 0.1)
    return lowest - spare, max(highest, lowest + 0.1) + spare


def _loss_caption(run: Run, levels: Sequence[float]) -> str:
    level = min((one for one in levels if any(_told(run, name, one) for name in OPTIMIZERS)), default=None)
    finding = "No two rates reach a common loss level. "
    if level is not None:
        parts = [part for name in OPTIMIZERS if (part := _told(run, name, level))]
        finding = f"At a loss of {level:g} nats, the first layer's entropy is {listing(parts)}. "
    return (
        f"{finding}Lines: mean over {run.config['seeds']} seeds on {called(run.config['corpus'])}, one per rate; one "
        "dot per measuring point. Loss falls to the right. Dotted lines: the losses at which runs are compared."
    )


def _told(run: Run, optimizer: str, level: float) -> str:
    found = at_loss(run, optimizer, level)
    rates = reaching(found)
    if len(rates) < 2:
        return ""
    ends = [f"{number(mean_over_seeds(found.entropy[i, :, 0]), 'nats')} at {found.rates[i]:g}" for i in rates]
    return f"{listing([ends[0], ends[-1]])} with {optimizer}"


def _loss_alt(run: Run) -> str:
    parts = ["Panels of attention entropy against validation loss, one line per rate."]
    for optimizer in OPTIMIZERS:
        for layer in range(int(run.config["layers"])):
            ends = []
            for i, rate in enumerate(run.value(f"{optimizer}/rates")):
                if alive(run, optimizer)[i].any():
                    loss, entropy = _means(run, optimizer, i, layer)
                    ends.append(f"{rate:g} ends at {number(entropy[-1], 'nats')}, loss {number(loss[-1], 'nats')}")
            parts.append(f"{optimizer}, layer {layer + 1}: {'; '.join(ends) or 'all runs diverged'}.")
    return " ".join(parts)


def draw_alike(run: Run, levels: Sequence[float]) -> Drawing:
    """The first layer's entropy at each level by the steps taken there, and by the way gone: one dot per rate."""
    figure, axes = panels(len(levels), len(ACROSS), width=max(8.6 / len(levels), 3.0), height=2.6)
    readings = {level: [at_loss(run, name, level) for name in OPTIMIZERS] for level in levels}
    for row, (by, (label, _)) in enumerate(ACROSS.items()):
        for axis, (level, pair) in zip(axes[row * len(levels) :], readings.items(), strict=False):
            for optimizer, found in zip(OPTIMIZERS, pair, strict=True):
                _dots(axis, found, by, optimizer)
            axis.set(xscale="log", xlabel=label, ylabel="entropy of layer 1 (nats)")
            axis.set_title(f"At loss {level:g}")
            _plain_ticks(axis)
            label_lines(axis)
    _one_height(axes)
    return Drawing("entropy-where-alike", _alike_caption(run, levels), figure, _alike_alt(readings))


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


def _alike_caption(run: Run, levels: Sequence[float]) -> str:
    told = []
    for by, (_, words) in ACROSS.items():
        parts = []
        for level in levels:
            adam, sgd = (at_loss(run, name, level) for name in OPTIMIZERS)
            pairs = at_equal(adam, sgd, by=by)
            if len(pairs.rates):
                gap = compare(pairs.adam.mean(0), pairs.sgd.mean(0))
                width = f" ± {number(gap.half_width)}" if np.isfinite(gap.half_width) else ""
                parts.append(f"{number(gap.difference)}{width} nats at loss {level:g}")
        told.append(f"At equal loss and {words}, Adam minus SGD is {listing(parts)}. " if parts else "")
    finding = "".join(told) or "No rate of SGD is as fast as one of Adam, or goes as far. "
    return (
        f"{finding}Each dot is one rate, written beside it: mean over {run.config['seeds']} seeds with 95 % interval. "
        "If only speed (top) or way (bottom) mattered, both optimizers would lie on one line. If nothing mattered at "
        "equal loss, both lines would be flat and equal. Way: how far the first layer's queries and keys are from "
        "their start. Rates of SGD beyond all of Adam's are not in the differences."
    )


def _alike_alt(readings: dict[float, list[Reading]]) -> str:
    parts = [f"{2 * len(readings)} panels, each with a line for Adam and one for SGD, one dot per rate."]
    for level, pair in readings.items():
        lines = []
        for optimizer, found in zip(OPTIMIZERS, pair, strict=True):
            rates = reaching(found)
            values = [mean_over_seeds(found.entropy[i, :, 0]) for i in rates]
            told = course(found.rates[rates], values, "nats", at="rate") if rates else "has no dots"
            lines.append(
                f"{optimizer} {told} from its smallest to its largest rate" if rates else f"{optimizer} {told}"
            )
        parts.append(f"At loss {level:g}: {'; '.join(lines)}.")
    return " ".join(parts)
