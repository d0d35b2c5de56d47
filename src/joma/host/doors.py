"""Names that a room gives at its door, loaded when one is first asked for: what needs no torch must not load it."""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any


def opener(room: str, names: Sequence[str], files: Sequence[str]) -> Callable[[str], Any]:
    """What a room takes as its `__getattr__`: looks for the names in its files, in their order.

    >>> opener("joma.host", ["counted"], ["words"])("counted")(2, "seed")
    '2 seeds'
    """

    def find(name: str) -> Any:
        if name in files:
            return import_module(f"{room}.{name}")
        for file in files if name in names else ():
            if hasattr(found := import_module(f"{room}.{file}"), name):
                setattr(sys.modules[room], name, getattr(found, name))
                return getattr(found, name)
        raise AttributeError(f"module {room!r} has no attribute {name!r}")

    return find
