"""Positions that act inside attention: queries and keys that are turned, and a penalty for distance."""

from collections.abc import Sequence

import torch
from torch import Tensor

ALONE = 2.0**-4
"""The slope of a single head. The rule of eight slopes would give it 2^-8, which is nothing over a few dozen tokens."""


def turning(context: int, width: int, theta: float = 10_000.0) -> Tensor:
    """Cosines and sines of rotary positions, (2, context, width): pair (i, i + width/2) turns by theta^(-2i/width)."""
    half = width // 2
    speeds = theta ** -(torch.arange(half, dtype=torch.float64) / half)
    angles = torch.outer(torch.arange(context, dtype=torch.float64), speeds).repeat(1, 2)
    return torch.stack((angles.cos(), angles.sin())).float()


def turned(x: Tensor, turns: Sequence[Tensor] | Tensor) -> Tensor:
    """Pairs (i, i + half) of x (..., length, width), each turned by its angle. turns: cosines and sines."""
    first, second = x.chunk(2, dim=-1)
    cosines, sines = turns
    return x * cosines.to(x) + torch.cat((-second, first), dim=-1) * sines.to(x)


def slopes(heads: int) -> Tensor:
    """Of ALiBi, (heads,): 2^(-8 i / heads) for the i-th head, as published; a single head has `ALONE`.

    >>> slopes(4)
    tensor([0.2500, 0.0625, 0.0156, 0.0039])
    """
    return torch.tensor([ALONE]) if heads == 1 else 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)


def penalised(logits: Tensor, slope: Tensor) -> Tensor:
    """Logits (members, batch, heads, queries, keys) less slope (members or 1, heads) times how far back the key is."""
    place = torch.arange(logits.shape[-1], device=logits.device)
    back = (place[:, None] - place).to(logits)
    return logits - slope.to(logits)[:, None, :, None, None] * back
