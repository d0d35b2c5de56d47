"""Runs, scans and claims in an interactive page: one JavaScript module and its hosts.

A page with its data inside (`write_page`), a server on this machine (`joma.view.server`), a cell of a notebook
(`joma.view.notebook`). What they show comes from `Feed`.
"""

from joma.view.feed import Feed
from joma.view.page import write_page

__all__ = ["Feed", "write_page"]
