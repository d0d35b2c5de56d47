"""Figures of checkpoints: curves by layer, heat maps of changes and of heads, and two models on one axis."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from joma.figures.bands import bound
from joma.figures.labels import label_lines
from joma.figures.style import BLUE, INK, ORANGE, SERIES, depth_colours, panels, step_axis
from joma.figures.types import Axes, Figure

COLUMNS = 3  #: Panels side by side.
_MAP = "cividis"  # the same order of lightness for all kinds of sight
_BOTH_WAYS = "coolwarm"  # blue below zero, red above
_ALL, _SOME = 8, 5  # so many lines are all named; of more, so many
_DASHES = ("-", "--", ":", "-.")
_TICKS = 6
_WIDE = 1000  # last step over first: beyond, steps are drawn on a logarithmic axis


@dataclass(frozen=True)
class Panel:
    """What one panel shows: a title, its rows (layers) with a name and a number each, and values (steps, rows)."""

    title: str
    steps: Sequence[int]
    rows: Sequence[str]
    values: np.ndarray
    axis: str = "training step"
    """What the steps count."""
    reference: tuple[str, float] | None = None
    """A level to compare with, and its name."""


def curves_by_layer(shown: Sequence[Panel]) -> Figure:
    """One panel each: a line per layer over the steps, coloured from the first layer (blue) to the last (ochre).

    Up to eight layers are all named, of more the first, the last and three between them.

    >>> panel = Panel("stable rank, mlp", [0, 100], ["layer 0", "layer 1"], np.array([[4.0, 5.0], [3.0, 6.0]]))
    >>> len(curves_by_layer([panel]).axes)
    1
    """
    figure, axes = _grid([panel.title for panel in shown])
    for axis, panel in zip(axes, shown, strict=True):
        count = len(panel.rows)
        named = range(count) if count <= _ALL else {round(at) for at in np.linspace(0, count - 1, _SOME)}
        for at, colour in enumerate(depth_colours(count)):
            label = fitting(panel.rows[at]) if at in named else None
            _line(axis, panel.steps, panel.values[:, at], color=colour, label=label)
        _refer(axis, panel.reference)
        _steps(axis, panel)
        label_lines(axis)
    return figure


def _refer(axis: Axes, reference: tuple[str, float] | None) -> None:
    if reference is not None:
        bound(axis, reference[1], reference[0])


def changes_over_steps(shown: Sequence[Panel]) -> Figure:
    """One heat map of changes each, blue below zero and red above: checkpoints at equal distances, layers upwards.

    >>> panel = Panel("stable rank, mlp", [0, 100], ["layer 0", "layer 1"], np.array([[0.0, 0.0], [-1.0, 1.0]]))
    >>> len(changes_over_steps([panel]).axes)  # with its scale of colours
    2
    """
    figure, axes = _grid([panel.title for panel in shown])
    for axis, panel in zip(axes, shown, strict=True):
        most = float(np.nanmax(np.abs(panel.values), initial=0.0)) or 1.0
        image = _heat(axis, panel.values.T, colours=_BOTH_WAYS, vmin=-most, vmax=most)
        _numbered(axis, "x", [_short(step) for step in panel.steps], panel.axis)
        _numbered(axis, "y", [row.removeprefix("layer ") for row in panel.rows], "layer")
        bar = figure.colorbar(image, ax=axis, shrink=0.9, pad=0.03)
        bar.set_label(f"change since {panel.axis.split()[-1]} {_short(panel.steps[0])}")
    return figure


def tables_of_colour(
    shown: Sequence[tuple[str, np.ndarray]], *, rows: Sequence[str], columns: Sequence[str], across: str, unit: str
) -> Figure:
    """Heat maps with one scale of colours for all: layers upwards, heads or experts to the right.

    >>> figure = tables_of_colour([("step 0", np.eye(2))], rows="01", columns="01", across="head", unit="nats")
    >>> len(figure.axes)
    2
    """
    figure, axes = _grid([title for title, _ in shown])
    every = np.concatenate([values.ravel() for _, values in shown])
    low, high = float(np.nanmin(every)), float(np.nanmax(every))
    for axis, (_, values) in zip(axes, shown, strict=True):
        image = _heat(axis, values, vmin=low, vmax=high)
        _numbered(axis, "x", columns, across)
        _numbered(axis, "y", rows, "layer")
    bar = figure.colorbar(image, ax=axes, shrink=0.9, pad=0.02)
    bar.set_label(unit)
    return figure


def parts_over_steps(shown: Sequence[Panel], *, colours: Mapping[str, str], unit: str) -> Figure:
    """One panel each: a line per part, added up from the first step on, and their sum in the colour of the text.

    >>> panel = Panel("layer 0", [0, 100, 200], ["QK", "all"], np.array([[0.0, 0.0], [-1.0, -0.5], [-1.5, -0.5]]))
    >>> len(parts_over_steps([panel], colours={"QK": BLUE}, unit="nats").axes)
    1
    """
    figure, axes = _grid([panel.title for panel in shown], unit=unit)
    for axis, panel in zip(axes, shown, strict=True):
        axis.axhline(0.0, color=INK, lw=0.5)
        for at, name in enumerate(panel.rows):
            style = {"color": colours[name]} if name in colours else {"color": INK, "lw": 2.2}
            _line(axis, panel.steps, panel.values[:, at], **style)
        _steps(axis, panel)
    others = (name for panel in shown for name in panel.rows if name not in colours)
    _legend(figure, {**colours, **dict.fromkeys(others, INK)})
    return figure


def areas_over_steps(shown: Sequence[Panel], *, colours: Mapping[str, str], unit: str) -> Figure:
    """One panel each: parts stacked as areas over the steps, those below zero downwards, and their sum as a line.

    The last row of a panel is the sum, the others are parts. A step without numbers is a gap.

    >>> panel = Panel("layer 0", [0, 100], ["shared", "cross", "all"], np.array([[1.0, -0.5, 0.5], [2.0, 0.5, 2.5]]))
    >>> len(areas_over_steps([panel], colours={"shared": BLUE, "cross": ORANGE}, unit="nats²").axes)
    1
    """
    figure, axes = _grid([panel.title for panel in shown], unit=unit)
    for axis, panel in zip(axes, shown, strict=True):
        axis.axhline(0.0, color=INK, lw=0.5)
        for sign in (1, -1):
            floor = np.zeros(len(panel.steps))
            for at, name in enumerate(panel.rows[:-1]):
                top = floor + sign * np.maximum(sign * panel.values[:, at], 0.0)
                axis.fill_between(panel.steps, floor, top, color=colours[name], alpha=0.75, lw=0)
                floor = top
        _line(axis, panel.steps, panel.values[:, -1], color=INK, lw=1.6)
        _steps(axis, panel)
    _legend(figure, {**colours, shown[0].rows[-1]: INK})
    return figure


def stacked_parts(
    ways: Sequence[tuple[str, np.ndarray]], *, rows: Sequence[str], colours: Mapping[str, str], unit: str
) -> Figure:
    """One panel per way, (title, values (rows, parts)): a bar per row, what raises stacked upwards, the rest downwards.

    >>> colours = {"QK": BLUE, "MLP": ORANGE}
    >>> len(stacked_parts([("down", np.array([[-1.0, 0.5]]))], rows="0", colours=colours, unit="nats").axes)
    1
    """
    figure, axes = _grid([title for title, _ in ways], width=5.0 if len(ways) < 3 else 3.4, height=2.8)
    for axis, (_, values) in zip(axes, ways, strict=True):
        axis.axhline(0.0, color=INK, lw=0.5)
        place = np.arange(len(rows))
        for sign in (1, -1):
            ends = np.zeros(len(rows))
            for part, colour in enumerate(colours.values()):
                height = np.maximum(sign * values[:, part], 0.0) * sign
                axis.bar(place, height, bottom=ends, color=colour, width=0.7)
                ends = ends + height
        axis.plot(place, values.sum(1), ls="", marker="D", color=INK, markersize=4)
        _numbered(axis, "x", rows, "layer")
    every = np.concatenate([values for _, values in ways])
    low, high = np.minimum(every, 0).sum(1).min(), np.maximum(every, 0).sum(1).max()
    for axis in axes:
        axis.set_ylim(1.08 * low - 1e-9, 1.08 * high + 1e-9)
    axes[0].set_ylabel(unit)
    _legend(figure, colours, sum_of="their sum")
    return figure


def _legend(figure: Figure, colours: Mapping[str, str], *, sum_of: str = "") -> None:
    from matplotlib.lines import Line2D

    marks = [Line2D([], [], color=colour, lw=3, label=name) for name, colour in colours.items()]
    marks += [Line2D([], [], color=INK, ls="", marker="D", markersize=4, label=sum_of)] if sum_of else []
    figure.legend(handles=marks, loc="outside lower center", ncols=min(4, len(marks)))


def by_layer(
    shown: Sequence[tuple[str, Sequence[tuple[str, Sequence[str], np.ndarray]]]],
    references: Mapping[str, tuple[str, float]] | None = None,
) -> Figure:
    """Of single checkpoints: one panel each, layers to the right, a line per (name, rows, values).

    references: by the title of a panel, a level to compare with, and its name.

    >>> len(by_layer([("stable rank", [("mlp", ["0", "1"], np.array([4.0, 5.0]))])]).axes)
    1
    """
    figure, axes = _grid([title for title, _ in shown], width=3.4 if len(shown) > 1 else 5.0, height=2.8)
    for axis, (title, lines) in zip(axes, shown, strict=True):
        for at, (name, _, values) in enumerate(lines):
            dashes = _DASHES[at // len(SERIES) % len(_DASHES)]  # where colours come again
            _line(axis, range(len(values)), values, label=fitting(name), ls=dashes)
        _refer(axis, (references or {}).get(title))
        _numbered(axis, "x", max((rows for _, rows, _ in lines), key=len), "layer")
        axis.margins(x=0.06)
        label_lines(axis)
    return figure


def compared(shown: Sequence[tuple[Panel, Panel]], names: tuple[str, str]) -> Figure:
    """Two models on one axis: the mean over layers of each as a thick line, its layers as thin ones.

    >>> panel = Panel("stable rank, mlp", [0, 100], ["layer 0"], np.array([[4.0], [3.0]]))
    >>> len(compared([(panel, panel)], ("a", "b")).axes)
    1
    """
    figure, axes = _grid([panel.title for panel, _ in shown])
    for axis, pair in zip(axes, shown, strict=True):
        for panel, name, colour in zip(pair, names, (BLUE, ORANGE), strict=True):
            for at in range(len(panel.rows)) if len(panel.rows) > 1 else ():
                _line(axis, panel.steps, panel.values[:, at], color=colour, lw=0.7, alpha=0.45, marker="")
            there = np.isfinite(panel.values).sum(axis=1)
            mean = np.where(there > 0, np.nansum(panel.values, axis=1) / np.maximum(there, 1), np.nan)
            _line(axis, panel.steps, mean, color=colour, label=fitting(name), lw=2.2)
        if pair[0].reference == pair[1].reference:  # read in other windows, there is no one level for both
            _refer(axis, pair[0].reference)
        _steps(axis, max(pair, key=lambda panel: len(panel.steps)))
        label_lines(axis)
    return figure


def bands_over_steps(shown: Sequence[tuple[Panel, np.ndarray, np.ndarray]]) -> Figure:
    """One panel each, (means over runs, low, high): its last row, a mean, thick, and the first and last layer thin.

    Where low and high are numbers they are the edges of a band.

    >>> panel = Panel("stable rank, mlp", [0, 100], ["layer 0", "mean"], np.array([[4.0, 4.0], [3.0, 3.0]]))
    >>> len(bands_over_steps([(panel, panel.values - 1, panel.values + 1)]).axes)
    1
    """
    figure, axes = _grid([panel.title for panel, _, _ in shown])
    for axis, (panel, low, high) in zip(axes, shown, strict=True):
        chosen = dict.fromkeys((0, len(panel.rows) - 2, len(panel.rows) - 1))
        for at, colour in zip(chosen, (BLUE, ORANGE, INK)[-len(chosen) :], strict=True):
            width = 2.2 if at == len(panel.rows) - 1 else 1.0
            axis.fill_between(panel.steps, low[:, at], high[:, at], color=colour, alpha=0.2, lw=0)
            _line(
                axis, panel.steps, panel.values[:, at], color=colour, lw=width, label=fitting(panel.rows[at]), marker=""
            )
        _steps(axis, panel)
        label_lines(axis)
    return figure


def fitting(name: str, most: int = 20) -> str:
    """A name that fits beside a panel: its middle gives way.

    >>> fitting("layer 3"), fitting("EleutherAI/pythia-70m-deduped")
    ('layer 3', 'EleutherA…0m-deduped')
    """
    half = (most - 1) // 2
    return name if len(name) <= most else f"{name[:half]}…{name[half + 1 - most :]}"


def _grid(
    titles: Sequence[str], *, unit: str = "", width: float = 3.4, height: float = 2.6
) -> tuple[Figure, list[Axes]]:
    across = min(len(titles), COLUMNS)
    figure, axes = panels(across, -(-len(titles) // across), width=max(width, 5.0 / across), height=height)
    for axis, title in zip(axes, titles, strict=False):
        axis.set_title(title)
    for spare in axes[len(titles) :]:
        spare.set_axis_off()
    for first in axes[::COLUMNS] if unit else ():
        first.set_ylabel(unit)
    return figure, axes[: len(titles)]


def _line(axis: Axes, x: Any, y: np.ndarray, **style: Any) -> None:
    axis.plot(x, y, **{"marker": "o" if len(y) <= 40 else "", "markersize": 2.5, **style})


def _steps(axis: Axes, panel: Panel) -> None:
    first = min((step for step in panel.steps if step > 0), default=1)
    if panel.steps[-1] > _WIDE * first:
        axis.set_xscale("symlog", linthresh=1)
        axis.set_xlim(left=-0.4 if panel.steps[0] == 0 else None)
        axis.set_xlabel(panel.axis)
    else:
        step_axis(axis, panel.axis)


def _heat(axis: Axes, values: np.ndarray, *, colours: str = _MAP, **scale: Any) -> Any:
    import matplotlib

    shades = matplotlib.colormaps[colours].with_extremes(bad="#888888")
    for side in axis.spines.values():
        side.set_visible(False)
    look: Any = {"cmap": shades, "aspect": "auto", "origin": "lower", "interpolation": "nearest"}
    return axis.imshow(np.ma.masked_invalid(values), **look, **scale)


def _numbered(axis: Axes, side: str, labels: Sequence[str], name: str) -> None:
    stride = -(-len(labels) // _TICKS)
    places = list(range(0, len(labels), stride))
    axis.set(**{f"{side}ticks": places, f"{side}ticklabels": [labels[at] for at in places], f"{side}label": name})
    axis.tick_params(color=INK)


def _short(step: int) -> str:
    return f"{step / 1000:g}k" if step >= 10_000 else str(step)
