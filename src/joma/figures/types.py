"""The types of matplotlib that figures are made of. They can be named where matplotlib, an extra, is not installed."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
else:
    Axes = Axis = Figure = Any

__all__ = ["Axes", "Axis", "Figure"]
