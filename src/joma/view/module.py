"""The module that draws: one text of JavaScript, put together from small files. Nothing has to be built.

`render({model, el})` is its only export, the contract of anywidget. uPlot stands before our own files; it comes with
its licence, and its checksum is in static/SHA256SUMS.
"""

from functools import cache
from importlib.resources import files

UPLOT = "uPlot.iife.min.js"
PARTS = (
    "numbers.js", "series.js", "axes.js", "elements.js", "colours.js", "data.js", "hosts.js", "address.js",
    "picture.js", "chart.js", "runs.js", "overview.js", "curves.js", "heads.js", "split.js", "claims.js", "view.js",
)  # fmt: skip
"""Our files, in the order in which they stand in the module."""


CHARTS = ("numbers.js", "axes.js", "elements.js", "colours.js", "picture.js", "chart.js", "panels.js")
"""Those of a page that only opens charts."""


@cache
def static(name: str) -> str:
    """A file of static/, as text."""
    return files("joma.view").joinpath("static", name).read_text(encoding="utf-8")


def module(*hosts: str) -> str:
    """The module, with hosts behind it that start it in a page."""
    return "\n".join(static(name) for name in (UPLOT, *PARTS, *hosts))


def style() -> str:
    """Its style: uPlot's and ours."""
    return static("uPlot.min.css") + "\n" + static("style.css")


def charts() -> str:
    """The module's charts alone, for a page that is no viewer: `jomaCharts.showPanels(title, panels, theme)`."""
    parts = "\n".join(static(name) for name in (UPLOT, *CHARTS))
    return f"const jomaCharts = (() => {{\n{parts}\nreturn {{ showPanels }};\n}})();\n"
