"""The figure of a scan: one panel per measure, one line per layer over the steps of training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from joma.claims.execute import Picture
from joma.claims.words import show
from joma.figures.style import depth_colours, house_style, panels, step_axis, to_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from joma.report.scans import ScanCurve

_COLUMNS = 3
_UNITS = {"stable_rank": "stable rank", "spectral_norm": "spectral norm", "entropy": "attention entropy (nats)"}


def scan_picture(source: str, curves: Sequence[ScanCurve]) -> Picture:
    """Draw the curves of a scan."""
    columns = min(len(curves), _COLUMNS)
    rows = -(-len(curves) // columns)
    with house_style():
        figure, axes = panels(columns, rows, width=max(3.4, 5.0 / columns), height=2.6)
        for axis, curve in zip(axes, curves, strict=False):
            _panel(axis, curve)
        for axis in axes[len(curves) :]:
            axis.set_axis_off()
        alt = " ".join(["One panel per measure.", *(_seen(curve) for curve in curves)])
        svg = to_svg(figure, title=alt)
    return Picture("curves", f"Checkpoints of {source}, one line per layer, from the first to the last.", svg, alt)


def title(name: str) -> str:
    """A series as people call it.

    >>> title("stable_rank/mlp"), title("entropy")
    ('stable rank, mlp', 'attention entropy (nats)')
    """
    measure, _, group = name.partition("/")
    words = _UNITS.get(measure, measure.replace("_", " "))
    return f"{words}, {group}" if group else words


def _panel(axis: Axes, curve: ScanCurve) -> None:
    """Only the first and the last layer are named: the colours between them are in order."""
    axis.set_title(title(curve.name))
    colours = depth_colours(len(curve.rows))
    for at, colour in enumerate(colours):
        axis.plot(curve.steps, curve.values[:, at], color=colour, marker="o", markersize=2.5)
    for at, up in _named(curve).items():
        end = (curve.steps[-1], curve.values[-1, at])
        axis.annotate(
            curve.rows[at], end, (4, up), textcoords="offset points", color=colours[at], va="center", fontsize=8
        )
    axis.margins(x=0.2 if len(curve.steps) > 1 else 1.0)
    if curve.steps[-1] > 1000 * max(min((step for step in curve.steps if step > 0), default=1), 1):
        axis.set_xscale("symlog", linthresh=1)
        axis.set_xlim(left=-0.4 if curve.steps[0] == 0 else None)
    else:
        step_axis(axis)
    axis.set_xlabel("training step")


def _named(curve: ScanCurve) -> dict[int, float]:
    """The first and the last row, and by how many points each name is moved up so that they do not touch."""
    last = len(curve.rows) - 1
    gap = float(curve.values[-1, last] - curve.values[-1, 0])
    close = last > 0 and abs(gap) < 0.1 * float(np.nanmax(curve.values) - np.nanmin(curve.values))
    up = (5.0 if gap >= 0 else -5.0) if close else 0.0
    return {0: -up, last: up} if last else {0: 0.0}


def _seen(curve: ScanCurve) -> str:
    """Where the first and the last layer begin and end."""
    ends = [_ends(curve, at) for at in dict.fromkeys((0, len(curve.rows) - 1))]
    return f"{title(curve.name)}: {'; '.join(ends)}."


def _ends(curve: ScanCurve, at: int) -> str:
    first, last = (show(float(value)) for value in np.asarray(curve.values)[[0, -1], at])
    return f"{curve.rows[at]} goes from {first} at step {curve.steps[0]:,} to {last} at step {curve.steps[-1]:,}"
