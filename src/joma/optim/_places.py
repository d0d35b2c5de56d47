"""Where the numbers of a tensor are: here, or on several processes (DTensor, as FSDP2 makes them).

A program without distributed training never loads torch.distributed.tensor: a DTensor exists only where somebody has.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from joma.optim._matrix import Matrix
from joma.optim.ranks import Rank


def is_sharded(value: object) -> bool:
    """Whether a tensor lies on several processes."""
    loaded = sys.modules.get("torch.distributed.tensor")
    return loaded is not None and isinstance(value, loaded.DTensor)


def matrix_of(name: str, parameter: nn.Parameter, group: int, index: int, rank: Rank) -> Matrix:
    """The right kind of matrix for a parameter."""
    if is_sharded(parameter):
        from joma.optim._sharded import ShardedMatrix

        return ShardedMatrix(name, parameter, group, index, rank)
    return Matrix(name, parameter, group, index, rank)


def local(tensor: Any) -> Tensor:
    """What of a tensor is on this process."""
    here: Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return here


def whole(tensor: Any) -> Tensor:
    """The tensor with all its rows, gathered where they lie on several processes."""
    all_of_it: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor
    return all_of_it


def on_all(fine: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """Where one process sees a fault, all do: otherwise some would step and others would not."""
    if not any(map(is_sharded, tensors)):
        return fine
    said = fine.to(torch.int32)
    dist.all_reduce(said, dist.ReduceOp.MIN)
    return said.bool()


def first_word(found: Tensor, group: dist.ProcessGroup) -> Tensor:
    """What the first process of a group found, on all of them."""
    said = found.contiguous()
    dist.broadcast(said, group=group, group_src=0)
    return said
