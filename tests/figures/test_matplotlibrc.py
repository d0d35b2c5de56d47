"""Figures are the same whatever the user's, or a stranger's, matplotlibrc says."""

import matplotlib
import pytest

from joma.figures.style import house_style, panels, to_svg

STRANGE = {
    "text.usetex": True,  # runs LaTeX
    "text.latex.preamble": r"\input{secret}",
    "lines.linewidth": 9.0,
    "axes.grid": True,
    "figure.dpi": 400.0,
    "svg.fonttype": "path",
    "savefig.bbox": "tight",
    "xtick.direction": "in",
}


def drawn():
    with house_style():
        figure, (axis,) = panels()
        axis.plot([0, 1, 2], [1, 2, 4], label="a line")
        axis.set_xlabel("time")
        axis.legend()
        return to_svg(figure, title="a figure")


@pytest.mark.parametrize("name", STRANGE)
def test_a_setting_changes_no_figure(name):
    usual = drawn()
    with matplotlib.rc_context({name: STRANGE[name]}):
        assert drawn() == usual
        assert matplotlib.rcParams[name] == STRANGE[name]
