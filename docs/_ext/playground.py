"""The directive `playground`: one panel of `joma.report.playground`, with the script and the style that it needs.

Only pages that have a panel load them. The files are those of the report, served as they are (see `html_static_path`).
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from joma.report.playground import PANELS, SCRIPTS, STYLE, panel


class Playground(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        if self.arguments[0] not in PANELS:
            raise self.error(f"there is no panel {self.arguments[0]!r}, only {', '.join(PANELS)}")
        return [nodes.raw("", panel(self.arguments[0]), format="html")]


def add_files(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: nodes.document | None) -> None:
    if tree is not None and any("data-panel=" in node.astext() for node in tree.findall(nodes.raw)):
        app.add_css_file(STYLE)
        for name in SCRIPTS:
            app.add_js_file(name, loading_method="defer")


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("playground", Playground)
    app.connect("html-page-context", add_files)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
