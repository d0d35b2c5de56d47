"""GaLore on several processes.

With DistributedDataParallel the gradients are averaged before the optimizer sees them, so every process finds the same
subspaces; `same_subspaces` makes sure of it. `reduce_compact` goes further: between two refreshes the processes send
P^T G instead of G, which is m / r times less for a matrix with shorter side m.

With FSDP2 (`fully_shard`) nothing has to be called: GaLore takes the sharded parameters as they are. Make it after
fully_shard. Only a refresh gathers whole gradients, one matrix after the other.
"""

# Annotations are not postponed here: DistributedDataParallel looks at those of its hook.
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from joma.optim._matrix import Matrix
from joma.optim.galore import GaLore

Part = tuple[Matrix | None, Tensor]
"""A gradient of a bucket, and the matrix whose subspace it is sent in; None: it is sent as it is."""


def same_subspaces(optimizer: GaLore, group: dist.ProcessGroup | None = None) -> None:
    """Let all processes of a group (default: all) use the subspaces that its first process finds.

    Equal gradients on equal machines give equal subspaces anyway. Different machines may round differently.
    """
    if not dist.is_initialized():
        raise ValueError("torch.distributed is not initialised: call init_process_group first")
    optimizer.group = dist.group.WORLD if group is None else group


def reduce_compact(model: DistributedDataParallel, optimizer: GaLore, group: dist.ProcessGroup | None = None) -> None:
    """Let DistributedDataParallel average only the compact gradients between two refreshes.

    After backward each process has P P^T G instead of G, with G averaged over the processes. The update is the same to
    rounding, because GaLore takes P^T of it again. The norm that clip_grad_norm_ sees is that of the projection.
    """
    if not isinstance(model, DistributedDataParallel):
        raise ValueError(f"model must be wrapped in DistributedDataParallel, got {type(model).__name__}")
    if optimizer.per_layer:
        raise ValueError("per_layer projects before DistributedDataParallel averages: use one of the two")
    same_subspaces(optimizer, group)
    model.register_comm_hook((optimizer, group or dist.group.WORLD), _averaged)


def _averaged(state: tuple[GaLore, dist.ProcessGroup], bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
    optimizer, group = state
    known = {id(matrix.parameter): matrix for matrix in optimizer.matrices}
    pairs = zip(bucket.parameters(), bucket.gradients(), strict=True)
    parts = [(_sent_compact(optimizer, known.get(id(each))), gradient) for each, gradient in pairs]
    packed = torch.cat([_small(matrix, gradient).flatten() for matrix, gradient in parts]) / group.size()
    sent = dist.all_reduce(packed, group=group, async_op=True)
    assert sent is not None
    return sent.get_future().then(_unpacked(parts, bucket.buffer()))  # type: ignore[no-any-return]


def _sent_compact(optimizer: GaLore, matrix: Matrix | None) -> Matrix | None:
    """The matrix, if its gradient is sent in the subspace: one that is due needs its whole gradient."""
    return None if matrix is None or matrix.due(optimizer.param_groups[matrix.group]["refresh"]) else matrix


def _small(matrix: Matrix | None, gradient: Tensor) -> Tensor:
    return gradient if matrix is None else matrix.projected(gradient).to(gradient.dtype)


def _unpacked(parts: list[Part], buffer: Tensor) -> Callable[[Any], Tensor]:
    """Puts the averages back into the bucket, in full shape."""

    def then(future: Any) -> Tensor:
        (packed,) = future.value()
        start = 0
        for matrix, gradient in parts:
            shape = gradient.shape if matrix is None else matrix.shape
            stop = start + shape[0] * shape[1] if matrix is not None else start + gradient.numel()
            piece = packed[start:stop].view(shape)
            gradient.copy_(piece if matrix is None else matrix.lifted(piece))
            start = stop
        return buffer

    return then
