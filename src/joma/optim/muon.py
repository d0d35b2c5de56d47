"""Muon: momentum whose matrix is replaced by the nearest orthogonal one, so that every direction moves equally far.

torch.optim.Muon does the same, one matrix after another and always in bfloat16, which many CPUs lack. Here matrices of
one shape go together, and the products have bfloat16 on a GPU alone.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from joma.host.words import counted
from joma.optim._matrix import one_number, shrink_and_add
from joma.optim._state import check_plain_state

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic with which Muon moves all singular values close to 1 in few steps."""
MOST_ROUNDS = 100  # as of torch's: a number that a damaged state holds must not make a step endless
LIKE_ADAM = 0.2
"""The root mean square of Adam's updates, about: with it Muon can use the rates of Adam."""


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, made orthogonal. Equal shapes go together.

    >>> weight = torch.nn.Parameter(torch.zeros(4, 6))
    >>> optimizer = Muon([weight], lr=0.1)
    >>> weight.grad = torch.eye(4, 6)
    >>> optimizer.step()
    >>> 0.03 < -weight[0, 0].item() < 0.06  # 0.2 sqrt(6) lr is 0.049, times 0.7 to 1.2
    True
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        *,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        rounds: int = 5,
    ) -> None:
        """Take matrices.

        - params: matrices, stacks of matrices (experts), or groups of them; train what is no matrix with another
          optimizer
        - lr: the update has entries of about 0.2 lr, so that rates of Adam can be used
        - momentum: of the average of gradients
        - weight_decay: shrinks the weights by lr * weight_decay
        - rounds: of the Newton-Schulz iteration
        """
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be at least 0 and below 1, got {momentum!r}")
        if isinstance(rounds, bool) or not isinstance(rounds, int) or not 1 <= rounds <= MOST_ROUNDS:
            raise ValueError(f"rounds must be a whole number from 1 to {MOST_ROUNDS}, got {rounds!r}")
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "rounds": rounds})
        for each in (each for group in self.param_groups for each in group["params"]):
            if each.ndim < 2:
                raise ValueError(f"params must hold matrices, got one of shape {tuple(each.shape)}")

    def __repr__(self) -> str:
        few = counted(sum(len(group["params"]) for group in self.param_groups), "matrix", "matrices")
        return f"Muon({few}, lr={self.defaults['lr']})"

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every matrix that has a gradient; returns what the closure gives.

        - closure: computes the loss and its gradients; it is evaluated once, before the update
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            shapes: dict[object, list[Tensor]] = {}
            for each in group["params"]:
                if each.grad is not None:
                    shapes.setdefault((each.shape, each.dtype, each.device), []).append(each)
            for alike in shapes.values():
                self._multi_tensor(alike, group)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state.

        - state_dict: what state_dict() gave; one that does not fit, is not whole or not finite is refused by a
          `StateError`, and nothing is changed
        """
        check_plain_state(self, state_dict)
        super().load_state_dict(state_dict)

    def _multi_tensor(self, alike: list[Tensor], group: dict[str, Any]) -> None:
        """Of matrices of one shape."""
        pushed = torch.stack([self._pushed(each, group["momentum"]) for each in alike])
        updates = orthogonal(pushed, group["rounds"])
        rate = one_number(group["lr"])
        size = rate * LIKE_ADAM * max(alike[0].shape[-2:]) ** 0.5
        shrink = 1 - rate * group["weight_decay"]
        for each, update in zip(alike, updates.unbind(), strict=True):
            shrink_and_add(each, update, -size, shrink)

    def _pushed(self, matrix: Tensor, share: float) -> Tensor:
        """The gradient with its momentum, one step ahead."""
        assert matrix.grad is not None
        state = self.state[matrix]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(matrix)
        momentum: Tensor = state["momentum_buffer"].lerp_(matrix.grad, 1 - share)
        return matrix.grad.lerp(momentum, share)


def orthogonal(matrices: Tensor, rounds: int = 5) -> Tensor:
    """U V^T of each matrix U S V^T, about: singular values end between 0.7 and 1.2.

    - matrices: (..., rows, columns)
    - rounds: of the Newton-Schulz iteration

    >>> values = torch.linalg.svdvals(orthogonal(torch.diag(torch.tensor([3.0, 1.0, 0.3]))))
    >>> bool(((values > 0.6) & (values < 1.3)).all())
    True
    """
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    wide: Tensor = x.mT if x.shape[-2] > x.shape[-1] else x
    wide = wide / (wide.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(rounds):
        gram = wide @ wide.mT
        wide = a * wide + (b * gram + c * gram @ gram) @ wide
    return wide.mT if x.shape[-2] > x.shape[-1] else wide
