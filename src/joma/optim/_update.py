"""The arithmetic of a step on batches of alike matrices: into the subspace, through the inner optimizer, and out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from joma.optim._matrix import Matrix, into, out_of, stacked
from joma.optim._places import local, whole

TOGETHER = 1 << 22
"""Matrices are worked on together up to this many entries: 16 MiB of float32 beside the gradients themselves."""


def gradients(batch: list[Matrix]) -> list[Tensor]:
    """Of the matrices themselves."""
    return [matrix.parameter.grad for matrix in batch if matrix.parameter.grad is not None]


def whole_gradients(batch: list[Matrix]) -> Tensor:
    """(count, rows, columns) in the precision of the compact parameters, gathered from all processes."""
    return stacked([whole(gradient) for gradient in gradients(batch)], batch[0].dtype)


def refuse_sparse(batch: list[Matrix]) -> None:
    """Of the matrices; parameters that are not projected may have sparse gradients."""
    for matrix in batch:
        grad = matrix.parameter.grad
        if grad is not None and grad.layout != torch.strided:
            raise ValueError(
                f"the gradient of {matrix.name} is sparse and cannot be projected: make it dense or name it in skip"
            )


def _inside(batch: list[Matrix], tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Tensors of the matrices' shapes, each in the subspace of its matrix."""
    if batch[0].sharded:
        return [matrix.projected(one) for matrix, one in zip(batch, tensors, strict=True)]
    return into(batch, stacked(tensors, batch[0].dtype)).unbind()


def project(batch: list[Matrix], tensors: Sequence[Tensor]) -> None:
    """Give each compact parameter the projected gradient, added to what it has."""
    for matrix, grad in zip(batch, _inside(batch, tensors), strict=True):
        matrix.compact.grad = grad if matrix.compact.grad is None else matrix.compact.grad + grad


def add_decay(batch: list[Matrix], factor: float | Tensor) -> None:
    """Coupled decay: add factor * W to the gradient, inside the subspace."""
    weights = [matrix.parameter.detach() for matrix in batch]
    for matrix, part in zip(batch, _inside(batch, weights), strict=True):
        if matrix.compact.grad is not None:
            matrix.compact.grad.add_(part * factor)


def unfold(batch: list[Matrix]) -> Tensor:
    """Give the compact parameters memory of their own, zero, for the time of a step."""
    memory = torch.zeros(len(batch), *batch[0].part_shape, dtype=batch[0].dtype, device=batch[0].parameter.device)
    for matrix, part in zip(batch, memory.unbind(), strict=True):
        matrix.hold(part)
    return memory


def fold(batch: list[Matrix], moved: Tensor, scale: float) -> None:
    """Add what the inner optimizer did to the matrices themselves."""
    if batch[0].sharded or (len(batch) == 1 and batch[0].parameter.dtype == batch[0].dtype):
        for matrix in batch:
            matrix.add(scale)
    else:
        weights = [matrix.parameter.data for matrix in batch]
        torch._foreach_add_(weights, list(out_of(batch, moved.mul_(scale)).unbind()))


def entries(parameter: Tensor) -> Tensor:
    """The gradient of a parameter that is not projected; of a sparse one the values, each place once."""
    assert parameter.grad is not None
    if parameter.grad.layout == torch.sparse_coo:
        parameter.grad = parameter.grad.coalesce()
        return parameter.grad.values()
    return parameter.grad


def shrink(parameters: list[Tensor], by: Any) -> None:
    """Decoupled decay: W -= by * W."""
    torch._foreach_mul_([local(one) for one in parameters], 1 - by)


def are_finite(tensors: Sequence[Tensor]) -> Tensor:
    """For each tensor whether all of it that is here is finite. On the device of the first."""
    here = [local(one) for one in tensors]
    zero = here[0].new_zeros(1)  # a process that has no row of a tensor has nothing to object to
    norms = torch._foreach_norm([one if one.numel() else zero for one in here], float("inf"))
    if any(norm.dtype != norms[0].dtype or norm.device != norms[0].device for norm in norms):
        return torch.stack([norm.isfinite().to(norms[0].device) for norm in norms])
    return torch.stack(norms).isfinite()


def whole_norm(tensors: Sequence[Tensor]) -> Tensor:
    """The norm of all entries together; squares of half precision would overflow where their root does not."""
    precise = reduce(torch.promote_types, (one.dtype for one in tensors), torch.float32)
    norms = [whole(norm) for norm in torch._foreach_norm(list(tensors), 2, precise)]
    together: Tensor = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
    return together


def set_option(group: dict[str, Any], key: str, value: Any) -> None:
    """Set an option; a rate that the inner optimizer keeps in a tensor, as torchao does, stays in that tensor."""
    if isinstance(group[key], Tensor) and group[key] is not value:
        group[key].fill_(value)
    else:
        group[key] = value
