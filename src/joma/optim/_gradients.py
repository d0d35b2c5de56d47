"""What is asked of many gradients at once, and what becomes of a gradient as soon as backward has it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from joma.optim._matrix import full_tensor, is_sharded, local

_HOOKS = WeakTensorKeyDictionary()  # one per parameter: were there two, the second would find no gradient


def are_finite(tensors: Sequence[Tensor]) -> Tensor:
    """For each tensor whether all of it is finite, on the device of the first; the same answer on all processes."""
    if not tensors:
        return torch.ones(0, dtype=torch.bool)
    here = [local(one) for one in tensors]
    if not all(one.numel() for one in here):  # a process that has no row of a tensor has nothing to object to
        here = [one if one.numel() else one.new_zeros(1) for one in here]
    norms = torch._foreach_norm(here, float("inf"))
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


class BackwardHook:
    """Lets an optimizer have a gradient as soon as it is complete; the optimizer frees it."""

    def __init__(self, name: str, parameter: nn.Parameter, take: Callable[[nn.Parameter], None]) -> None:
        """Start it.

        `take` is a method of an optimizer; the hook does nothing once that optimizer is gone. The newest optimizer has
        the gradient, so that training can go on with a new one on the same model.
        """
        if is_sharded(parameter):
            raise ValueError(f"{name} lies on several processes, and FSDP2 gathers its gradient: leave per_layer out")
        self.name, self.parameter = name, parameter
        method = weakref.WeakMethod(take)

        def hook(parameter: Any) -> None:
            taking = method()
            if taking is not None and parameter.grad is not None:
                with torch.no_grad(), torch.autocast(parameter.device.type, enabled=False):
                    taking(parameter)

        if (before := _HOOKS.get(parameter)) is not None:
            before.remove()
        # torch hooks only what requires a gradient; a frozen parameter keeps its hook and may be trained later.
        requires_grad = parameter.requires_grad
        parameter.requires_grad_(True)
        self._handle: RemovableHandle = parameter.register_post_accumulate_grad_hook(hook)
        _HOOKS[parameter] = self._handle
        parameter.requires_grad_(requires_grad)

    def check(self, *, taken: bool) -> None:
        """Refuse to step where a newer optimizer has the gradient, or something puts it back once it was taken."""
        if taken and self.parameter.grad is not None:
            raise ValueError(
                f"{self.name} has a gradient although it was taken during backward: leave per_layer and "
                "project_in_backward out inside DistributedDataParallel, which averages later"
            )
        if _HOOKS.get(self.parameter) is not self._handle:
            raise ValueError(f"the gradient of {self.name} goes to a newer GaLore with per_layer: step that one")
