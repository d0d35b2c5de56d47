"""Muon for matrices: momentum, made orthogonal by a few Newton-Schulz steps. Matrices of one shape go together.

torch.optim.Muon does the same, one matrix after another and always in bfloat16, which many CPUs lack.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

MOMENTUM = 0.95
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic that moves all singular values close to 1 in few steps."""
STEPS = 5
LIKE_ADAM = 0.2
"""The root mean square of Adam's updates, about: with it the rates of Adam can be used."""


class Muon(torch.optim.Optimizer):
    """Nesterov momentum whose matrix is replaced by the nearest orthogonal one, about."""

    def __init__(self, matrices: list[Tensor], lr: float) -> None:
        super().__init__(matrices, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = {}
            for matrix in group["params"]:
                shapes.setdefault(matrix.shape, []).append(matrix)
            for (rows, columns), alike in shapes.items():
                updates = orthogonal(torch.stack([self._pushed(matrix) for matrix in alike]))
                size = group["lr"] * LIKE_ADAM * max(rows, columns) ** 0.5
                torch._foreach_add_(alike, list(updates.to(alike[0].dtype).unbind()), alpha=-size)

    def _pushed(self, matrix: Tensor) -> Tensor:
        """The gradient with its momentum, one step ahead."""
        assert matrix.grad is not None
        state = self.state[matrix]
        if not state:
            state["momentum"] = torch.zeros_like(matrix)
        momentum: Tensor = state["momentum"].lerp_(matrix.grad, 1 - MOMENTUM)
        return matrix.grad.lerp(momentum, MOMENTUM)


def orthogonal(matrices: Tensor) -> Tensor:
    """U V^T of each matrix U S V^T, about: singular values end between 0.7 and 1.2. (batch, rows, columns)."""
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    wide: Tensor = x.mT if x.shape[-2] > x.shape[-1] else x
    wide = wide / (wide.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(STEPS):
        gram = wide @ wide.mT
        wide = a * wide + (b * gram + c * gram @ gram) @ wide
    return wide.mT if x.shape[-2] > x.shape[-1] else wide
