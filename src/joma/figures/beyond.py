"""Points outside a panel are not left to be guessed: an arrow at the edge and a number say where they are."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from joma.figures.reading import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

MARK = "beyond the panel"  #: The group id of every arrow, for those who look for points that nothing marks.
_LINE = 8.5  # points from one number to the next


def mark_beyond(axis: Axes) -> None:
    """An arrow and the value, in the line's colour, for each point above or below the panel. For after the limits.

    >>> from joma.figures.style import house_style, panels
    >>> with house_style():
    ...     _, (axis,) = panels()
    ...     _ = axis.plot([1, 2], [0.5, 7.0])
    ...     _ = axis.set_ylim(0, 1)
    ...     mark_beyond(axis)
    >>> [text.get_text() for text in axis.texts]
    ['7']
    """
    written: Counter[tuple[float, bool]] = Counter()
    for line in list(axis.get_lines()):
        for x, y, above in points_beyond(axis, line):
            # The arrow touches the edge from inside; numbers of one place stand one below the other beside it.
            edge = sorted(axis.get_ylim())[above]
            (arrow,) = axis.plot([x], [edge], "^" if above else "v", color=line.get_color(), ms=5, clip_on=False)
            arrow.set_gid(MARK)
            down = (-1 if above else 1) * (3 + _LINE * written[x, above])
            look: Any = {"fontsize": 7, "color": line.get_color(), "va": "center"}
            axis.annotate(number(y), (x, edge), (5, down), textcoords="offset points", **look)
            written[x, above] += 1


def points_beyond(axis: Axes, line: Line2D) -> list[tuple[float, float, bool]]:
    """x and y of the line's points outside the panel's height, and whether they lie above it."""
    if line.get_transform() != axis.transData:  # drawn across the panel, as `axvline` is
        return []
    low, high = sorted(axis.get_ylim())
    points = np.asarray(line.get_xydata(), dtype=float)
    return [(float(x), float(y), bool(y > high)) for x, y in points if np.isfinite(y) and not low <= y <= high]
