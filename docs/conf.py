"""Sphinx configuration: furo, MyST with LaTeX maths, API pages from the docstrings."""

import re
from importlib import metadata

project = "joma"
author = "The joma developers"
release = metadata.version("joma")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.viewcode"]
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "joma"
html_static_path = ["_static"]
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


def setup(app):
    app.connect("autodoc-process-docstring", _plain_text)
