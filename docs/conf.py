"""Sphinx configuration: furo, MyST with LaTeX maths, API pages from the docstrings."""

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
