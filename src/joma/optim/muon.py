"""Muon: momentum whose matrix is replaced by the nearest orthogonal one, so that every direction moves equally far.

torch.optim.Muon does the same, one matrix after another and always in bfloat16, which many CPUs lack. Here matrices of
one shape go together, and the products have bfloat16 on a GPU alone.
"""

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from joma.host.words import counted
from joma.optim._groups import (
    FLATTENED,
    Members,
    Params,
    Projected,
    default_names,
    embedding_names,
    kernel_names,
    read_groups,
)
from joma.optim._inner import Make, Trial, check_keys, check_misspelt
from joma.optim._matrix import full_tensor, local, one_number, part_like, shrink_and_add
from joma.optim._state import check_plain_state
from joma.optim.galore import SKIP

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic with which Muon moves all singular values close to 1 in few steps."""
MOST_ROUNDS = 100  # as of torch's: a number that a damaged state holds must not make a step endless
LIKE_ADAM = 0.2
"""The root mean square of Adam's updates, about: with it Muon can use the rates of Adam."""


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, made orthogonal. Equal shapes go together.

    With `others` it takes a whole model: that optimizer has what is no matrix, and embeddings and the head. Its groups
    and states are Muon's own, so schedules, checkpoints and FSDP2 see one optimizer.

    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.LayerNorm(6))
    >>> optimizer = Muon(model, lr=0.1, others=torch.optim.AdamW)
    >>> model(torch.ones(1, 4)).square().sum().backward()
    >>> optimizer.step()
    >>> [sorted(optimizer.state[each]) for each in model[0].parameters()]
    [['momentum_buffer'], ['exp_avg', 'exp_avg_sq', 'step']]
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        *,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        rounds: int = 5,
        others: Make | None = None,
        skip: Iterable[str] = SKIP,
        **options: Any,
    ) -> None:
        """Take matrices, or with `others` all parameters of a model.

        - params: matrices, stacks of matrices (experts), or groups of them; with `others` a module, named parameters,
          or groups of these
        - lr: the update has entries of about 0.2 lr, so that rates of Adam can be used
        - momentum: of the average of gradients
        - weight_decay: shrinks the weights by lr * weight_decay
        - rounds: of the Newton-Schulz iteration
        - others: makes the optimizer of all other parameters, as torch.optim.AdamW does; it gets the same lr and
          weight_decay unless it is a `functools.partial` with its own
        - skip: names of weights that it gets too, as those of `GaLore`; embeddings of a module always
        - options: handed to it
        """
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be at least 0 and below 1, got {momentum!r}")
        if isinstance(rounds, bool) or not isinstance(rounds, int) or not 1 <= rounds <= MOST_ROUNDS:
            raise ValueError(f"rounds must be a whole number from 1 to {MOST_ROUNDS}, got {rounds!r}")
        self._own = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "rounds": rounds}
        self._make, self._members, self._accepted = others, None, set[str]()
        self.others: torch.optim.Optimizer | None = None
        groups: Any = params
        if others is not None:
            self._accepted = {*inspect.signature(others).parameters} - {"params"}
            check_misspelt(options, inspect.signature(Muon.__init__).parameters, self._accepted)
            known = {"lr", "weight_decay"} & self._accepted - {*getattr(others, "keywords", ())}
            self._make = partial(others, **{key: self._own[key] for key in known} | options)
            self._members = Members(tuple(skip), embedding_names(params), kernel_names(params), Projected())
            groups = read_groups(params)
            names = {name for each in groups for name in each["param_names"]}
            if skip and (unnamed := default_names(groups) & names):
                raise ValueError(
                    f"{min(unnamed)} has no name, so others= cannot have embeddings and heads: give the model or "
                    "model.named_parameters(), or skip=() for matrices alone"
                )
        elif options:
            raise ValueError(f"there is no option {min(options)!r}: those of another optimizer need others=")
        super().__init__(groups, self._own)
        if not any(map(_is_own, self.param_groups)):
            raise ValueError("params holds no matrix for Muon")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; with `others` its matrices and the rest become a group each.

        - param_group: `params` and options, as a group of the constructor
        """
        if self._members is None:
            super().add_param_group(param_group)
            if wrong := [each for each in self.param_groups[-1]["params"] if each.ndim < 2]:
                shape = tuple(wrong[0].shape)
                raise ValueError(f"params must hold matrices, got one of shape {shape}: give others= for the rest")
            return
        (group,) = read_groups([param_group], len(self.param_groups))
        options = {key: value for key, value in group.items() if key not in ("params", "param_names")}
        check_keys([options], self._accepted | {*self._own}, {len(self.param_groups): Trial()})
        halves: dict[bool, list[Any]] = {True: [], False: []}
        for name, each in zip(group["param_names"], group["params"], strict=True):
            halves[self._members.is_matrix(name, each)].append((name, each))
        if halves[False]:
            rest = {key: value for key, value in options.items() if key not in ("momentum", "rounds")}
            rest["params"] = halves[False]
            if self.others is None:
                assert self._make is not None
                self.others = self._make([rest])
                self.state.update(self.others.state)  # Adagrad has one before its first step
                self.others.state = self.state
            else:
                self.others.add_param_group(rest)
            self.param_groups.append(self.others.param_groups[-1])  # their groups and states are ours
        if halves[True]:
            theirs = self._accepted - {*self._own}
            options = {key: value for key, value in options.items() if key not in theirs}
            super().add_param_group({**options, "params": halves[True]})

    def optimizer_of(self, group: dict[str, Any]) -> torch.optim.Optimizer:
        """Who trains a group: Muon itself, or `others`.

        - group: of `param_groups`
        """
        return self if self.others is None or _is_own(group) else self.others

    def __getstate__(self) -> dict[str, Any]:
        mine = ("_own", "_make", "_members", "_accepted", "others")
        return {**super().__getstate__(), **{key: vars(self)[key] for key in mine}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Loading gives new groups and states, which are those of `others` too."""
        super().__setstate__(state)
        if self.others is not None:
            theirs = [group for group in self.param_groups if not _is_own(group)]
            self.others.__setstate__({"state": self.state, "param_groups": theirs})

    def __repr__(self) -> str:
        few = counted(sum(len(group["params"]) for group in self.param_groups if _is_own(group)), "matrix", "matrices")
        rest = "" if self.others is None else f", {type(self.others).__name__} for the rest"
        return f"Muon({few}, lr={self.defaults['lr']}{rest})"

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every matrix that has a gradient; returns what the closure gives.

        - closure: computes the loss and its gradients; it is evaluated once, before the update
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in filter(_is_own, self.param_groups):
            shapes: dict[object, list[Tensor]] = {}
            for each in group["params"]:
                if each.ndim < 2:
                    raise ValueError(FLATTENED)
                if each.grad is not None:
                    shapes.setdefault((each.shape, each.dtype, each.device), []).append(each)
            for alike in shapes.values():
                self._multi_tensor(alike, group)
        if self.others is not None:
            self.others.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state.

        - state_dict: what state_dict() gave; one that does not fit, is not whole or not finite is refused by a
          `StateError`, and nothing is changed
        """
        check_plain_state(self, state_dict, self.optimizer_of)
        super().load_state_dict(state_dict)

    def _multi_tensor(self, alike: list[Tensor], group: dict[str, Any]) -> None:
        """Of matrices of one shape; of those that FSDP2 has sharded each process makes the whole update orthogonal."""
        pushed = torch.stack([full_tensor(self._pushed(each, group["momentum"])) for each in alike])
        updates = orthogonal(pushed, group["rounds"])
        rate = one_number(group["lr"])
        size = rate * LIKE_ADAM * max(alike[0].shape[-2:]) ** 0.5
        shrink = 1 - rate * group["weight_decay"]
        for each, update in zip(alike, updates.unbind(), strict=True):
            shrink_and_add(local(each), part_like(update, each), -size, shrink)

    def _pushed(self, matrix: Tensor, share: float) -> Tensor:
        """The gradient with its momentum, one step ahead."""
        assert matrix.grad is not None
        state = self.state[matrix]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(matrix)
        momentum: Tensor = state["momentum_buffer"].lerp_(matrix.grad, 1 - share)
        return matrix.grad.lerp(momentum, share)


def _is_own(group: dict[str, Any]) -> bool:
    return "rounds" in group


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
