"""The artist behind `joma.figures.labels`: it finds its places when it is drawn, so later limits and sizes count."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import Bbox, IdentityTransform

from joma.figures.style import INK

LEADER, GAP = 14.0, 3.0  # points: from the axes to the text, and between the leader and the text
SPACE = 2.0  # points between neighbouring labels


class EndLabels(Artist):
    """Texts right of the axes, each tied to the end of its line by a leader in the line's own look."""

    def __init__(self, axis: Axes, lines: Sequence[Line2D], *, fontsize: float, note: str = "") -> None:
        super().__init__()
        self.lines = [*lines]
        look: Any = {"color": INK, "va": "center_baseline", "ha": "left", "linespacing": 1.2, "fontsize": fontsize}
        labels = [*(str(line.get_label()) for line in lines), *[note] * bool(note)]
        self.texts = [Text(0, 0, label, **look) for label in labels]
        self.leaders = [_leader(line) for line in lines]
        self.set_zorder(3)
        axis.add_artist(self)
        self.set_clip_on(False)
        figure = axis.get_figure(root=False)
        for child in (*self.texts, *self.leaders):
            child.set_figure(figure)  # type: ignore[arg-type]

    def draw(self, renderer: RendererBase) -> None:
        self._place(renderer)
        for child in (*self.leaders, *self.texts):
            child.draw(renderer)

    def get_window_extent(self, renderer: RendererBase | None = None) -> Bbox:
        self._place(renderer)
        return Bbox.union([text.get_window_extent(renderer) for text in self.texts])

    get_tightbbox = get_window_extent

    def _place(self, renderer: RendererBase | None) -> None:
        assert self.axes is not None
        box, point = self.axes.bbox, self.axes.get_figure(root=True).dpi / 72  # type: ignore[union-attr]
        sizes = [text.get_window_extent(renderer).height + SPACE * point for text in self.texts]
        ends = list(self._ends(box))
        for text, centre in zip(self.texts, spread(ends, sizes, box.y0, box.y1), strict=True):
            text.set_position((box.x1 + (LEADER + GAP) * point, centre))
        across = [box.x1 + share * point for share in (1.5, 0.45 * LEADER, 0.7 * LEADER, LEADER)]
        for leader, text, end in zip(self.leaders, self.texts, ends, strict=False):
            y = text.get_position()[1]
            leader.set_data(across, [y if end < box.y0 else end, y, y, y])  # no line to tie it to: a flat sample

    def _ends(self, box: Bbox) -> Iterator[float]:
        """How high each line leaves the panel, in pixels; without points, ever further down at the bottom."""
        bare = 0
        for line in [*self.lines, *[None] * (len(self.texts) - len(self.lines))]:
            end = None if line is None else _right_end(line, box.x1)
            bare += end is None
            yield box.y0 - bare if end is None else float(np.clip(end, box.y0, box.y1))


def _leader(line: Line2D) -> Line2D:
    """A line that looks like `line`; a marker, if it has one, in the middle of the flat part."""
    style: dict[str, Any] = {"marker": line.get_marker(), "markevery": [2], "markersize": min(line.get_markersize(), 4)}
    leader = Line2D([], [], color=line.get_color(), linestyle=line.get_linestyle(), alpha=line.get_alpha(), **style)
    leader.set_linewidth(max(line.get_linewidth(), 1.2))
    leader.set_markerfacecolor(line.get_markerfacecolor())
    leader.set_transform(IdentityTransform())
    return leader


def _right_end(line: Line2D, right: float) -> float | None:
    """The height in pixels of the line's last point on the panel; None without points."""
    points = np.asarray(line.get_transform().transform(line.get_xydata()), dtype=float)
    points = points[np.isfinite(points).all(1)] if len(points) else points
    if not len(points):
        return None
    inside = points[points[:, 0] <= right + 1]
    return float(inside[inside[:, 0].argmax(), 1] if len(inside) else points[points[:, 0].argmin(), 1])


def spread(wanted: Sequence[float], sizes: Sequence[float], low: float, high: float) -> list[float]:
    """Centres near `wanted` of boxes of these sizes that do not overlap and, if they can, stay from `low` to `high`.

    >>> spread([1.0, 1.0], [2.0, 2.0], 0.0, 10.0)
    [1.0, 3.0]
    >>> spread([5.0, 5.0, 9.9], [2.0, 2.0, 2.0], 0.0, 10.0)
    [4.0, 6.0, 9.0]
    """
    order = np.argsort(np.asarray(wanted), kind="stable")
    groups: list[tuple[float, float, list[int]]] = []  # bottom, top and the boxes inside, from below
    for index in order:
        half = sizes[index] / 2
        centre = min(max(wanted[index], low + half), high - half) if high - low > 2 * half else wanted[index]
        groups.append((centre - half, centre + half, [int(index)]))
        while len(groups) > 1 and groups[-1][0] < groups[-2][1]:
            groups[-2:] = [_merged(groups[-2][2] + groups[-1][2], wanted, sizes, low, high)]
    centres = [0.0] * len(sizes)
    for bottom, _, members in groups:
        for index in members:
            centres[index] = bottom + sizes[index] / 2
            bottom += sizes[index]
    return centres


def _merged(
    members: list[int], wanted: Sequence[float], sizes: Sequence[float], low: float, high: float
) -> tuple[float, float, list[int]]:
    """Boxes in a stack whose middle lies where they want to be on average."""
    total = sum(sizes[i] for i in members)
    before = np.cumsum([0.0] + [sizes[i] for i in members[:-1]])
    bottom = float(np.mean([wanted[i] - sizes[i] / 2 - b for i, b in zip(members, before, strict=True)]))
    bottom = max(min(bottom, high - total), low)
    return bottom, bottom + total, members
