"""Every public name of the library is in the reference."""

import importlib
import pkgutil
import re

import pytest
from page_blocks import text_of

WHOLE = ("theory", "data", "models", "measure", "figures", "claims")
"""Rooms whose modules are imported one by one: each of them is public. Of the others `__all__` is."""
ROOMS = (*WHOLE, "probes", "monitor", "cache", "optim", "training", "runs", "scan", "scale", "report", "view")


def documented(room, text=None):
    """The modules that the page of a room shows, with the names that it shows of each (None: all of them)."""
    text = text_of(f"docs/reference/{room}.md") if text is None else text
    found = re.findall(r"automodule:: (\S+)\n +:members:(.*)", text)
    return {module: [name.strip() for name in names.split(",")] if names.strip() else None for module, names in found}


def missing(room, text=None):
    shown = documented(room, text)
    package = importlib.import_module(f"joma.{room}")
    modules = [f"joma.{room}.{module.name}" for module in pkgutil.iter_modules(package.__path__)]
    public = [name for name in modules if not name.rpartition(".")[2].startswith("_")]
    lacking = [name for name in public if room in WHOLE and name not in shown]
    for name in getattr(package, "__all__", ()):
        home = getattr(getattr(package, name), "__module__", package.__name__)
        if name not in (shown.get(package.__name__) or ()) and home not in shown:
            lacking.append(f"joma.{room}.{name}")
    return lacking


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_is_in_the_reference(room):
    assert not missing(room)


def test_a_name_that_is_left_out_is_found():
    assert missing("scan", text_of("docs/reference/scan.md").replace("sweep, ", "")) == ["joma.scan.sweep"]
    assert missing("theory", text_of("docs/reference/theory.md").replace("joma.theory.linear\n", "")) == [
        "joma.theory.linear"
    ]
