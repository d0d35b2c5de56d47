"""The alternative text of a figure, read from the figure: which line goes where, how high which bar is, with numbers.

What is drawn has all that a listener needs: titles, axis labels, legends and data. So no study writes this text, and it
cannot say anything else than the picture does.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from joma.figures.reading import between, course, listing, number
from joma.figures.types import Axes, Axis, Figure

MOST = 12  #: Lines or groups of bars that are described in one panel; of the others only the number is said.
FEW = 8  #: Points that are named one by one.
_COUNTS = ("No panels", "One panel", "Two panels", "Three panels", "Four panels", "Five panels", "Six panels")


def describe(figure: Figure) -> str:
    """What is seen in a figure, panel by panel, for those who cannot see it.

    >>> from joma.figures.style import house_style, panels
    >>> with house_style():
    ...     figure, (axis,) = panels()
    ...     _ = axis.plot([0, 3000, 9000], [4.9, 1.6, 1.9], label="trained")
    ...     _ = axis.set(xlabel="training step", ylabel="entropy (nats)", title="Layer 1")
    >>> describe(figure)  # doctest: +ELLIPSIS
    'One panel. Layer 1, entropy (nats) by training step: “trained” falls from 4.9 to 1.6 nats at step 3,000, then ...'
    """
    names = _legend_names(figure)
    visible = (axis for axis in figure.axes if axis.get_visible() and axis.get_label() != "<colorbar>")
    shown = [axis for axis in visible if axis.lines or axis.patches or axis.collections or axis.images or axis.tables]
    count = _COUNTS[len(shown)] if len(shown) < len(_COUNTS) else f"{len(shown)} panels"
    return " ".join([f"{count}.", *(_panel(axis, place, names) for place, axis in enumerate(shown, 1))])


def _panel(axis: Axes, place: int, names: dict[Any, str]) -> str:
    title = _plain(axis.get_title()) or _plain(axis.get_title("left")) or f"Panel {place}"
    up, across = _plain(axis.get_ylabel()), _plain(axis.get_xlabel())
    measured = f"{up} by {across}" if up and across else up or across
    parts = [*_bars(axis, names), *_lines(axis, names), *_points(axis, names), *_maps(axis), *_tables(axis)]
    rest = [f"{len(parts) - MOST} more of this kind"] if len(parts) > MOST else []
    paths: list[Any] = [path for area in axis.collections for path in area.get_paths()]
    heights = [y for path in paths for y in path.vertices[:, 1].tolist()] if not any(parts) else []
    seen = "; ".join(parts[:MOST] + rest) or f"areas {between(heights, _unit(axis.yaxis))}"
    return f"{title}{', ' * bool(measured)}{measured}: {seen}."


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("$", "").replace("\\", "")).strip()


def _legend_names(figure: Figure) -> dict[Any, str]:
    """What legends call a look: by colour and dashes, and by colour alone."""
    from matplotlib.legend import Legend

    names: dict[Any, str] = {}
    for legend in [*figure.legends, *(axis.get_legend() for axis in figure.axes)]:
        if isinstance(legend, Legend):
            for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
                for look in _looks(handle):
                    names.setdefault(look, _plain(text.get_text()))
    for line in (line for axis in figure.axes for line in axis.lines):  # what one panel names, others may leave out
        if (own := str(line.get_label())) and not own.startswith("_"):
            names.setdefault(next(_looks(line)), _plain(own))
    return names


def _looks(artist: Any) -> Iterator[Any]:
    """How an artist can be recognised in a legend, the surest first."""
    from matplotlib.colors import to_hex

    read = getattr(artist, "get_color", None) or getattr(artist, "get_facecolor", None)
    colour = "none" if read is None else read()
    if not isinstance(colour, str):  # collections have a row of colours
        rows = np.asarray(colour, dtype=float).reshape(-1, np.shape(colour)[-1])
        colour = "none" if len(rows) == 0 else tuple(rows[0].tolist())
    yield to_hex(colour), artist.get_linestyle() if hasattr(artist, "get_marker") else ""
    yield to_hex(colour)


def _name(artist: Any, names: dict[Any, str]) -> str:
    own = _plain(str(artist.get_label() or ""))
    if own and not own.startswith("_"):
        return own
    return next((names[look] for look in _looks(artist) if look in names), "")


def _unit(axis: Axis) -> str:
    from matplotlib.ticker import PercentFormatter

    if isinstance(axis.get_major_formatter(), PercentFormatter):
        return "%"
    found = re.search(r"\((nats|bits|s|ms|MiB|GB|°)\)", axis.get_label_text())
    return found[1] if found else ""


def _ticks(axis: Axis) -> dict[float, str]:
    # A panel that leaves them out shares those of another panel with the same ticks.
    places, words = _tick_words(axis)
    if places and not any(words):
        figure: Any = axis.get_figure(root=True)
        others = [one.xaxis if axis is axis.axes.xaxis else one.yaxis for one in figure.axes]
        words = next((said for at, said in map(_tick_words, others) if at == places and any(said)), words)
    numbers = all(re.fullmatch(r"(mathdefault)?[\d.,+−k×·^{} -]*%?", word) for word in words)
    return {} if numbers else dict(zip(places, words, strict=True))


def _tick_words(axis: Axis) -> tuple[list[float], list[str]]:
    places = np.asarray(axis.get_majorticklocs(), dtype=float).tolist()
    return places, [_plain(str(word)) for word in axis.get_major_formatter().format_ticks(places)]


def _nearest(ticks: dict[float, str], place: float) -> str:
    return ticks[min(ticks, key=lambda tick: abs(tick - place))] if ticks else ""


def _bars(axis: Axes, names: dict[Any, str]) -> list[str]:
    from matplotlib.container import BarContainer

    groups: dict[str, list[str]] = {}
    for container in axis.containers:
        if not isinstance(container, BarContainer):
            continue
        lies = container.orientation == "horizontal"
        along, up = (axis.yaxis, axis.xaxis) if lies else (axis.xaxis, axis.yaxis)
        ticks, own = _ticks(along), str(container.get_label() or "")
        values = np.ravel(np.asarray(container.datavalues, dtype=float)).tolist()
        for patch, value in zip(container.patches, values, strict=True):
            centre = patch.get_y() + patch.get_height() / 2 if lies else patch.get_x() + patch.get_width() / 2
            name = _plain(own) if own and not own.startswith("_") else _name(patch, names)
            at = _nearest(ticks, centre) or number(float(centre))
            if np.isfinite(value):
                groups.setdefault(name, []).append(f"{at} {number(value, _unit(up))}")
    return [f"{f'“{name}”: ' if name else ''}{', '.join(values)}" for name, values in groups.items()]


def _lines(axis: Axes, names: dict[Any, str]) -> list[str]:
    from matplotlib.container import ErrorbarContainer

    # The caps of error bars are lines to the figure and none to the reader.
    caps = {cap for bars in axis.containers if isinstance(bars, ErrorbarContainer) for cap in bars.lines[1]}
    groups, parts = dict[str, list[tuple[Any, Any, Any]]](), []
    for line in axis.lines:
        x, y = (np.asarray(values, dtype=float) for values in line.get_data(orig=False))
        if line in caps or len(x) == 0 or not line.get_visible():
            continue
        name = _name(line, names)
        if level := _level(axis, line, x, y):
            parts += [f"“{name}” is {level}"] if name else []
        else:
            groups.setdefault(name, []).append((line, x, y))
    groups = {name: _one_row_of_points(axis, lines) for name, lines in groups.items()}
    nameless = groups.pop("", [])
    parts[:0] = [
        f"{len(lines)} lines “{name}” {_together(axis, lines)}"
        if len(lines) > 1
        else f"“{name}” {_course(axis, *lines[0])}"
        for name, lines in groups.items()
    ]
    if nameless and not groups and not axis.containers:
        together = f"{len(nameless)} lines {_together(axis, nameless)}"
        parts.append(together if len(nameless) > 1 else f"what is drawn {_course(axis, *nameless[0])}")
    return list(dict.fromkeys(parts))


def _one_row_of_points(axis: Axes, lines: list[tuple[Any, Any, Any]]) -> list[tuple[Any, Any, Any]]:
    """Where rows are categories, what was drawn row by row is one row of points."""
    # A flat line is the spread of a point or joins two; where it is all that a row has, its middle is the point.
    if not _ticks(axis.yaxis):
        return lines
    points = [line for line in lines if len(line[1]) == 1 or np.ptp(line[2]) > 0]
    points = points or [(line, np.nanmean(x, keepdims=True), y[:1]) for line, x, y in lines]
    if len(points) == 1 or any(len(x) > 1 for _, x, _ in points):
        return points
    return [(points[0][0], *(np.concatenate([point[i] for point in points]) for i in (1, 2)))]


def _together(axis: Axes, lines: list[tuple[Any, Any, Any]]) -> str:
    known = [y[np.isfinite(y)] for _, _, y in lines if np.isfinite(y).any()]
    starts, ends = (between([y[place] for y in known], _unit(axis.yaxis)) for place in (0, -1))
    return f"begin {starts} and end {ends}"


def _level(axis: Axes, line: Any, x: np.ndarray, y: np.ndarray) -> str:
    if len(x) != 2 or line.get_transform() == axis.transData:
        return ""
    if y[0] == y[1]:
        return f"a line at {number(y[0], _unit(axis.yaxis))}"
    return f"a line at {_at(axis)} {number(x[0])}" if x[0] == x[1] else "a straight line"


def _at(axis: Axes) -> str:
    label = re.sub(r"\s*\(.*?\)", "", _plain(axis.get_xlabel()))
    return "step" if label.endswith("step") else label or "x"


def _course(axis: Axes, line: Any, x: np.ndarray, y: np.ndarray) -> str:
    unit, across, up = _unit(axis.yaxis), _ticks(axis.xaxis), _ticks(axis.yaxis)
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if not len(x):
        return "has no values"
    if across and len(x) <= FEW:
        return f"is {listing(f'{number(b, unit)} at {_nearest(across, a)}' for a, b in zip(x, y, strict=True))}"
    if up:
        many = len(x) > FEW
        some = (int(x.argmin()), int(x.argmax())) if many else range(len(x))
        named = [f"{number(x[i], _unit(axis.xaxis))} at {_nearest(up, y[i])}" for i in some]
        return f"is {len(x)} points from {' to '.join(named)}" if many else f"is {listing(named)}"
    if len(x) > 1 and (np.diff(x) < 0).all():
        x, y = x[::-1], y[::-1]
    if len(x) == 1 or (np.diff(x) > 0).all():
        return course(x, y, unit, at=_at(axis), log=axis.get_yscale() == "log")
    if line.get_linestyle() in ("None", "none", " ", ""):
        return f"is {len(x)} points {between(y, unit)}"
    return f"goes from {number(x[0])}, {number(y[0], unit)} to {number(x[-1])}, {number(y[-1], unit)}"


def _points(axis: Axes, names: dict[Any, str]) -> list[str]:
    from matplotlib.collections import PathCollection

    parts = []
    for cloud in axis.collections:
        if isinstance(cloud, PathCollection):
            place = np.asarray(cloud.get_offsets(), dtype=float)
            across, up = (between(place[:, i], _unit(one)) for i, one in enumerate((axis.xaxis, axis.yaxis)))
            name = _name(cloud, names)
            count = f"{len(place)} point{'s' * (len(place) != 1)}"
            parts.append(f"{f'“{name}”, ' if name else ''}{count} {across} across and {up} up")
    return parts


def _maps(axis: Axes) -> list[str]:
    from matplotlib.collections import QuadMesh

    meshes: Sequence[Any] = [*axis.images, *(one for one in axis.collections if isinstance(one, QuadMesh))]
    parts = []
    for mesh in meshes:
        values: Any = np.ma.filled(np.ma.asarray(mesh.get_array(), dtype=float), np.nan)
        if values.ndim == 2 and np.isfinite(values).any():
            ends = []
            for pick in (np.nanargmin, np.nanargmax):
                row, column = divmod(int(pick(values)), values.shape[1])
                down = _nearest(_ticks(axis.yaxis), row) or f"row {row + 1}"
                across = _nearest(_ticks(axis.xaxis), column) or f"column {column + 1}"
                ends.append(f"{number(float(values[row, column]))} ({down}, {across})")
            parts.append(f"a map of {values.shape[0]} rows and {values.shape[1]} columns, from {' to '.join(ends)}")
    return parts


def _tables(axis: Axes) -> list[str]:
    rows: dict[int, list[str]] = {}
    for table in axis.tables:
        for (row, _), cell in sorted(table.get_celld().items()):
            rows.setdefault(row, []).append(_plain(cell.get_text().get_text()))
    return [", ".join(filter(None, cells)) for cells in rows.values()]
