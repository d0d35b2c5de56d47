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
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache, partial
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from joma.host.errors import JomaError

_OF_TORCH = frozenset(vars(nn.Module()))  # hooks and the like, which no pass fills; there are many of them
_FIXED = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    torch.dtype,
    torch.device,
)  # values that stay what they are


class WeightChanged(JomaError, ValueError):
    """A pass that changes a parameter, which would not come back."""


@contextmanager
def untouched(model: nn.Module, autocast: torch.dtype | None = None) -> Iterator[list["HeldBy"]]:
    """Inside, `model` is in evaluation mode without gradients; afterwards all is as it was. Gives what will come back.

    autocast: the type that `torch.autocast` has inside, on the devices of the model; None: as outside.
    """
    modules = list(dict.fromkeys(model.modules()))
    states = [HeldBy(module) for module in modules]
    parameters = list(parameters_of(modules))
    versions = [each._version for each in parameters]
    devices = devices_of(model, modules)
    with ExitStack() as around:
        around.enter_context(random_numbers_kept(devices))
        for kind in sorted({device.type for device in devices} | {"cpu"}):
            if torch.amp.is_autocast_available(kind):
                asked = autocast if kind in {device.type for device in devices} else None
                around.enter_context(_autocast(kind, asked))
        around.enter_context(torch.no_grad())
        try:
            for module in modules:
                if module.training:
                    vars(module)["training"] = False  # torch's own way to set attributes takes ten times as long
            yield states
        finally:
            for state in states:
                state.restore()
    if [each._version for each in parameters] != versions:
        changed = next(each for each, before in zip(parameters, versions, strict=True) if each._version != before)
        name = next((name for name, each in model.named_parameters() if each is changed), "a weight")
        raise WeightChanged(f"a forward pass of {type(model).__name__} changes {name}: it cannot be monitored")


class HeldBy:
    """What one module holds beside parameters and submodules."""

    def __init__(self, module: nn.Module) -> None:
        """module: whose."""
        self.module = module
        self.buffers = dict(module._buffers)
        self.plain = dict(vars(module))
        own = [each for name, each in self.plain.items() if type(each) not in _FIXED and name not in _OF_TORCH]
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
        _put_back(self.module._buffers, self.buffers)
        _put_back(vars(self.module), self.plain)


def _put_back(now: dict[str, Any], before: dict[str, Any]) -> None:
    """The entries of `before` and no new ones. What is the same is not written: compiled code watches these."""
    if len(now) == len(before) and all(map(is_, now.values(), before.values())):
        return
    for name in [name for name in now if name not in before]:
        del now[name]
    for name, value in before.items():
        if name not in now or now[name] is not value:
            now[name] = value


def _contents(holder: Any) -> list[Any]:
    """What a container holds, one level deep; nothing of anything else."""
    if isinstance(holder, dict):
        return list(holder.values())
    return list(holder) if isinstance(holder, list | set | deque) else []


@lru_cache(4096)
def _kind(held: type) -> type | None:
    """Which of the kinds that `_put_back_inside` knows a type is; asking torch's own takes long."""
    kinds = (dict, list, set, deque, torch.Generator, random.Random, np.random.Generator)
    return next((kind for kind in kinds if issubclass(held, kind)), None)


def _put_back_inside(value: Any) -> Callable[[], Any] | None:
    """What gives a container or a generator of random numbers its contents of now again; None for anything else."""
    kind = _kind(type(value))  # type: ignore[arg-type]
    if kind in (dict, list, set, deque):
        return partial(_refill, value, list(value.items()) if kind is dict else list(value))
    if kind is torch.Generator:
        return partial(value.set_state, value.get_state())
    if kind is random.Random:
        return partial(value.setstate, value.getstate())
    if kind is np.random.Generator:
        return partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    return None


def _refill(holder: Any, before: list[Any]) -> None:
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


def parameters_of(modules: Iterable[nn.Module]) -> Iterator[nn.Parameter]:
    """Those of modules themselves, in order; one that is shared comes more than once."""
    return (each for module in modules for each in module._parameters.values() if each is not None)


def devices_of(model: nn.Module, modules: Iterable[nn.Module] | None = None) -> list[torch.device]:
    """Where parameters and buffers are, each device once; modules: those of the model, where they are at hand."""
    listed = list(model.modules() if modules is None else modules)
    buffers = (each for module in listed for each in module._buffers.values() if each is not None)
    return list(dict.fromkeys(each.device for each in (*parameters_of(listed), *buffers)))


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


def _autocast(kind: str, asked: torch.dtype | None) -> torch.autocast:
    if asked is not None:
        return torch.autocast(kind, dtype=asked, cache_enabled=False)
    return torch.autocast(
        kind, dtype=torch.get_autocast_dtype(kind), enabled=torch.is_autocast_enabled(kind), cache_enabled=False
    )
