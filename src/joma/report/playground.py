"""The playground: four panels in which the theory's own parameters move, for the report and for the manual.

They are plain JavaScript (template/playground). The report inlines these files, the manual serves the same ones, so
there is one copy and nothing to build. They stand here and not in the viewer, because they show closed forms and no
data: a page of them needs no run, no server and no uPlot.
"""

from html import escape
from importlib.resources import files

PANELS = {
    "winner": "Theorem 2: who wins, and when",
    "rebound": "Equation 6: entropy falls and comes back",
    "spread": "Entropy against spread: how many keys share attention",
    "hierarchy": "Theorem 5: who appears together",
}
"""Titles of the panels, by name."""
SCRIPTS = ("forms.js", "chart.js", "panels.js")
"""Files of the script, in the order in which they are read."""
STYLE = "playground.css"


def panel(name: str) -> str:
    """One panel as HTML: words and formulas, and the place in which the script draws."""
    return _read("panels", f"{name}.html")


def folded_panels() -> str:
    """All panels for the report: each sleeps until it is opened, as studies do."""
    return "\n".join(
        f'<details class="body" id="playground-{name}"><summary>{escape(title)}</summary>'
        f"<noscript>{panel(name)}</noscript></details>"
        for name, title in PANELS.items()
    )


def script() -> str:
    """What draws and computes, as one text."""
    return "\n".join(_read("playground", name) for name in SCRIPTS)


def style() -> str:
    """How panels look."""
    return _read("playground", STYLE)


def _read(*names: str) -> str:
    return files("joma.report").joinpath("template", *names).read_text(encoding="utf-8")
