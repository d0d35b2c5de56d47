"""The bilinear model of Theorem 1, trained by gradient descent from zero on the facts A -> B.

With facts A_i -> B_i all of theta lies in the span of A_i w^T, theta = sum_i A_i c_i^T U. So it is enough to follow the
coefficients c (facts, tokens); embeddings enter by their inner products alone, and the width costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from joma.theory.reversal import smallest_power

TRAINED = ("forward", "symmetric", "both")
"""What is trained: theta on A -> B; and as controls a symmetric theta on A -> B, theta on A -> B and B -> A."""


def gaussian(tokens: int, width: int, draws: int, generator: torch.Generator) -> Tensor:
    """(draws, tokens, tokens): inner products of Gaussian embeddings of length about 1."""
    table: Tensor = torch.randn(draws, tokens, width, generator=generator, dtype=torch.float64) / width**0.5
    return table @ table.mT


def descend(inner: Tensor, facts: int, steps: int, trained: str) -> Tensor:
    """Forward and reverse loss, (2, draws, steps + 1). Tokens 2i and 2i + 1 are A and B of the fact i.

    The rate is 1 per fact, so that one step is one visit of each row.
    """
    first, second = torch.arange(2 * facts).reshape(facts, 2).unbind(-1)
    c = inner.new_zeros(len(inner), facts, inner.shape[-1])
    back = torch.zeros_like(c)

    def said(start: Tensor) -> Tensor:
        """(draws, facts, tokens): ln p after the tokens u that facts start with, from logits u^T theta w."""
        logits = inner[:, start][..., first] @ c @ inner
        if trained == "both":
            logits = logits + inner[:, start][..., second] @ back @ inner
        if trained == "symmetric":
            logits = (logits + inner[:, start] @ c.mT @ inner[:, first]) / 2
        return torch.log_softmax(logits, -1)

    def loss(log_p: Tensor, answer: Tensor) -> Tensor:
        return -log_p[:, torch.arange(facts), answer].mean(-1)

    def push(log_p: Tensor, answer: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(answer, log_p.shape[-1]) - log_p.exp()

    path = []
    for _ in range(steps + 1):
        ahead, reverse = said(first), said(second)
        path.append(torch.stack([loss(ahead, second), loss(reverse, first)]))
        c = c + push(ahead, second)
        if trained == "both":
            back = back + push(reverse, first)
    return torch.stack(path, -1)


def powers(inner: Tensor, facts: int, steps: int, kinds: Sequence[str]) -> Tensor:
    """(kinds, draws): the smallest eps of Theorem 1, for each kind of training."""
    paths = [descend(inner, facts, steps, trained) for trained in kinds]
    return torch.stack([smallest_power(forward, reverse) for forward, reverse in paths])
