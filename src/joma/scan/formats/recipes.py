"""Weights that are stored in parts which say nothing alone: which parts make which tensor, and how."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from torch import Tensor

from joma.scan.formats.tensor_file import Stored

Rows = tuple[int, int]
"""From where to where along the first dimension."""


class Parts(Protocol):
    """What is stored."""

    def look(self, part: str) -> Stored:
        """Shape and number format of a part."""
        ...

    def take(self, part: str, rows: Rows | None = None) -> Tensor:
        """A part, or `rows` of its first dimension."""
        ...


class Recipe(Protocol):
    """One tensor made of stored parts."""

    @property
    def parts(self) -> tuple[str, ...]: ...

    def stored(self, parts: Parts) -> Stored: ...

    def read(self, parts: Parts, rows: Rows | None = None) -> Tensor:
        """The tensor, or `rows` of its first dimension."""
        ...

    def note(self, parts: Parts) -> str:
        """What was done with it, after "3 tensors were"; empty where it is stored plainly after all."""
        ...


def recipes(names: Collection[str], config: Mapping[str, Any], adapter: Mapping[str, Any] | None) -> dict[str, Recipe]:
    """The tensors that are made of several of `names`.

    config, adapter: what config.json and adapter_config.json say.

    >>> list(recipes(["up.qweight", "up.qzeros", "up.scales", "norm.weight"], {}, None))
    ['up.weight']
    """
    from joma.scan.formats.adapter import adapter_recipes
    from joma.scan.formats.quantised import quantised_recipes

    return {**quantised_recipes(names, config), **adapter_recipes(names, adapter)}
