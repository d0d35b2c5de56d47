"""How runs, scans and results show themselves: as a widget in a notebook, or as a figure of matplotlib.

Both are drawn several floors above what is shown. They are looked up by name when somebody asks for them, so that no
room imports upwards, and nobody who never asks loads them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Shown:
    """What can be looked at."""

    def plot(self, *names: str) -> Any:
        """Draw it with matplotlib (the extra `viz`), as one figure; of a result, a list of the study's own figures.

        names: series to draw; all that have several steps, at most six, unless some are named.
        """
        return import_module("joma.view.plotting").plotted(self, names)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        """What a notebook shows: a widget where anywidget is installed (the extra `notebook`), else words."""
        return import_module("joma.view.notebook").bundle(self, include=include, exclude=exclude)
