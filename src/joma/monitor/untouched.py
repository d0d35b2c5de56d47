"""A forward pass that leaves no trace: training goes on bit for bit as it would have without it.

What a pass can change, and how it comes back:

- `training` of every module: the attribute alone is set. `eval()` is not called, since some modules merge weights in it
- buffers and other tensors that a module holds (batch norm, load counters, amax): copied before, written back after
- plain attributes (counters, caches): those that were there come back, new ones go
- lists, dictionaries, sets and queues that a module holds (losses that a pass appends): what was in them comes back
- random numbers of torch (CPU, CUDA, MPS), Python and numpy, and generators that a module holds
- autocast: the same types as outside, without its cache, in which casts made without gradients would stay behind
- gradients: the pass runs under `no_grad`

A parameter that a pass changes is not restored: a copy of all weights would double their memory. Such a model is
refused by the first pass. Nor is what lies deeper: in objects that a module holds, or in lists within lists.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from joma.monitor.errors import MonitorError

_KEPT_ELSEWHERE = {"_parameters", "_buffers", "_modules", "training"}
_OF_TORCH = frozenset(vars(nn.Module()))  # hooks and the like, which no pass fills; there are many of them


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Inside, `model` is in evaluation mode without gradients; afterwards all is as it was."""
    modules = list(model.modules())
    states = [_State(module) for module in modules]
    versions = {name: each._version for name, each in model.named_parameters()}
    with ExitStack() as around:
        around.enter_context(random_numbers_kept(devices_of(model)))
        for kind in sorted({device.type for device in devices_of(model)} | {"cpu"}):
            if torch.amp.is_autocast_available(kind):
                around.enter_context(_autocast_as_outside(kind))
        around.enter_context(torch.no_grad())
        try:
            for module in modules:
                if module.training:
                    module.training = False
            yield
        finally:
            for state in states:
                state.restore()
    for name, each in model.named_parameters():
        if each._version != versions.get(name):
            raise MonitorError(f"a forward pass of {type(model).__name__} changes {name}: it cannot be monitored")


class _State:
    """What one module holds beside parameters and submodules."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.training = module, module.training
        self.buffers = dict(module._buffers)
        self.plain = {name: each for name, each in vars(module).items() if name not in _KEPT_ELSEWHERE}
        own = [each for name, each in self.plain.items() if name not in _OF_TORCH]
        inside = [each for holder in own for each in _contents(holder)]
        held = [*self.buffers.values(), *own, *inside]
        self.tensors = [(each, each.detach().clone()) for each in held if _can_change(each)]
        self.others = [put_back for each in own if (put_back := _put_back_inside(each)) is not None]

    def restore(self) -> None:
        """As it was; `.data`, so that a graph that holds a buffer does not take it for changed."""
        for tensor, before in self.tensors:
            tensor.data.copy_(before)
        for put_back in self.others:
            put_back()
        _put_back(self.module._buffers, self.buffers, set())
        _put_back(vars(self.module), self.plain, _KEPT_ELSEWHERE)
        if self.module.training != self.training:
            self.module.training = self.training


def _put_back(now: dict[str, Any], before: dict[str, Any], others: set[str]) -> None:
    """The entries of `before` and no new ones. What is the same is not written: compiled code watches these."""
    for name in [name for name in now if name not in before and name not in others]:
        del now[name]
    for name, value in before.items():
        if name not in now or now[name] is not value:
            now[name] = value


def _contents(holder: Any) -> list[Any]:
    """What a container holds, one level deep; nothing of anything else."""
    if isinstance(holder, dict):
        return list(holder.values())
    return list(holder) if isinstance(holder, list | set | deque) else []


def _put_back_inside(value: Any) -> Callable[[], Any] | None:
    """What gives a container or a generator of random numbers its contents of now again; None for anything else."""
    if isinstance(value, dict | list | set | deque):
        return partial(_refill, value, list(value.items()) if isinstance(value, dict) else list(value))
    if isinstance(value, torch.Generator):
        return partial(value.set_state, value.get_state())
    if isinstance(value, random.Random):
        return partial(value.setstate, value.getstate())
    if isinstance(value, np.random.Generator):
        return partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    return None


def _refill(holder: Any, before: list[Any]) -> None:
    """What is the same is not written."""
    keyed = isinstance(holder, dict)
    now = list(holder.items()) if keyed else list(holder)
    if len(now) == len(before) and all(_is(a, b, keyed) for a, b in zip(now, before, strict=True)):
        return
    holder.clear()
    (holder.update if isinstance(holder, dict | set) else holder.extend)(before)


def _is(one: Any, other: Any, keyed: bool) -> bool:
    return one[0] is other[0] and one[1] is other[1] if keyed else one is other


def _can_change(value: Any) -> bool:
    """Whether a pass could write to it in place: not where torch itself forbids that."""
    if not isinstance(value, Tensor) or isinstance(value, nn.Parameter) or value.is_meta or value.is_inference():
        return False
    repeated = value.layout is torch.strided and any(
        size > 1 and stride == 0 for size, stride in zip(value.shape, value.stride(), strict=True)
    )
    return not repeated


def devices_of(model: nn.Module) -> list[torch.device]:
    """Where parameters and buffers are, each device once."""
    return list(dict.fromkeys(each.device for each in (*model.parameters(), *model.buffers())))


@contextmanager
def random_numbers_kept(devices: list[torch.device]) -> Iterator[None]:
    """Whatever is drawn inside, the next numbers outside are those that would have come."""
    plain, numpys = random.getstate(), np.random.get_state()  # noqa: NPY002
    metal = torch.mps.get_rng_state() if any(device.type == "mps" for device in devices) else None
    try:
        with torch.random.fork_rng([device for device in devices if device.type == "cuda"]):
            yield
    finally:
        random.setstate(plain)
        np.random.set_state(numpys)  # noqa: NPY002
        if metal is not None:
            torch.mps.set_rng_state(metal)


def _autocast_as_outside(kind: str) -> torch.autocast:
    return torch.autocast(
        kind, dtype=torch.get_autocast_dtype(kind), enabled=torch.is_autocast_enabled(kind), cache_enabled=False
    )
