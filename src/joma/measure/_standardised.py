"""Columns with mean 0 and length 1, of numbers of any scale: what every correlation is made of."""

from typing import NamedTuple

import torch
from torch import Tensor


class Standardised(NamedTuple):
    """Columns with mean 0 and length 1 (0 if constant), and how to bring other samples into the same frame."""

    unit: Tensor
    moves: Tensor  # (..., columns) bool
    first: Tensor  # these four (..., 1, columns)
    spread: Tensor
    mean: Tensor
    length: Tensor

    def place(self, others: Tensor) -> Tensor:
        return ((others.double() * 0.5 - self.first) / self.spread - self.mean) / self.length


def standardise(columns: Tensor) -> Standardised:
    """(..., samples, columns) of any scale and offset, without a threshold anywhere.

    The first sample is subtracted first: what is constant becomes 0 exactly, and what hardly varies keeps its digits.
    Divided by its largest entry, a column then holds a 0 and a +-1, so that its variance is far from under- and
    overflow. The half keeps the difference of two huge numbers finite.
    """
    unit = columns.double() * 0.5
    first = unit[..., :1, :].clone()
    unit -= first
    low, high = unit.aminmax(dim=-2, keepdim=True)
    spread = torch.maximum(high, -low)
    moves = spread > 0
    spread = torch.where(moves, spread, 1.0)
    unit /= spread
    mean = unit.mean(-2, keepdim=True)
    unit -= mean
    length = torch.where(moves, torch.linalg.vector_norm(unit, dim=-2, keepdim=True), 1.0)
    unit /= length
    return Standardised(unit, moves[..., 0, :], first, spread, mean, length)


def paired(columns: Tensor, latents: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Correlation of each column with its latent (0 if one of them is constant), and which of the two vary."""
    left, right = standardise(columns), standardise(latents)
    return (left.unit * right.unit).sum(-2).clamp(-1.0, 1.0), left.moves, right.moves
