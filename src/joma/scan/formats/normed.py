"""Weights that torch keeps as a length and a direction (weight normalisation): W = g v / |v|, made whole again.

`torch.nn.utils.parametrizations.weight_norm` calls the two `X.parametrizations.weight.original0` and `original1`, the
older `torch.nn.utils.weight_norm` calls them `X.weight_g` and `X.weight_v`.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from joma.scan.errors import CheckpointError
from joma.scan.formats.tensor_file import Parts, Recipe, Rows, Stored

_LENGTH = re.compile(r"(?P<module>.+)\.(?:parametrizations\.(?P<new>\w+)\.original0|(?P<old>weight)_g)", re.S)


@dataclass(frozen=True)
class Normed:
    """One weight. parts: its lengths, and its direction."""

    parts: tuple[str, str]

    def stored(self, parts: Parts) -> Stored:
        lengths, direction = (parts.look(part) for part in self.parts)
        wide = all(one in (1, full) for one, full in zip(lengths.shape, direction.shape, strict=False))
        if len(lengths.shape) not in (0, len(direction.shape)) or not wide:
            what = f"{self.parts[0]} {lengths.shape} are no lengths of {self.parts[1]} {direction.shape}"
            raise CheckpointError(what, tensor=self.parts[1])
        return direction

    def note(self, parts: Parts) -> str:
        self.stored(parts)
        return "made from a length and a direction (weight normalisation)"

    def read(self, parts: Parts, rows: Rows | None = None) -> Tensor:
        self.stored(parts)
        lengths, direction = (parts.take(part) for part in self.parts)
        # A length stands for the entries along the dimensions in which there is only one of it.
        along = [dim for dim in range(direction.ndim) if lengths.ndim == 0 or lengths.shape[dim] == 1]
        norm: Tensor = (
            torch.linalg.vector_norm(direction.float(), dim=along, keepdim=True) if along else direction.abs()
        )
        weight = (direction.float() * (lengths.float() / norm)).to(direction.dtype)
        return weight if rows is None else weight[slice(*rows)]


def normed_recipes(names: Collection[str]) -> dict[str, Recipe]:
    """The weights among `names` that are kept in two parts.

    >>> normed_recipes(["up.parametrizations.weight.original0", "up.parametrizations.weight.original1"])
    {'up.weight': Normed(parts=('up.parametrizations.weight.original0', 'up.parametrizations.weight.original1'))}
    """
    there = names if isinstance(names, dict) else set(names)
    found: dict[str, Recipe] = {}
    for length in (name for name in names if name.endswith((".original0", ".weight_g"))):
        if (made := _LENGTH.fullmatch(length)) is None:
            continue
        direction = f"{length[:-1]}1" if made["new"] else f"{length[:-1]}v"
        weight = f"{made['module']}.{made['new'] or made['old']}"
        if direction in there and weight not in there:
            found[weight] = Normed((length, direction))
    return found
