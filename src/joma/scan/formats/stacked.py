"""Layers that lie in one tensor: `decoder.layers.mlp.linear_fc1.weight` of Megatron-Core has one more dimension.

Its distributed checkpoints keep a model whose layers are all alike in this way. Every layer comes out under the name
that it has in the model, `decoder.layers.3.mlp.linear_fc1.weight`; little more than that layer is read.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from torch import Tensor

from joma.host import limits
from joma.scan.errors import CheckpointError
from joma.scan.formats.tensor_file import Parts, Recipe, Rows, Stored

_STACK = re.compile(r"(?P<above>(?:\w+\.){0,4}?(?:decoder|encoder)\.layers)\.(?P<inside>[A-Za-z_][\w.]*)")
_MARK = re.compile(
    r"(self_attention\.linear_qkv|mlp\.(experts\.experts\.)?linear_fc1|self_attention\.linear_kv_up_proj)\.weight"
)
_NO_WEIGHTS = ("optimizer.", "chained_", "rng_state")


@dataclass(frozen=True)
class OneLayer:
    """One layer of a stack. parts: the stack. at: which layer."""

    parts: tuple[str]
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
        layer = parts.take(self.parts[0], (self.at, self.at + 1))[0]
        return layer if rows is None else layer[slice(*rows)]


def stacked_recipes(names: Collection[str], shape: Callable[[str], tuple[int, ...]]) -> dict[str, Recipe]:
    """The layers that lie in tensors of all layers, by the names that they have in the model.

    shape: the shape of a stored tensor, by name; it is asked of such tensors only.

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
