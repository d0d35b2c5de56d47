"""Projected matrices, one and many at once: how a gradient comes into the subspace and an update goes out of it.

Matrices that are alike (same shape, rank and device) are worked on in batches: one product instead of many.

Rows of a matrix may lie on several processes (DTensor, as FSDP2 makes them; see _sharded.py). A program without
distributed training never loads torch.distributed.tensor: a DTensor exists only where somebody has loaded it.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import compress
from operator import not_
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from joma.optim.projector import Kind, Projector, Rank, Side, find_projector, largest_rank, side_of

MOST_ENTRIES = 1 << 22  # of matrices worked on together: 16 MiB of float32 beside the gradients themselves
_SEED_STRIDE = 1_000_003  # a prime that makes seeds of different matrices and updates different
_HOOKS = WeakTensorKeyDictionary()  # one per parameter: were there two, the second would find no gradient


def is_sharded(value: object) -> bool:
    """Whether a tensor lies on several processes."""
    loaded = sys.modules.get("torch.distributed.tensor")
    return loaded is not None and isinstance(value, loaded.DTensor)


def local(tensor: Any) -> Tensor:
    """What of a tensor is on this process."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[no-any-return]


def full_tensor(tensor: Any) -> Tensor:
    """The tensor with all its rows, gathered where they lie on several processes."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[no-any-return]


def broadcast_from_first(found: Tensor, group: dist.ProcessGroup) -> Tensor:
    """What the first process of a group found, on all of them."""
    sent = found.contiguous()
    dist.broadcast(sent, group=group, group_src=0)
    return sent


class Matrix:
    """A parameter that is trained in a subspace, and the compact parameter that the inner optimizer sees instead."""

    sharded = False  # whether its rows lie on several processes

    def __init__(self, name: str, parameter: nn.Parameter, group: int, index: int, rank: Rank) -> None:
        """Name and index say which parameter it is, group which parameter group it is in."""
        self.name, self.parameter, self.group, self.index = name, parameter, group, index
        self.side: Side = side_of(*parameter.shape)
        self.shorter, self.longer = min(parameter.shape), max(parameter.shape)
        self.dtype = torch.promote_types(parameter.dtype, torch.float32)
        self.rank = self.largest_rank = min(largest_rank(rank), self.shorter)
        self.count = 0  # updates so far
        self.refreshed = -1  # the count at the last refresh; -1: the subspace is to be found from the next gradient
        self.basis: Tensor | None = None
        self.energies: Tensor | None = None
        self.zero = torch.zeros(1, 1, dtype=self.dtype, device=parameter.device)
        self.compact = nn.Parameter(self.zeros())
        self.hook: RemovableHandle | None = None
        self._freed: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Of the compact parameter."""
        return (self.rank, self.longer) if self.side == "left" else (self.longer, self.rank)

    @property
    def projected_axis(self) -> int:
        """Of the compact parameter: the axis whose entries are directions of the subspace."""
        return 0 if self.side == "left" else 1

    def zeros(self) -> Tensor:
        """Zeros of the compact shape in the memory of one number."""
        return self.zero.expand(self.shape)

    def free(self) -> None:
        """Between steps: no memory for the compact parameter, none for its gradient."""
        if self._freed is None or self._freed.shape != self.shape:
            self._freed = self.zeros()
        self.set_data(self._freed)
        self.compact.grad = None

    def set_data(self, part: Tensor) -> None:
        """Let the compact parameter have this memory."""
        self.compact.data = part

    def is_due(self, refresh: int) -> bool:
        """Whether the subspace is to be found anew before the coming update."""
        return self.refreshed < 0 or (self.count % refresh == 0 and self.refreshed != self.count)

    def project(self, full: Tensor) -> Tensor:
        """A tensor of the parameter's shape in the subspace."""
        return _project([self], full[None].to(self.dtype))[0]

    def lift(self, compact: Tensor) -> Tensor:
        """What lies in the subspace in the parameter's shape."""
        return _lift([self], compact[None].to(self.dtype))[0]

    def apply_update(self, scale: float) -> None:
        """Add the compact parameter, which the inner optimizer has moved, to the matrix; no memory in full shape."""
        assert self.basis is not None
        moved = self.compact.data
        factors = (self.basis, moved) if self.side == "left" else (moved, self.basis.mT)
        self.parameter.data.addmm_(*factors, alpha=scale)

    def agree(self, found: Tensor) -> Tensor:
        """What was found, the same on all processes that hold a part of the matrix."""
        return found

    def project_in_backward(self, take_gradient: weakref.WeakMethod[Callable[[Matrix], None]]) -> None:
        """Let `take_gradient` have the gradient as soon as it is complete, and free it.

        `take_gradient` is a method of an optimizer; the hook does nothing once that optimizer is gone. The newest
        optimizer has the gradient, so that training can go on with a new one on the same model.
        """
        if self.sharded:
            raise ValueError(
                f"{self.name} lies on several processes, and FSDP2 gathers its gradient: leave per_layer out"
            )

        def hook(parameter: Tensor) -> None:
            take = take_gradient()
            if take is not None and parameter.grad is not None:
                with torch.no_grad(), torch.autocast(parameter.device.type, enabled=False):
                    take(self)
                parameter.grad = None

        if (before := _HOOKS.get(self.parameter)) is not None:
            before.remove()
        # torch hooks only what requires a gradient; a frozen parameter keeps its hook and may be trained later.
        requires_grad = self.parameter.requires_grad
        self.parameter.requires_grad_(True)
        self.hook = _HOOKS[self.parameter] = self.parameter.register_post_accumulate_grad_hook(hook)
        self.parameter.requires_grad_(requires_grad)

    def check_dense(self) -> None:
        """Refuse a sparse gradient; parameters that are not projected may have one."""
        if self.parameter.grad is not None and self.parameter.grad.layout != torch.strided:
            raise ValueError(
                f"the gradient of {self.name} is sparse and cannot be projected: make it dense or name it in skip"
            )

    def check_hook(self) -> None:
        """Refuse to step where a newer optimizer has the gradient, or something puts it back once it is projected."""
        if self.parameter.grad is not None:
            raise ValueError(
                f"{self.name} has a gradient although it was projected during backward: leave per_layer out inside "
                "DistributedDataParallel, which averages later"
            )
        if _HOOKS.get(self.parameter) is not self.hook:
            raise ValueError(f"the gradient of {self.name} goes to a newer GaLore with per_layer: step that one")


