"""How runs, scans and results show themselves: as a widget in a notebook, or as a figure of matplotlib.

Both are drawn several floors above what is shown. `joma/__init__.py`, which stands on all floors, says who draws: no
room imports upwards, and nobody who never asks loads them.
"""

from collections.abc import Callable
from typing import Any

drawers: dict[str, Callable[..., Any]] = {}
"""What draws a figure, and what makes a widget."""


class Shown:
    """What can be looked at."""

    def plot(self, *names: str) -> Any:
        """Draw it with matplotlib (the extra `viz`), as one figure; of a result, a list of the study's own figures."""
        return drawers["figure"](self, names)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        """What a notebook shows: a widget where anywidget is installed (the extra `notebook`), else words."""
        return drawers["widget"](self, include=include, exclude=exclude)
