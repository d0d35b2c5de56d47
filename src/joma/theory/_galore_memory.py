"""Bytes of one weight matrix and its optimizer: Adam, GaLore, LoRA."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from joma.host.arguments import Number, positive, together
from joma.host.words import brief_repr
from joma.theory._guard import guarded


@brief_repr
class Bytes(NamedTuple):
    """Memory of one weight matrix and its optimizer, in bytes, each (...).

    >>> adam_bytes(512, 1376).total
    tensor(4227072., dtype=torch.float64)
    """

    weights: Tensor
    """The matrix itself, with adapters where there are any."""
    states: Tensor
    """Both moments of Adam."""
    projection: Tensor
    """GaLore's projector."""

    @property
    def total(self) -> Tensor:
        """All three."""
        return self.weights + self.states + self.projection


@guarded
def adam_bytes(m: Number, n: Number, *, itemsize: Number = 2.0) -> Bytes:
    """Adam on all of a matrix (m, n): m n numbers of weights and 2 m n of states, `itemsize` bytes each.

    >>> adam_bytes(512, 1376)
    Bytes(weights=1.409e+06, states=2.818e+06, projection=0)
    """
    rows, columns, size = together(m=positive(m, "m"), n=positive(n, "n"), itemsize=positive(itemsize, "itemsize"))
    weights = rows * columns * size
    return Bytes(weights, 2 * weights, torch.zeros_like(weights))


@guarded
def galore_bytes(m: Number, n: Number, rank: Number, *, itemsize: Number = 2.0) -> Bytes:
    """GaLore with Adam: short * long of weights, 2 long rank of states, short rank of the projector on the short side.

    >>> galore_bytes(512, 1376, rank=128)
    Bytes(weights=1.409e+06, states=7.045e+05, projection=1.311e+05)
    """
    short, long, r, size = _ranked(m, n, rank, itemsize)
    return Bytes(short * long * size, 2 * long * r * size, short * r * size)


@guarded
def lora_bytes(m: Number, n: Number, rank: Number, *, itemsize: Number = 2.0) -> Bytes:
    """LoRA with Adam: two adapters of (m + n) rank numbers beside the weight, and two moments of each.

    >>> lora_bytes(512, 1376, rank=128)
    Bytes(weights=1.892e+06, states=9.667e+05, projection=0)
    """
    short, long, r, size = _ranked(m, n, rank, itemsize)
    adapters = (short + long) * r * size
    return Bytes(short * long * size + adapters, 2 * adapters, torch.zeros_like(adapters))


def _ranked(m: Number, n: Number, rank: Number, itemsize: Number) -> tuple[Tensor, ...]:
    given = {"m": m, "n": n, "rank": rank, "itemsize": itemsize}
    rows, columns, r, size = together(**{name: positive(value, name) for name, value in given.items()})
    short, long = torch.minimum(rows, columns), torch.maximum(rows, columns)
    if (r > short).any():
        raise ValueError(f"rank must be at most the shorter of m and n, got {r[r > short].flatten()[0].item():g}")
    return short, long, r, size
