"""Libraries that sinks write through. None is needed for joma: each is imported when its sink is made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from joma.host.errors import BadInput
from joma.host.words import short


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


@contextmanager
def beginning(name: str) -> Iterator[None]:
    r"""Around what opens a folder, a file or a run: what goes wrong there is said in one sentence, before training.

    >>> with beginning("MLflow"):
    ...     raise OSError("there is no such\nserver")
    Traceback (most recent call last):
    joma.host.errors.BadInput: sinks has MLflow, which cannot begin: OSError: 'there is no such server'
    """
    try:
        yield
    except Exception as error:
        why = short(" ".join(str(error).split()), 200)
        raise BadInput(
            f"sinks has {name}, which cannot begin: {type(error).__name__}: {why}", argument="sinks"
        ) from error
