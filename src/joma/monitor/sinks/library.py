"""Libraries that sinks write through. None is needed for joma: each is imported when its sink is made."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from joma.host.errors import BadInput


def library(module: str, name: str, package: str) -> Any:
    """The module, or one sentence that says how to get it.

    - module: what is imported
    - name: as people call it
    - package: what pip installs

    >>> library("json", "JSON", "json").__name__
    'json'
    """
    try:
        return import_module(module)
    except ImportError:
        raise BadInput(f"{name} is not installed: pip install {package}", argument="sinks") from None
