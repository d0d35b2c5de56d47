"""Somebody's own attention module: a function of a few lines tells its queries and keys.

    def queries_and_keys(module, x):
        q, k, _ = module.c_attn(x).chunk(3, -1)
        return [each.unflatten(-1, (module.n_head, -1)).transpose(1, 2) for each in (q, k)]

It is called with what the module was called with, after the module, and computes queries and keys once more. So it
does not matter how the module attends: by hand, by FlexAttention, by a kernel of its own.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from joma.host.arguments import shown
from joma.probes._products import measure_products
from joma.probes._record import Probe, ProbeError

Adapters = Mapping[type[nn.Module], Callable[..., Any]]
"""From classes of attention modules to functions that give their queries and keys."""


def checked_adapters(given: Any) -> Adapters:
    """`given`, if it leads from classes of modules to functions; None is none."""
    if given is None:
        return {}
    fits = isinstance(given, Mapping) and all(
        isinstance(kind, type) and issubclass(kind, nn.Module) and callable(tell) for kind, tell in given.items()
    )
    if not fits:
        wanted = "a mapping from classes of attention modules to functions that give queries and keys"
        raise ProbeError(f"attention must be {wanted}, got {shown(given)}")
    return dict(given)


def adapter_of(module: nn.Module, adapters: Adapters) -> Callable[..., Any] | None:
    """The function for the class of a module, or for the nearest class that it derives from."""
    return next((adapters[kind] for kind in type(module).__mro__ if kind in adapters), None)


@contextmanager
def adapted(probe: Probe, adapters: Adapters) -> Iterator[None]:
    """Measure every module that has an adapter inside the block; what it calls itself is not looked at."""
    with ExitStack() as hooks:
        for module in probe.names:
            if (tell := adapter_of(module, adapters)) is not None:
                hooks.push(attached(module, Leaving(probe, tell)))
        yield


def attached(module: nn.Module, leaving: "Leaving") -> ExitStack:
    """The hooks that measure one module; closing it takes them off. Compiled code runs none."""
    probe = leaving.probe

    def entered(_: nn.Module, inputs: Any) -> None:
        if not torch.compiler.is_compiling():
            probe.adapted += 1

    def left(_: nn.Module, inputs: Any, output: Any = None) -> None:
        if not torch.compiler.is_compiling():
            probe.adapted -= 1

    hooks = ExitStack()
    hooks.enter_context(module.register_forward_pre_hook(entered))
    hooks.enter_context(module.register_forward_hook(leaving, with_kwargs=True))
    hooks.enter_context(module.register_forward_hook(left, always_call=True))
    return hooks


class Leaving:
    """A forward hook that measures the module which has just attended."""

    def __init__(self, probe: Probe, tell: Callable[..., Any]) -> None:
        self.probe, self.tell = probe, tell

    def __call__(self, module: nn.Module, inputs: Any, options: Any, output: Any) -> None:
        if not self.probe.running or self.probe.adapted > 1:
            return
        with torch.no_grad():
            q, k, masks = _queries_and_keys(module, self.tell(module, *inputs, **options))
        try:
            measure_products(self.probe, self.probe.names[module], q, k, None, masks)
        except (TypeError, ValueError) as error:
            kind = type(module).__name__
            raise ProbeError(f"what the function for {kind} in attention gives cannot be measured: {error}") from error


def _queries_and_keys(module: nn.Module, given: Any) -> tuple[Tensor, Tensor, dict[str, Any]]:
    parts = tuple(given) if isinstance(given, tuple | list) else ()
    tensors = len(parts) in (2, 3) and all(isinstance(each, Tensor) and each.ndim == 4 for each in parts[:2])
    if not tensors or (len(parts) == 3 and not isinstance(parts[2], Mapping)):
        wanted = "queries and keys, each (batch, heads, length, width), and at most a mapping of options"
        raise ProbeError(
            f"the function for {type(module).__name__} in attention must give {wanted}, got {shown(given)}"
        )
    q, k, *masks = parts
    return q, k, dict(masks[0]) if masks else {}
