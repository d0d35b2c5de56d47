"""Projecting each gradient while backward runs, and freeing it at once.

The hook of a matrix runs when its gradient is complete. It projects the gradient, adds the result to the gradient of
the compact parameter and drops the full one. Projecting is linear, so the compact gradients of microbatches add up
to the projected sum, and nothing is updated before step(): the number of microbatches need not be said. A subspace
that is due is found from the first microbatch after a step.

The compact parameters stand in `param_groups` beside the others, so that torch.amp.GradScaler unscales their
gradients and sees an overflow in them.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

if TYPE_CHECKING:
    from joma.optim._matrix import Matrix
    from joma.optim.galore import GaLore

_HOOKS = WeakTensorKeyDictionary()
"""The hook of each parameter. A parameter has one: were there two, the second would find no gradient."""


def attach(optimizer: GaLore, matrix: Matrix) -> None:
    """Let the gradient of a matrix be projected during backward, as long as the optimizer lives.

    The newest optimizer has the gradient, so that training can go on with a new one on the same model.
    """
    if matrix.sharded:
        raise ValueError(
            f"{matrix.name} lies on several processes, and FSDP2 gathers its gradient: leave per_layer out"
        )
    owner = weakref.ref(optimizer)

    def projected(parameter: Tensor) -> None:
        living = owner()
        if living is not None and parameter.grad is not None:
            with torch.no_grad(), torch.autocast(parameter.device.type, enabled=False):
                living._take_gradient(matrix)
            parameter.grad = None

    if (before := _HOOKS.get(matrix.parameter)) is not None:
        before.remove()
    with _trained(matrix.parameter):
        matrix.hook = _HOOKS[matrix.parameter] = matrix.parameter.register_post_accumulate_grad_hook(projected)
    optimizer.param_groups[matrix.group]["params"].append(matrix.compact)


@contextmanager
def _trained(parameter: Tensor) -> Iterator[None]:
    """torch hooks only what requires a gradient; a frozen parameter keeps its hook and may be trained later."""
    before = parameter.requires_grad
    parameter.requires_grad_(True)
    yield
    parameter.requires_grad_(before)


def refuse_taken(matrices: list[Matrix]) -> None:
    """Refuse to step where a newer optimizer has the gradients, or something puts them back once they are projected."""
    for matrix in matrices:
        if matrix.parameter.grad is not None:
            raise ValueError(
                f"{matrix.name} has a gradient although it was projected during backward: leave per_layer out inside "
                "DistributedDataParallel, which averages later"
            )
        if _HOOKS.get(matrix.parameter) is not matrix.hook:
            raise ValueError(f"the gradient of {matrix.name} goes to a newer GaLore with per_layer: step that one")