def in_batches(matrices: list[Matrix]) -> list[list[Matrix]]:
    """Matrices that are alike, in batches with at most MOST_ENTRIES entries in all (or one matrix)."""
    found: dict[tuple[object, ...], list[list[Matrix]]] = {}
    for matrix in matrices:
        p = matrix.parameter
        batches = found.setdefault((matrix.group, tuple(p.shape), matrix.rank, p.dtype, p.device), [[]])
        if (len(batches[-1]) + 1) * p.numel() > MOST_ENTRIES and batches[-1]:
            batches.append([])
        batches[-1].append(matrix)
    return [batch for batches in found.values() for batch in batches]


def _stack(tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """(count, rows, columns) in dtype; a single tensor is not copied."""
    return (tensors[0][None] if len(tensors) == 1 else torch.stack(list(tensors))).to(dtype)


def _bases(batch: list[Matrix]) -> Tensor:
    """(count, shorter side, rank)."""
    return _stack([matrix.basis for matrix in batch if matrix.basis is not None], batch[0].dtype)


def _project(batch: list[Matrix], full: Tensor) -> Tensor:
    """Matrices of full shape (count, rows, columns) in the subspaces: P^T G, or G P where the right side is shorter."""
    return _bases(batch).mT @ full if batch[0].side == "left" else full @ _bases(batch)


def _lift(batch: list[Matrix], compact: Tensor) -> Tensor:
    """What lies in the subspaces in full shape: P C, or C P^T where the right side is shorter."""
    return _bases(batch) @ compact if batch[0].side == "left" else compact @ _bases(batch).mT


def project_all(batch: list[Matrix], tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Tensors of the matrices' shapes, each in the subspace of its matrix."""
    if batch[0].sharded:
        return [matrix.project(one) for matrix, one in zip(batch, tensors, strict=True)]
    return _project(batch, _stack(tensors, batch[0].dtype)).unbind()


def full_gradients(batch: list[Matrix]) -> Tensor:
    """(count, rows, columns) in the precision of the compact parameters, gathered from all processes."""
    return _stack([full_tensor(m.parameter.grad) for m in batch if m.parameter.grad is not None], batch[0].dtype)


def find_subspaces(
    batch: list[Matrix], gradients: Tensor, kind: Kind, *, seed: int, tolerance: float
) -> list[tuple[Matrix, Projector]]:
    """The new subspace of each matrix whose gradient is not zero, from gradients (count, rows, columns).

    The last subspaces are where the search begins. Seeds do not depend on which matrices are in the batch.
    """
    nonzero: list[bool] = gradients.flatten(1).any(1).tolist()
    if not all(nonzero):
        # A gradient of zeros has no directions: the subspace stays, or is any, and is to be found from the next.
        for matrix in compress(batch, map(not_, nonzero)):
            matrix.refreshed = -1
            if matrix.basis is None:
                matrix.basis = torch.eye(matrix.shorter, matrix.rank, dtype=matrix.dtype, device=gradients.device)
                matrix.energies = matrix.basis.new_zeros(matrix.rank)
        batch = list(compress(batch, nonzero))
        gradients = gradients[torch.tensor(nonzero)]
    if not batch:
        return []
    rank, count = batch[0].rank, batch[0].count
    if kind == "random":  # another subspace for each matrix
        seeds = [(seed * _SEED_STRIDE + matrix.index) * _SEED_STRIDE + matrix.count for matrix in batch]
        alone = zip(batch, gradients, seeds, strict=True)
        return [(matrix, find_projector(one, rank, kind, seed=each)) for matrix, one, each in alone]
    known = [matrix.basis for matrix in batch if matrix.basis is not None]
    start = torch.stack(known) if len(known) == len(batch) else None
    found = find_projector(gradients, rank, kind, start=start, seed=seed * _SEED_STRIDE + count, tolerance=tolerance)
    parts = zip(batch, found.basis.unbind(), found.energies.unbind(), strict=True)
    return [(matrix, Projector(basis.clone(), shares.clone(), found.exact)) for matrix, basis, shares in parts]


def add_compact_gradients(batch: list[Matrix], gradients: Sequence[Tensor]) -> None:
    """Give each compact parameter the projected gradient, added to what it has."""
    for matrix, grad in zip(batch, project_all(batch, gradients), strict=True):
        matrix.compact.grad = grad if matrix.compact.grad is None else matrix.compact.grad + grad


def allocate(batch: list[Matrix]) -> Tensor:
    """Give the compact parameters memory of their own, zero, for the time of a step."""
    shape, device = local(batch[0].compact).shape, batch[0].parameter.device
    memory = torch.zeros(len(batch), *shape, dtype=batch[0].dtype, device=device)
    for matrix, part in zip(batch, memory.unbind(), strict=True):
        matrix.set_data(part)
    return memory


def apply_updates(batch: list[Matrix], moved: Tensor, scale: float) -> None:
    """Add what the inner optimizer did to the matrices themselves."""
    if batch[0].sharded or (len(batch) == 1 and batch[0].parameter.dtype == batch[0].dtype):
        for matrix in batch:
            matrix.apply_update(scale)
    else:
        weights = [matrix.parameter.data for matrix in batch]
        torch._foreach_add_(weights, list(_lift(batch, moved.mul_(scale)).unbind()))


def are_finite(tensors: Sequence[Tensor]) -> Tensor:
    """For each tensor whether all of it is finite, on the device of the first; the same answer on all processes."""
    if not tensors:
        return torch.ones(0, dtype=torch.bool)
    here = [local(one) for one in tensors]
    zero = here[0].new_zeros(1)  # a process that has no row of a tensor has nothing to object to
    norms = torch._foreach_norm([one if one.numel() else zero for one in here], float("inf"))
    if any(norm.dtype != norms[0].dtype or norm.device != norms[0].device for norm in norms):
        finite = torch.stack([norm.isfinite().to(norms[0].device) for norm in norms])
    else:
        finite = torch.stack(norms).isfinite()
    meshes: dict[Any, None] = {one.device_mesh: None for one in tensors if is_sharded(one)}  # type: ignore[attr-defined]
    if not meshes:
        return finite
    # Where one process sees a fault, all that hold parts must: otherwise some would step and others would not.
    everywhere = finite.to(torch.int32)
    for group in (mesh.get_group(dimension) for mesh in meshes for dimension in range(mesh.ndim)):
        dist.all_reduce(everywhere, dist.ReduceOp.MIN, group=group)
    return everywhere.bool()


def total_norm(tensors: Sequence[Tensor]) -> Tensor:
    """The norm of all entries together; squares of half precision would overflow where their root does not."""
    precise = reduce(torch.promote_types, (one.dtype for one in tensors), torch.float32)
    norms = [full_tensor(norm) for norm in torch._foreach_norm(list(tensors), 2, precise)]
    total: Tensor = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
    return total
