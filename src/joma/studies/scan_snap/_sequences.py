"""Classes of sequences: distinct tokens that one class has, common tokens that all have."""

from __future__ import annotations

import torch
from torch import Tensor

COMMON_SHARE = 0.5  # of a sequence: so much of it are common tokens, the rest are distinct ones


def graded_classes(classes: int, distinct: int, common: int) -> Tensor:
    """P(l|n), (classes, tokens): distinct tokens in proportion to 0.1 up to 1, common ones alike in all classes.

    The distinct tokens of class n are n distinct to (n + 1) distinct - 1, rarest first; the common ones come last.
    """
    weights = torch.linspace(0.1, 1.0, distinct, dtype=torch.float64).expand(1, classes, distinct)
    return _joined(weights, torch.ones(1, classes, common, dtype=torch.float64))[0]


def drawn_classes(
    draws: int, classes: int, distinct: int, common: int, *, skew: float, generator: torch.Generator
) -> Tensor:
    """As `graded_classes`, (draws, classes, tokens), the weights of distinct tokens uniform from 0.1 to 1.

    skew: the standard deviation of the logarithm of a common token's weight, drawn for each class. With 0 a common
    token is as frequent in all classes.
    """
    weights = 0.1 + 0.9 * torch.rand(draws, classes, distinct, generator=generator, dtype=torch.float64)
    noise = torch.randn(draws, classes, common, generator=generator, dtype=torch.float64)
    return _joined(weights, torch.exp(skew * noise))


def without_common(p: Tensor, distinct: int) -> Tensor:
    """The same classes with their distinct tokens alone, (..., classes, classes * distinct)."""
    own: Tensor = p[..., : p.shape[-2] * distinct]
    return own.div(own.sum(-1, keepdim=True))


def _joined(weights: Tensor, shared: Tensor) -> Tensor:
    """(draws, classes, tokens) of the weights of distinct and of common tokens."""
    draws, classes, distinct = weights.shape
    p = weights.new_zeros(draws, classes, classes * distinct)
    for n in range(classes):
        p[:, n, n * distinct : (n + 1) * distinct] = weights[:, n]
    p = p.mul(1 - COMMON_SHARE).div(p.sum(-1, keepdim=True))
    return torch.cat([p, COMMON_SHARE * shared / shared.sum(-1, keepdim=True)], -1)


def own_tokens(values: Tensor, classes: int, distinct: int) -> Tensor:
    """Of (..., tokens), the distinct tokens class by class, (..., classes, distinct)."""
    own: Tensor = values[..., : classes * distinct].unflatten(-1, (classes, distinct))
    return own


def frequencies(
    p: Tensor, steps: int, members: int, length: int, *, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Sequences of one token after the other: how often each occurs (steps, members, tokens), and their classes."""
    count = steps * members
    which = torch.randint(len(p), (count,), generator=generator)
    drawn = torch.multinomial(p[which], length, replacement=True, generator=generator)
    x = torch.zeros(count, p.shape[-1], dtype=torch.float64)
    x.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float64))
    return (x / length).view(steps, members, -1), which.view(steps, members)
