"""The pictures of the decoders: attention maps over training, and entropy beside the twin's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.bands import mean_and_band
from joma.figures.labels import label_lines
from joma.figures.reading import course, listing, number
from joma.figures.style import BLUE, CONTROL, INK, panels, step_axis
from joma.recipes.language import called
from joma.recipes.language_curves import layer_curves, steps_of
from joma.runs import Run
from joma.studies.scan_snap._decoders import SHUFFLED, TEXT, depths, layers_of, maps, moved

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_maps(run: Run) -> Drawing:
    """One row per depth, one column per step of the slide and one for the end; the first seed."""
    steps = [0, *run.config["maps_at"], run.config["steps"]]
    rows = depths(run.config)
    figure, axes = panels(len(steps), len(rows), width=2.0, height=2.1)
    grid = np.array(axes).reshape(len(rows), len(steps))
    for layers, row in zip(rows, grid, strict=True):
        for step, axis in zip(steps, row, strict=True):
            _map(axis, maps(run, layers, step)[TEXT, 0])
            axis.set_title(f"step {step:,}", fontsize=9)
            axis.set_xlabel("key" if layers == rows[-1] else " ", fontsize=8)
            axis.set_ylabel(f"{layers_of(layers)}: query" if step == 0 else " ", fontsize=8)
    top = {layers: [_largest(maps(run, layers, step)[TEXT, 0]) for step in steps] for layers in rows}
    ends = listing(f"{number(top[n][0], '%')} to {number(top[n][-1], '%')} with {layers_of(n)}" for n in rows)
    last = int(run.config["maps_at"][-1])
    late = listing(f"{_late(run, n, last, steps[-1])} with {layers_of(n)}" for n in rows)
    caption = (
        f"What a query gives to its favourite key goes from {ends} (first seed). In the last {last:,} of "
        f"{steps[-1]:,} steps, part of attention still moves to another key: {late} (mean over seeds). Attention of "
        f"the lowest layer on one held-out sequence of {called(run.config['corpus'])}, SGD at rate "
        f"{run.config['rate']:g}; darker is more attention, each map on its own scale of square roots. Rows: depth. "
        "Columns: training step."
    )
    seen = [f"{layers_of(n)}: the mean share of the favourite key is {_at_steps(top[n], steps)}." for n in rows]
    return Drawing("attention-maps", caption, figure, f"{len(rows) * len(steps)} triangular maps. " + " ".join(seen))


def _late(run: Run, layers: int, last: int, end: int) -> str:
    """Which share of attention moves in the last steps, a mean over seeds."""
    return number(float(np.nanmean(moved(run, layers, end - last, end)[TEXT])), "%")


def _at_steps(shares: list[float], steps: list[int]) -> str:
    return listing(f"{number(share, '%')} at step {step:,}" for share, step in zip(shares, steps, strict=True))


def _map(axis: Axes, attention: np.ndarray) -> None:
    past = np.tril(np.ones_like(attention)) > 0  # the rest is the future, which no query sees
    shade = np.where(past, np.sqrt(attention), np.nan)
    axis.imshow(shade, cmap="Greys", vmin=0, vmax=float(np.sqrt(attention[1:]).max()))
    axis.tick_params(labelsize=7)


def _largest(attention: np.ndarray) -> float:
    """What queries give to their favourite key, a mean over those that have a choice."""
    return float(attention[1:].max(-1).mean())


def draw_entropy(run: Run) -> Drawing:
    """Entropy of the lowest layer over training, one panel per depth, beside the twin's."""
    rows = depths(run.config)
    figure, axes = panels(len(rows), width=4.6)
    seen = []
    for layers, axis in zip(rows, axes, strict=True):
        for text, colour, name in ((TEXT, BLUE, "text"), (SHUFFLED, CONTROL, "random\norder")):
            which = layers_of(layers)
            steps, curves = steps_of(run, which), layer_curves(run, which, rate=text)[0]
            if len(curves):
                mean_and_band(axis, steps, curves, over=0, color=colour, label=name)
                seen.append(f"{layers_of(layers)}, {name.replace(chr(10), ' ')}: entropy "
                            f"{course(steps, curves.mean(0), 'nats')}.")  # fmt: skip
        axis.axvline(run.config["maps_at"][-1], color=INK, lw=0.7, ls=":")
        axis.set(ylabel="attention entropy (nats)", ylim=(0, None))
        axis.set_title(f"{layers_of(layers)}")
        step_axis(axis)
        label_lines(axis)
    return Drawing("entropy-over-training", _told(run), figure, f"{len(rows)} panels. " + " ".join(seen))


def _told(run: Run) -> str:
    step, told = int(run.config["maps_at"][-1]), []
    for layers in depths(run.config):
        name, shares = layers_of(layers), []
        for text in (TEXT, SHUFFLED):
            curve = layer_curves(run, name, rate=text)[0].mean(0)
            shares.append(1 - curve[steps_of(run, name) == step][0] / curve[0])
        told.append(f"{number(shares[0], '%')} with {layers_of(layers)} (twin: "
                    f"{number(shares[1], '%')})")  # fmt: skip
    return (
        f"At step {step:,} attention of the lowest layer has lost {listing(told)} of its untrained entropy. The twin "
        f"reads the same words in random order. Lines: mean of {run.config['seeds']} seeds on held-out text of "
        f"{called(run.config['corpus'])}; bands: their range. Dotted: step {step:,}, the slide's last map."
    )
