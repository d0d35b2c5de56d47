"""One look for all figures: sizes, colours, and SVG that takes the page's text colour in light and dark mode."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Readable on white and on near-black, and apart for the common kinds of colour blindness.
BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#3b7dd8", "#e08214", "#2a9d6f", "#d1495b", "#8a63c9", "#8a8f98"
SERIES = (BLUE, ORANGE, GREEN, RED, PURPLE, GREY)
PRINTED, CORRECTED, CONTROL = RED, BLUE, GREY
"""Colours that mean the same in every figure: the printed form, the corrected form, the control."""

_INK = "#010203"  # stands for the page's text colour until `to_svg` replaces it

_STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.labelsize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "figure.constrained_layout.use": True,
    "svg.fonttype": "none",
    "svg.hashsalt": "joma",
    **{f"{key}.color": _INK for key in ("text", "xtick", "ytick")},
    "axes.labelcolor": _INK,
    "axes.edgecolor": _INK,
    "savefig.transparent": True,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}


@contextmanager
def house_style() -> Iterator[None]:
    """Everything drawn inside looks like the rest of the report.

    >>> import matplotlib
    >>> with house_style():
    ...     matplotlib.rcParams["axes.spines.top"]
    False
    """
    import matplotlib
    from cycler import cycler

    style: Any = {**_STYLE, "axes.prop_cycle": cycler(color=SERIES)}
    with matplotlib.rc_context(style):
        yield


def panels(columns: int = 1, rows: int = 1, *, width: float = 3.4, height: float = 2.7) -> tuple[Figure, list[Axes]]:
    """A figure of `rows` x `columns` panels and its axes in reading order. Draw inside `house_style`.

    >>> with house_style():
    ...     figure, axes = panels(3, 2)
    >>> len(axes), figure.get_size_inches().round(1).tolist()
    (6, [10.2, 5.4])
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows))
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.flat)


def depth_colours(count: int) -> Sequence[str]:
    """`count` colours from dark to light of one scale: layers, saliencies, anything with an order.

    >>> depth_colours(3)
    ['#3e4989', '#1f9f88', '#bddf26']
    """
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    scale = colormaps["viridis"]
    return [to_hex(scale(0.22 + 0.68 * i / max(count - 1, 1))) for i in range(count)]


def step_axis(axis: Axes, label: str = "training step") -> None:
    """Name the horizontal axis and shorten its numbers: 40k for 40000. For when everything is drawn.

    >>> with house_style():
    ...     _, (axis,) = panels()
    ...     _ = axis.plot([0, 50_000], [0, 1])
    ...     step_axis(axis)
    >>> axis.xaxis.get_major_formatter()(40_000), axis.get_xlabel()
    ('40k', 'training step')
    """
    axis.set_xlabel(label)
    if axis.get_xlim()[1] >= 10_000:
        axis.xaxis.set_major_formatter(lambda step, _: f"{step / 1000:g}k" if step else "0")


def to_svg(figure: Figure, *, title: str) -> str:
    """The figure as an inline SVG that scales with the page, draws text in the page's colour and names itself.

    >>> with house_style():
    ...     svg = to_svg(panels()[0], title="v over time")
    >>> svg[:42]
    '<svg role="img" aria-label="v over time" x'
    """
    buffer = StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    label = title.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
