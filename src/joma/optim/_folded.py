"""Weights with more axes than a matrix, trained as matrices that lie in their memory.

A kernel of a convolution (out, in, height, width) is one matrix, out x (in height width). A weight of experts
(experts, rows, columns) is one matrix per expert, each with a subspace of its own: experts see different tokens, and
one that sees none waits for its first gradient.
"""

import torch
from torch import Tensor, nn

from joma.optim._matrix import is_sharded


class Folded:
    """The matrices of one weight: parameters that have its memory and, for the time of a step, its gradient."""

    def __init__(self, name: str, owner: nn.Parameter, *, experts: bool) -> None:
        """A kernel if it is not one of experts."""
        self.owner, self.experts = owner, experts
        views = self._matrices_of(owner.detach())
        self.names = [f"{name}[{place}]" for place in range(len(views))] if experts else [name]
        self.parts = [nn.Parameter(one) for one in views]
        self._known: tuple[object, ...] = ()

    def _matrices_of(self, whole: Tensor) -> list[Tensor]:
        """Views, but for kernels whose channels come last in memory: those are copied."""
        return list(whole.unbind()) if self.experts else [whole.flatten(1)]

    @property
    def _copied(self) -> bool:
        whole = self.owner.detach()
        return not self.experts and whole.flatten(1).data_ptr() != whole.data_ptr()

    def lend(self) -> None:
        """Let the matrices have the memory of the weight, which may have moved, and its gradient."""
        whole, gradient = self.owner.detach(), self.owner.grad
        now = (whole.data_ptr(), whole.dtype, whole.device, whole.stride())
        if now != self._known or self._copied:
            for part, one in zip(self.parts, self._matrices_of(whole), strict=True):
                part.data = one
            self._known = now
        if gradient is not None and gradient.layout == torch.strided:
            for part, one in zip(self.parts, self._matrices_of(gradient), strict=True):
                part.grad = one
        elif gradient is not None:
            raise ValueError(f"the gradient of {self.names[0]} is sparse and cannot be projected: make it dense")

    def give_back(self) -> None:
        """The gradient is the weight's again; what was copied goes back into it, and its memory is freed."""
        if self._copied:
            (part,) = self.parts
            if part.grad is not None:
                self.owner.detach().copy_(part.detach().view_as(self.owner))
            part.data = part.detach().new_zeros(()).expand(part.shape)
        for part in self.parts:
            part.grad = None


def can_fold(name: str, weight: Tensor, kernels: set[str], *, conv: bool, experts: bool) -> bool | None:
    """Whether a weight is one of experts (True) or a kernel (False) that is to be trained as matrices; None if neither.

    - kernels: names that are known to be weights of convolutions. A weight with three axes that is not among them is
      one of experts, if those are asked for
    - conv, experts: which are asked for
    """
    if weight.ndim < 3 or not weight.is_floating_point() or is_sharded(weight) or weight.numel() == 0:
        return None
    if weight.ndim > 3 or name in kernels or not experts:
        return False if conv else None
    return True
