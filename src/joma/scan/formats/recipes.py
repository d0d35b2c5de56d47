"""Tensors that a file keeps in another form, under the names that they have in the model.

- Weights that torch keeps as a length and a direction (weight normalisation): W = g v / |v|, made whole again.
  `torch.nn.utils.parametrizations.weight_norm` calls the two `X.parametrizations.weight.original0` and `original1`, the
  older `torch.nn.utils.weight_norm` calls them `X.weight_g` and `X.weight_v`.
- Layers that lie in one tensor: `decoder.layers.mlp.linear_fc1.weight` of Megatron-Core has one more dimension. Its
  distributed checkpoints keep a model whose layers are all alike in this way. Every layer comes out under the name
  that it has in the model, `decoder.layers.3.mlp.linear_fc1.weight`; little more than that layer is read.
- Quantised weights, and the factors of an adapter: see `quantised` and `adapter`.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from joma.host import limits
from joma.scan.errors import CheckpointError
from joma.scan.formats.adapter import adapter_recipes
from joma.scan.formats.quantised import quantised_recipes
from joma.scan.formats.tensor_file import Parts, Recipe, Rows, Stored, cut

_LENGTH = re.compile(r"(?P<module>.+)\.(?:parametrizations\.(?P<new>\w+)\.original0|(?P<old>weight)_g)", re.S)

_STACK = re.compile(r"(?P<above>(?:\w+\.){0,4}?(?:decoder|encoder)\.layers)\.(?P<inside>[A-Za-z_][\w.]*)")
_MARK = re.compile(
    r"(self_attention\.linear_qkv|mlp\.(experts\.experts\.)?linear_fc1|self_attention\.linear_kv_up_proj)\.weight"
)
_NO_WEIGHTS = ("optimizer.", "chained_", "rng_state")


def recipes_of(
    names: Collection[str], shape: Callable[[str], tuple[int, ...]], config: Mapping[str, Any] | None,
    adapter: Mapping[str, Any] | None,
) -> dict[str, Recipe]:  # fmt: skip
    """How to read each tensor that is not stored plainly."""
    found = quantised_recipes(names, config or {}) | normed_recipes(names)
    return found | ({} if adapter is None else adapter_recipes(names, adapter)) | stacked_recipes(names, shape)


class Normed(Recipe):
    """One weight. parts: its lengths, and its direction."""

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

    def made(self, parts: Parts) -> Tensor:
        self.stored(parts)
        lengths, direction = (parts.take(part) for part in self.parts)
        # A length stands for the entries along the dimensions in which there is only one of it.
        along = [dim for dim in range(direction.ndim) if lengths.ndim == 0 or lengths.shape[dim] == 1]
        norm: Tensor = (
            torch.linalg.vector_norm(direction.float(), dim=along, keepdim=True) if along else direction.abs()
        )
        return (direction.float() * (lengths.float() / norm)).to(direction.dtype)


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


@dataclass(frozen=True)
class OneLayer(Recipe):
    """One layer of a stack. parts: the stack. at: which layer."""

    at: int

    def stored(self, parts: Parts) -> Stored:
        full = parts.look(self.parts[0])
        if not full.shape or self.at >= full.shape[0]:
            what = f"{self.parts[0]} {full.shape} has no layer {self.at}, and others of the checkpoint have"
            raise CheckpointError(what, tensor=self.parts[0])
        return Stored(full.shape[1:], full.dtype)

    def note(self, parts: Parts) -> str:
        return "read from tensors that hold all layers (Megatron-Core)"

    def read(self, parts: Parts, rows: Rows | None = None) -> Tensor:
        self.stored(parts)
        return cut(parts.take(self.parts[0], (self.at, self.at + 1))[0], rows)


def stacked_recipes(names: Collection[str], shape: Callable[[str], tuple[int, ...]]) -> dict[str, Recipe]:
    """The layers that lie in tensors of all layers, by the names that they have in the model.

    >>> shapes = {"decoder.layers.mlp.linear_fc1.weight": (2, 8, 4), "decoder.final_layernorm.weight": (4,)}
    >>> list(stacked_recipes(shapes, shapes.__getitem__))
    ['decoder.layers.0.mlp.linear_fc1.weight', 'decoder.layers.1.mlp.linear_fc1.weight']
    """
    stacks = {name: found for name in names if not name.startswith(_NO_WEIGHTS) and (found := _STACK.fullmatch(name))}
    marks = [name for name, found in stacks.items() if _MARK.fullmatch(found["inside"])]
    if not marks or any(len(shape(name)) < 3 for name in marks):
        return {}
    counts = {shape(name)[0] for name in marks}
    count = max(counts)
    if len(counts) > 1 or count > limits.LAYERS or count * len(stacks) > limits.TENSORS:
        raise CheckpointError(f"{marks[0]} {shape(marks[0])} does not hold all layers of one model", tensor=marks[0])
    return {
        f"{found['above']}.{at}.{found['inside'].replace('experts.experts.', 'experts.')}": OneLayer((name,), at)
        for name, found in stacks.items()
        if shape(name)[:1] == (count,)
        for at in range(count)
    }
