"""SGD, Adam, AdamW and Muon for ensembles: every tensor's first dimension is the member, and each has its own rate.

One step of one member equals a step of torch.optim on that member alone, to rounding; of Muon, of `joma.optim.Muon`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from joma.host.words import brief_repr, counted
from joma.optim.muon import LIKE_ADAM, orthogonal

Kind = Literal["sgd", "adam", "adamw", "muon"]
Tensors = Sequence[Tensor]
MATRICES = 4
"""Dimensions of what Muon makes orthogonal: (members, layers, rows, columns)."""
ROUNDS = 5
"""Of its Newton-Schulz iteration."""


@brief_repr
@dataclass(frozen=True)
class Optimizer:
    """What updates the weights.

    - kind: sgd, adam, adamw or muon. Muon moves what is a stack of matrices, (members, layers, rows, columns), and all
      else as Adam does: embeddings, the output, biases, norms
    - rate: the learning rate: one number for all members, or a tuple with one per member
    - momentum: of SGD and Muon; Adam has its betas
    - betas: Adam's decay rates of its two means
    - epsilon: what Adam adds to the root of its second mean
    - weight_decay: added to the gradient; AdamW shrinks the weights instead
    - clip: the largest norm of one member's whole gradient
    - renew_every: forget the optimizer's state every so many steps, as the runs of Figures 6 and 8 do once per epoch
    - decay: what the rates are multiplied with every `decay_every` steps
    - decay_every: after how many steps the rates decay; needed if decay is below 1
    - warm_up: over so many steps the rates rise in a straight line, the first step having 1/warm_up of them; one number
      for all members, or a tuple with one per member; 0: they begin at their full height

    >>> Optimizer("adam", rate=(1e-4, 1e-3), clip=0.5).rates(2)
    (0.0001, 0.001)
    """

    kind: Kind = "adam"
    rate: float | tuple[float, ...] = 1e-3
    momentum: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    clip: float | None = None
    renew_every: int | None = None
    decay: float = 1.0
    decay_every: int | None = None
    warm_up: int | tuple[int, ...] = 0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind must be one of {', '.join(get_args(Kind))}, got {self.kind!r}")
        for rate in self.rate if isinstance(self.rate, tuple) else (self.rate,):
            if not isinstance(rate, (int, float)):
                raise ValueError(f"rate must be a number, or a tuple with one for each member, got {rate!r}")
            if not (math.isfinite(rate) and rate >= 0):
                raise ValueError(f"rate must be finite and not negative, got {rate}")
        if self.momentum and self.kind not in ("sgd", "muon"):
            raise ValueError(f"momentum belongs to sgd; {self.kind} has betas")
        for name in ("epsilon", "weight_decay"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"{name} must be finite and not negative, got {getattr(self, name)}")
        if len(self.betas) != 2:
            raise ValueError(f"betas must be two numbers, got {self.betas}")
        if not all(0 <= one < 1 for one in (self.momentum, *self.betas)):
            got = f"{self.momentum}, {self.betas}"
            raise ValueError(f"momentum and betas must be at least 0 and less than 1, got {got}")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip must be positive, or None for none, got {self.clip}")
        if self.renew_every is not None and self.renew_every < 1:
            raise ValueError(f"renew_every must be at least 1, got {self.renew_every}")
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay must lie above 0 and be at most 1, got {self.decay}")
        if (self.decay_every is None) != (self.decay == 1) or (self.decay_every is not None and self.decay_every < 1):
            wanted = "say after how many steps to decay, and only if decay is less than 1"
            raise ValueError(f"decay_every must {wanted}, got decay {self.decay}, decay_every {self.decay_every}")
        for steps in self.warm_up if isinstance(self.warm_up, tuple) else (self.warm_up,):
            if not isinstance(steps, int) or steps < 0:
                raise ValueError(f"warm_up must be a number of steps, or a tuple with one per member, got {steps!r}")

    def rates(self, members: int) -> tuple[float, ...]:
        """One rate per member."""
        return _one_each(self.rate, "rate", members)

    def warm_ups(self, members: int) -> tuple[int, ...]:
        """Steps of warming up, one number per member.

        >>> Optimizer(warm_up=(0, 100)).warm_ups(2)
        (0, 100)
        """
        return _one_each(self.warm_up, "warm_up", members)

    @property
    def state_kind(self) -> str:
        """What the state holds: optimizers of one kind can take over each other's."""
        if self.kind == "muon":
            return "three means"
        return "two means" if self.kind != "sgd" else "velocity" if self.momentum else "none"

    def start(self, parameters: Tensors) -> list[Tensor]:
        """The state before the first step: none, one or two tensors of zeros, (members, numbers of all parameters)."""
        count = {"three means": 3, "two means": 2, "velocity": 1, "none": 0}[self.state_kind]
        return [torch.zeros_like(_in_rows(parameters)) for _ in range(count)]

    def update(self, parameters: Tensors, gradients: Tensors, state: Tensors, rates: Tensor, age: Tensor) -> None:
        """One step in place. rates (members,); age: steps since the state was renewed, counting this one.

        All parameters of a member stand in one row: fifteen small tensors would take fifteen times as many calls.
        """
        g = _in_rows(gradients)
        rate = rates.to(g.dtype)[:, None]
        if self.clip is not None:
            g.mul_((self.clip / (torch.linalg.vector_norm(g, dim=1, keepdim=True) + 1e-6)).clamp(max=1.0))
        decoupled = self.kind in ("adamw", "muon")
        if self.weight_decay and not decoupled:
            g.add_(_in_rows(parameters), alpha=self.weight_decay)
        if self.kind == "sgd":
            change = rate * (state[0].mul_(self.momentum).add_(g) if state else g)
        else:
            corrected = [(1 - beta**age).to(g.dtype) for beta in self.betas]
            first = state[0].lerp_(g, 1 - self.betas[0])
            second = state[1].mul_(self.betas[1]).addcmul_(g, g, value=1 - self.betas[1])
            # Both corrections of the usual formula at once: its fraction times the root of the second one.
            root = corrected[1].sqrt()
            change = (first / second.sqrt().add_(root * self.epsilon)).mul_(rate * root / corrected[0])
        changes = by_parameter(change, parameters)
        if self.kind == "muon":
            pushed = by_parameter(g.lerp(state[2].lerp_(g, 1 - self.momentum), self.momentum), parameters)
            for i, p in enumerate(parameters):
                if p.ndim == MATRICES:
                    size = LIKE_ADAM * max(p.shape[-2:]) ** 0.5
                    changes[i] = orthogonal(pushed[i], ROUNDS).to(p.dtype) * _as_column(rate, p) * size
        for p, part in zip(parameters, changes, strict=True):
            if self.weight_decay and decoupled:
                p.mul_(1 - _as_column(rate, p) * self.weight_decay)
            p.sub_(part)


def by_parameter(rows: Tensor, parameters: Tensors) -> list[Tensor]:
    """What stands in rows, one per member, as views in the shapes of the parameters.

    >>> [part.shape for part in by_parameter(torch.zeros(2, 5), [torch.zeros(2, 3), torch.zeros(2, 1, 2)])]
    [torch.Size([2, 3]), torch.Size([2, 1, 2])]
    """
    parts = rows.split([p.numel() // len(p) for p in parameters], dim=1)
    return [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]


def _in_rows(tensors: Tensors) -> Tensor:
    """A copy of all numbers of a member in one row, (members, numbers)."""
    return torch.cat([tensor.reshape(len(tensor), -1) for tensor in tensors], dim=1)


def _one_each(given: Any, name: str, members: int) -> tuple[Any, ...]:
    """One number for all members, or a tuple that has one for each, as the latter."""
    if not isinstance(given, tuple):
        return (given,) * members
    if len(given) != members:
        raise ValueError(f"{name} has {counted(len(given), 'entry', 'entries')} for {counted(members, 'member')}")
    return given


def _as_column(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *[1] * (like.ndim - 1))
