"""Sphinx configuration: furo, MyST, formulas as MathML made here, API pages from the docstrings."""

import re
import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "joma"
author = "The joma developers"
release = metadata.version("joma")
OURS = ["mathml", "options", "playground", "printed", "schemas"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", *OURS]
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "joma"
html_math_renderer = "mathml"
html_static_path = ["_static", "../src/joma/report/template/playground"]
html_css_files = ["manual.css"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_type_aliases = {"Number": "Number"}
nitpicky = False


def _plain_text(app, what, name, obj, options, lines):
    """Read docstrings as the plain text they are: indented blocks are equations, |v| and a_- mean what they say."""
    written, literal, example = [], False, False
    for i, line in enumerate(lines):
        if not line.strip():
            example = False
        elif line.startswith(">>>"):
            example = True
        indented = line.startswith("    ") and not example
        if indented and not literal and (i == 0 or not lines[i - 1].strip()):
            written += ["::", ""]
            literal = True
        elif line.strip() and not indented:
            literal = False
        if not (literal or example):
            parts = re.split(r"(`[^`]*`)", line)
            line = "".join(part if k % 2 else _escaped(part) for k, part in enumerate(parts))
        written.append(line)
    lines[:] = written


def _escaped(text):
    return re.sub(r"(?<=\w)_(?!\w)", r"\\_", text.replace("|", r"\|").replace("*", r"\*"))


def _say_what_is_not_run(app, page, source):
    """Readers see what the tests read: why a block is not run."""
    source[0] = re.sub(r"<!-- not run: (.+?) -->", _shown, source[0])


def _shown(comment):
    return f'<p class="not-run">This block {comment[1] if comment[1] != "an outline" else "is an outline"}.</p>\n'


def setup(app):
    app.connect("autodoc-process-docstring", _plain_text)
    app.connect("source-read", _say_what_is_not_run)
