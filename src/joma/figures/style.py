"""One look for all figures: sizes, colours, and SVG that takes the page's text colour in light and dark mode."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import Any

from joma.figures.types import Axes as Axes
from joma.figures.types import Figure as Figure

# Contrast of at least 3:1 on the report's light and dark page, and apart for the common kinds of colour blindness:
# both leave relative luminances from 0.15 to 0.265 to choose from.
BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#026ed0", "#bb7e0f", "#099e6e", "#d22e2c", "#a26ef8", "#757575"
SERIES = (BLUE, ORANGE, GREEN, RED, PURPLE, GREY)
PRINTED, CORRECTED, CONTROL = RED, BLUE, GREY
"""Colours that mean the same in every figure: the printed form, the corrected form, the control."""

INK = "#010203"
"""Stands for the page's text colour until `to_svg` replaces it."""

_DEPTH = ("#3463e2", "#af4ac5", "#d74396", "#ed4a49", "#ab880e")
_RATE = ("#6a67b0", "#05906a", "#6f9a00")

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
    **{f"{key}.color": INK for key in ("text", "xtick", "ytick")},
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "savefig.transparent": True,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}


@contextmanager
def house_style() -> Iterator[None]:
    """Everything drawn inside looks like the rest of the report, whatever a matplotlibrc says.

    matplotlib reads one in the working directory, and with `text.usetex` it would run LaTeX on what stands there.

    >>> import matplotlib
    >>> with house_style():
    ...     matplotlib.rcParams["axes.spines.top"]
    False
    """
    import matplotlib.style
    from cycler import cycler

    style: Any = {**_STYLE, "axes.prop_cycle": cycler(color=SERIES)}
    with matplotlib.style.context(["default", style]):
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
    """`count` colours from blue over red to ochre: layers, saliencies, things with an order that are no rates.

    Their luminance rises evenly and stays where lines can be seen on the light and on the dark page.

    >>> depth_colours(3)
    ['#3463e2', '#d74396', '#ab880e']
    """
    return [_between(_DEPTH, i / max(count - 1, 1)) for i in range(count)]


def rate_colours(count: int) -> Sequence[str]:
    """`count` colours from indigo over green to lime: learning rates from low to high, apart from all layers.

    >>> rate_colours(3)
    ['#6a67b0', '#05906a', '#6f9a00']
    """
    return [_between(_RATE, i / max(count - 1, 1)) for i in range(count)]


def _between(stops: Sequence[str], place: float) -> str:
    """The colour at a place from 0 to 1. Mixing light keeps the luminance between those of the two neighbours."""
    place *= len(stops) - 1
    left = min(int(place), len(stops) - 2)
    pairs = zip(_light(stops[left]), _light(stops[left + 1]), strict=True)
    lights = (a + (place - left) * (b - a) for a, b in pairs)
    shades = (12.92 * light if light <= 0.0031308 else 1.055 * light ** (1 / 2.4) - 0.055 for light in lights)
    return "#" + "".join(f"{round(255 * shade):02x}" for shade in shades)


def _light(colour: str) -> list[float]:
    """Red, green and blue of '#rrggbb' as amounts of light from 0 to 1."""
    shades = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [shade / 12.92 if shade <= 0.04045 else ((shade + 0.055) / 1.055) ** 2.4 for shade in shades]


def contrast(colour: str, other: str) -> float:
    """The contrast ratio of two colours '#rrggbb' as web pages count it, from 1 to 21.

    >>> round(contrast("#000000", "#ffffff"), 1), contrast(BLUE, BLUE)
    (21.0, 1.0)
    """
    low, high = sorted(luminance(each) for each in (colour, other))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    """The relative luminance of '#rrggbb', from 0 to 1.

    >>> luminance("#000000"), round(luminance("#ffffff"), 6)
    (0.0, 1.0)
    """
    red, green, blue = _light(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


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
    from joma.figures._settled import settle

    buffer = StringIO()
    settle(figure)
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    for size in ("width", "height"):
        svg = re.sub(rf'(<svg[^>]*?) {size}="[^"]*"', r"\1", svg, count=1)
    label = title.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
