"""Labels at the ends of lines, in place of a legend: the eye need not travel."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from joma.figures.style import INK

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def label_lines(axis: Axes, *, fontsize: float = 8.0, note: str = "") -> Artist | None:
    """Write the label of each line beside its right end. For when everything is drawn.

    A leader in the line's own colour and dashes goes from the end of the line to its label. The text has the page's
    colour, and labels move apart so that they never overlap. Lines without points get their label at the bottom.
    Where the labels would need more height than the panel has, there is a small legend beside it instead.
    `note` is one more label without a line ("dashed: frozen attention"). Returns None where no line has a label.

    >>> from joma.figures.style import house_style, panels
    >>> with house_style():
    ...     figure, (axis,) = panels()
    ...     _ = axis.plot([0, 1], [3, 2], label="trained")
    ...     _ = axis.plot([0, 1], [2, 2.01], label="untrained")
    ...     labels = label_lines(axis)
    >>> [text.get_text() for text in labels.texts]
    ['trained', 'untrained']
    """
    from joma.figures._end_labels import SPACE, EndLabels

    named = {str(line.get_label()): line for line in reversed(axis.get_lines())}  # the first of each label
    lines = [line for label, line in reversed(named.items()) if label and not label.startswith("_")]
    if not lines and not note:
        return None
    rows = sum(label.count("\n") + 1 for label in [*(str(line.get_label()) for line in lines), *[note] * bool(note)])
    # About how high the panel will be, in points, with a title above and a label below it.
    figure, spec = axis.get_figure(root=True), axis.get_subplotspec()
    assert figure is not None
    share = axis.get_position().height if spec is None else len(spec.rowspan) / spec.get_gridspec().nrows
    if rows * (fontsize * 1.25 + SPACE) <= 72 * figure.get_size_inches()[1] * share - 52:
        return EndLabels(axis, lines, fontsize=fontsize, note=note)
    look: Any = {"handlelength": 1.0, "columnspacing": 0.8, "labelspacing": 0.2, "handletextpad": 0.4, "fontsize": 7}
    place: Any = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5), "borderaxespad": 0.0, "title_fontsize": 7}
    return axis.legend(handles=lines, title=note or None, ncols=ceil(len(lines) / 16), **look, **place)


def name_lines(figure: Figure) -> None:
    """`label_lines` for every panel of a figure that has no legend and no labels at lines yet.

    >>> from joma.figures.style import house_style, panels
    >>> with house_style():
    ...     figure, (axis,) = panels()
    ...     _ = axis.plot([0, 1], [3, 2], label="trained")
    ...     name_lines(figure)
    ...     name_lines(figure)
    >>> [text.get_text() for labels in axis.artists for text in labels.texts]
    ['trained']
    """
    from joma.figures._end_labels import EndLabels

    legends = [*figure.legends, *(axis.get_legend() for axis in figure.axes)]
    if not any(legends) and not any(isinstance(artist, EndLabels) for axis in figure.axes for artist in axis.artists):
        for axis in figure.axes:
            label_lines(axis)


def end_label(axis: Axes, text: str, **style: Any) -> None:
    """One more label with a sample of a line that is not drawn itself: what dashes mean, say.

    >>> from joma.figures.style import house_style, panels
    >>> with house_style():
    ...     _, (axis,) = panels()
    ...     end_label(axis, "untrained", ls="--")
    ...     [text.get_text() for text in label_lines(axis).texts]
    ['untrained']
    """
    axis.plot([], [], label=text, **{"color": INK, "lw": 1.2, **style})
