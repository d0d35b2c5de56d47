"""Which experts the routers of a model choose in a pass: the share of the choices that each expert gets."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from joma.host.errors import BadInput
from joma.monitor.errors import MonitorError
from joma.monitor.names import Names
from joma.monitor.tables import Rows
from joma.probes._record import plain_name

_COUNTS = ("num_experts", "n_routed_experts", "num_local_experts")
_SENTENCE = "router_load needs routers, modules whose class is called ...Router and that give the experts they choose"


class Routers:
    """The routers of a model, and what they chose in the pass that was watched last."""

    def __init__(self, model: nn.Module, names: Names) -> None:
        """model: whose. names: which of them are followed."""
        every = {plain_name(name): module for name, module in model.named_modules() if _is_router(module)}
        self._routers = {name: module for name, module in every.items() if name in names}
        if not self._routers:
            raise BadInput(f"{_SENTENCE}, and {type(model).__name__} has none that is followed", argument="measures")
        self._seen: dict[str, Tensor] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within, choices are counted; those of several calls of a router together."""
        self._seen = {}
        with ExitStack() as hooks:
            for name, module in self._routers.items():
                hook = lambda module, _, output, name=name: self._see(name, module, output)
                hooks.callback(module.register_forward_hook(hook).remove)
            yield

    def router_load(self) -> dict[str, Tensor]:
        """(experts,) of every router: the shares of its choices."""
        if silent := [name for name in self._routers if name not in self._seen]:
            raise MonitorError(f"the router {silent[0]} was not called in the pass over the probe batch")
        return {name: each / each.sum().clamp(min=1) for name, each in self._seen.items()}

    @property
    def rows(self) -> Rows:
        return Rows(tuple(self._routers), tuple(map(len, self.router_load().values())), kinds=("layer", "expert"))

    def _see(self, name: str, module: nn.Module, output: Any) -> None:
        counts = _counts(module, output)
        self._seen[name] = self._seen[name] + counts if name in self._seen else counts


def _is_router(module: nn.Module) -> bool:
    name = type(module).__name__
    return name.endswith("Router") or name in ("JetMoeTopKGating", "HunYuanMoEV1Gate")


def _counts(module: nn.Module, output: Any) -> Tensor:
    """(experts,): how often each was chosen. Choices are numbers of experts, or a column per expert with ones."""
    tensors = [each for each in (output if isinstance(output, tuple | list) else (output,)) if isinstance(each, Tensor)]
    chosen = next((each for each in tensors if not each.is_floating_point()), None)
    widths = [getattr(module, name) for name in _COUNTS if isinstance(getattr(module, name, None), int)]
    experts = max(widths or [each.shape[-1] for each in tensors if each.is_floating_point() and each.ndim > 1] or [0])
    if chosen is None or not experts:
        raise MonitorError(f"{_SENTENCE}; {type(module).__name__} gives none")
    if chosen.shape[-1] == experts:
        return chosen.reshape(-1, experts).sum(0).float()
    return torch.zeros(experts, device=chosen.device).index_add_(
        0, chosen.reshape(-1).long(), torch.ones(chosen.numel(), device=chosen.device)
    )
