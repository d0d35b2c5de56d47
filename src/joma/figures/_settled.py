"""A figure made ready to be saved: laid out once, and its powers of ten as plain text. Both only for speed.

Left to itself matplotlib draws a figure twice, the first time only to lay it out, and sets every tick label of a
logarithmic axis as a formula, which takes longer than all else on it.
"""

import re
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatterMathtext, LogFormatterSciNotation

_RAISED = str.maketrans("0123456789-−", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁻")
_FORMULA = re.compile(r"\$\\mathdefault\{(?P<factor>[-−\d.]*?)(\\times)?(?P<base>\d+)\^\{(?P<power>[-−\d]+)\}\}\$")


class PlainPowers(LogFormatterSciNotation):
    r"""The labels of a logarithmic axis in plain letters.

    >>> PlainPowers().plain(r"$\mathdefault{2\times10^{-3}}$"), PlainPowers().plain(r"$\mathdefault{10^{3}}$")
    ('2×10⁻³', '10³')
    """

    def __call__(self, x: float, pos: Any = None) -> str:
        return self.plain(super().__call__(x, pos))

    def plain(self, label: str) -> str:
        """The label without its formula, where it is a power."""
        found = _FORMULA.fullmatch(label)
        if not found:
            return label
        factor = f"{found['factor']}×" if found[2] else found["factor"]
        return f"{factor}{found['base']}{found['power'].translate(_RAISED)}"


def settle(figure: Figure) -> None:
    """Lay the figure out for good. Nothing may be added to it afterwards.

    >>> figure = Figure(layout="constrained")
    >>> _ = figure.subplots()
    >>> settle(figure)
    >>> figure.get_layout_engine() is None
    True
    """
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        for formatter, use in (
            (axis.get_major_formatter(), axis.set_major_formatter),
            (axis.get_minor_formatter(), axis.set_minor_formatter),
        ):
            if isinstance(formatter, LogFormatterMathtext):
                use(PlainPowers(labelOnlyBase=formatter.labelOnlyBase, minor_thresholds=formatter.minor_thresholds))
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        with rc_context({"figure.constrained_layout.use": False, "figure.autolayout": False}):
            figure.set_layout_engine(None)  # "none" would leave a placeholder, for which matplotlib draws twice
