"""A mean with its band, and a bound to compare with: what many panels draw."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from joma.figures.style import INK
from joma.figures.types import Axes
from joma.measure.intervals import Comparison


def mean_and_band(axis: Axes, x: Any, rows: Any, *, over: int = -1, shade: float = 0.2, **style: Any) -> None:
    """The mean of `rows` over its axis `over` as a line, and a band from the smallest to the largest.

    `shade` says how opaque the band is; less where many lie over each other. `style` is that of the line: color,
    label, ls.

    >>> from joma.figures.style import BLUE, house_style, panels
    >>> with house_style():
    ...     _, (axis,) = panels()
    ...     mean_and_band(axis, [0, 1], np.array([[1.0, 3.0], [2.0, 4.0]]), color=BLUE, label="two seeds")
    >>> axis.get_lines()[0].get_ydata().tolist()
    [2.0, 3.0]
    """
    rows = np.asarray(rows, dtype=float)
    (line,) = axis.plot(x, rows.mean(over), **style)
    axis.fill_between(x, rows.min(over), rows.max(over), color=line.get_color(), alpha=shade, lw=0)


def share_errors(found: Sequence[Comparison]) -> Any:
    """How far the intervals of shares or probabilities reach below and above their means, (2, n), cut at 0 and 1.

    The interval of a mean is symmetric, so it may reach where no share can be.

    >>> from joma.measure.intervals import compare
    >>> share_errors([compare([0.0, 0.1], 0.0)]).round(2).tolist()
    [[0.05], [0.95]]
    """
    means = np.array([one.value for one in found])
    low, high = (np.clip([getattr(one, end) for one in found], 0.0, 1.0) for end in ("low", "high"))
    return np.stack([means - low, high - means]).clip(min=0.0)


def bound(axis: Axes, value: float, label: str = "tolerance") -> None:
    """A dotted line in the page's colour at a bound, named by `label_lines` like every line.

    >>> from joma.figures.style import house_style, panels
    >>> with house_style():
    ...     _, (axis,) = panels()
    ...     bound(axis, 1e-12)
    >>> axis.get_lines()[0].get_label()
    'tolerance'
    """
    axis.axhline(value, ls=":", lw=1.0, color=INK, label=label)
