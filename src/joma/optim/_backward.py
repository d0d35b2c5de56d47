"""Gradients that are taken during backward, each as soon as it is complete, and freed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from joma.optim._matrix import is_sharded

WAITING_SHARE = 4  # where large steps are faster, gradients wait until they are so large a part of the largest
_HOOKS = WeakTensorKeyDictionary()  # one per parameter: were there two, the second would find no gradient
Take = Callable[[nn.Parameter], None]


class InBackward:
    """Whose gradients were taken before a step, and whose are waiting to be used."""

    def __init__(self, *, per_layer: bool) -> None:
        """With per_layer each gradient is used once, and microbatches cannot add up."""
        self.per_layer = per_layer
        self.most_waiting = 0  # entries of gradients that may wait for others
        self.most_put_off = 0  # and of those that may wait for the step
        self._hooks: dict[int, BackwardHook] = {}
        self._taken: set[int] = set()
        self._waiting: list[nn.Parameter] = []
        self._put_off: list[nn.Parameter] = []

    def start(self, named: Iterable[tuple[str, nn.Parameter]], take: Take) -> None:
        """Hooks of those parameters that have none."""
        for name, parameter in named:
            if id(parameter) not in self._hooks:
                self._hooks[id(parameter)] = BackwardHook(name, parameter, take)

    def let_wait(self, largest: int, *, stacked: bool) -> None:
        """Gradients wait for each other where products are stacked; `largest`: entries of the largest parameter."""
        self.most_waiting = largest // WAITING_SHARE if stacked else 0
        self.most_put_off = largest

    def take(self, parameter: nn.Parameter) -> None:
        """A gradient is taken; with per_layer a second one before a step is refused."""
        if self.per_layer and id(parameter) in self._taken:
            raise ValueError(
                f"{self._hooks[id(parameter)].name} has a second gradient before step(): per_layer updates in every "
                "backward, so microbatches cannot add up; give project_in_backward instead"
            )
        self._taken.add(id(parameter))

    def wait(self, parameter: nn.Parameter) -> bool:
        """Let a gradient wait for the next ones; False if so many wait that it is time to use them."""
        self._waiting.append(parameter)
        return sum(each.numel() for each in self._waiting) < self.most_waiting

    def put_off(self, parameter: nn.Parameter) -> bool:
        """Let a gradient wait for the step; False if too many do already."""
        if sum(each.numel() for each in (*self._put_off, parameter)) > self.most_put_off:
            return False
        self._put_off.append(parameter)
        return True

    def release(self, *, all_of_them: bool = False) -> list[nn.Parameter]:
        """Those that have waited; all_of_them: those that were put off, too."""
        waiting, self._waiting = self._waiting, []
        if all_of_them:
            waiting, self._put_off = waiting + self._put_off, []
        return waiting

    def check(self) -> None:
        """At a step: refuse what cannot be right, and begin anew."""
        for key, hook in self._hooks.items():
            hook.check(taken=key in self._taken)
        self.forget()

    def forget(self) -> None:
        """As if no gradient had been taken."""
        self._taken.clear()


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
