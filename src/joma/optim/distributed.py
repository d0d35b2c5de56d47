"""GaLore on several processes.

With DistributedDataParallel the optimizer sees averaged gradients, so every process finds the same subspaces;
`same_subspaces` makes sure of it. With `reduce_compact` the processes send P^T G instead of G, m / r times less.

With FSDP2 (`fully_shard`) nothing has to be called: GaLore takes the sharded parameters as they are. Make it after
fully_shard. Only a refresh gathers full gradients, one matrix after the other.
"""

# Annotations are not postponed here: DistributedDataParallel looks at those of its hook.
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from joma.optim.galore import GaLore


def same_subspaces(optimizer: GaLore, group: dist.ProcessGroup | None = None) -> None:
    """Let all processes use the subspaces that the first of them finds.

    Equal gradients on equal machines give equal subspaces anyway. Different machines may round differently.

    - optimizer: the GaLore of this process
    - group: the processes; None for all
    """
    if not dist.is_initialized():
        raise ValueError("torch.distributed is not initialised: call init_process_group first")
    optimizer.group = dist.group.WORLD if group is None else group


def reduce_compact(model: DistributedDataParallel, optimizer: GaLore, group: dist.ProcessGroup | None = None) -> None:
    """Let DistributedDataParallel average only the compact gradients between two refreshes.

    After backward each process has P P^T G instead of G, with G averaged over the processes. The update is the same to
    rounding, because GaLore takes P^T of it again. The norm that clip_grad_norm_ sees is that of the projection.

    - model: what `optimizer` trains, wrapped in DistributedDataParallel
    - optimizer: made without per_layer, with floating bases
    - group: the processes; None for all
    """
    if not isinstance(model, DistributedDataParallel):
        raise ValueError(f"model must be wrapped in DistributedDataParallel, got {type(model).__name__}")
    if optimizer.per_layer or optimizer.project_in_backward:
        raise ValueError("per_layer takes gradients before DistributedDataParallel averages: use one of the two")
    if any(matrix.basis_dtype == torch.int8 for matrix in optimizer.matrices):
        raise ValueError(
            "reduce_compact projects twice, and bases in 8 bits are not orthonormal enough for that: leave it out, "
            "or give a floating basis_dtype"
        )
    same_subspaces(optimizer, group)
    model.register_comm_hook((optimizer, group or dist.group.WORLD), _average_compact)


def _average_compact(state: tuple[GaLore, dist.ProcessGroup], bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
    optimizer, group = state
    # A matrix that is due needs its full gradient; one that is frozen is not due, and may have no subspace.
    compact = {id(m.parameter): m for m in optimizer.matrices if m.found and not optimizer.is_due(m)}
    parts = [(compact.get(id(p)), grad) for p, grad in zip(bucket.parameters(), bucket.gradients(), strict=True)]
    small = [grad if matrix is None else matrix.project(grad).to(grad.dtype) for matrix, grad in parts]
    packed = torch.cat([each.flatten() for each in small]) / group.size()
    sent = dist.all_reduce(packed, group=group, async_op=True)
    assert sent is not None
    buffer: Tensor = bucket.buffer()

    def unpack(future: Any) -> Tensor:
        """Put the averages back into the bucket, in full shape."""
        pieces = future.value()[0].split([each.numel() for each in small])
        for (matrix, grad), each, piece in zip(parts, small, pieces, strict=True):
            grad.copy_(piece.view(each.shape) if matrix is None else matrix.lift(piece.view(each.shape)))
        return buffer

    return sent.get_future().then(unpack)  # type: ignore[no-any-return]
