"""Names for parts of a tensor: one expert of a stack of them, the gate in a matrix that holds gate and up together.

A part is named as numpy would write it: `experts.down_proj[3]` is slice 3 along the first dimension,
`gate_up_proj[0:24]` its first 24 rows, `experts.gate_up_proj[3,:,0::2]` every other column of slice 3.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import Tensor

_PART = re.compile(r"(?P<tensor>.+)\[(?P<index>[0-9:]{1,40}(?:,[0-9:]{1,40}){0,2})\]", re.S)
_ENTRY = re.compile(r"(?P<at>\d{1,15})|(?P<start>\d{0,15}):(?P<stop>\d{0,15})(?::(?P<stride>[1-9]\d{0,14}))?")


@dataclass(frozen=True)
class Part:
    """A part of the tensor `base`: one index or slice per dimension, the first dimensions first."""

    base: str
    index: tuple[int | slice, ...]

    def shape(self, full: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the part of a tensor of the shape `full`; ValueError where it has no such part."""
        if len(self.index) > len(full):
            raise ValueError(f"has {len(full)} dimensions")
        kept: list[int] = []
        for entry, length in zip(self.index, full, strict=False):
            if isinstance(entry, int):
                if entry >= length:
                    raise ValueError(f"has only {length} slices")
            elif max(entry.start or 0, entry.stop or 0) > length:
                raise ValueError(f"has only {length} entries along a dimension")
            else:
                kept.append(len(range(*entry.indices(length))))
        return (*kept, *full[len(self.index) :])

    def rows(self, length: int) -> tuple[int, int]:
        """From where to where the part lies along the first dimension of `length`: all of it that must be read."""
        first = self.index[0]
        return (first, first + 1) if isinstance(first, int) else first.indices(length)[:2]

    def of_rows(self, rows: Tensor) -> Tensor:
        """The part, from the rows that `rows(length)` named and nothing else."""
        first = self.index[0]
        start: int | slice = 0 if isinstance(first, int) else slice(None, None, first.step)
        return rows[(start, *self.index[1:])]


def part_of(name: str) -> Part | None:
    """What a name of a part means; None for the name of a full tensor.

    >>> part = part_of("experts.gate_up_proj[3,:,0::2]")
    >>> part.base, part.shape((8, 16, 64)), part.rows(8)
    ('experts.gate_up_proj', (16, 32), (3, 4))
    >>> part_of("h.0.mlp.c_fc.weight") is None
    True
    """
    found = _PART.fullmatch(name)
    entries = [_ENTRY.fullmatch(text) for text in found["index"].split(",")] if found else [None]
    if found is None or None in entries:
        return None
    return Part(found["tensor"], tuple(_entry(entry) for entry in entries if entry is not None))


def tensor_of(name: str) -> str:
    """The tensor that a name speaks of, or of a part of which it speaks.

    >>> tensor_of("experts.down_proj[3]"), tensor_of("w")
    ('experts.down_proj', 'w')
    """
    part = part_of(name)
    return name if part is None else part.base


def _entry(found: re.Match[str]) -> int | slice:
    if found["at"] is not None:
        return int(found["at"])
    start, stop, stride = (int(text) if text else None for text in found.group("start", "stop", "stride"))
    return slice(start, stop, stride)
