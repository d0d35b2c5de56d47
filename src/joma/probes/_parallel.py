"""How a model lies on several processes: what is split, by whom, and which heads of attention are here.

Data-parallel processes hold the same model (DDP), or parts of its weights that a pass puts together (FSDP2). Tensor-
parallel ones hold parts of the weights and compute with those: each has some heads of every attention. Such a team
must read the same rows of a batch.

None of torch's parallel rooms is loaded here: where nobody loaded them there is nothing to find.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from torch import nn

from joma.host.errors import BadInput
from joma.probes._record import plain_name


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside torch.compile, DataParallel and DistributedDataParallel, so that names do not depend on them."""
    while True:
        if "_orig_mod" in model._modules:
            model = cast(nn.Module, model._orig_mod)
        elif isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        else:
            return model


def is_compiled(model: nn.Module) -> bool:
    """Whether torch.compile has made code of a model or of a part of it, as far as the model itself tells."""
    return any("_orig_mod" in each._modules or each._compiled_call_impl is not None for each in model.modules())


def is_split(value: Any) -> bool:
    """Whether a tensor is a DTensor."""
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return kind is not None and isinstance(value, kind)


def axis_of(placement: Any) -> int | None:
    """The axis of a tensor that a mesh dimension splits; None where it holds copies."""
    return getattr(placement, "dim", None)


def is_first_copy(value: Any) -> bool:
    """Whether this process counts where several of a mesh hold the same part of a DTensor."""
    at = value.device_mesh.get_coordinate()
    return not any(at[dim] for dim, each in enumerate(value.placements) if axis_of(each) is None)


def mesh_ranks(value: Any) -> tuple[int, ...]:
    """The processes that hold parts of a DTensor together; none of a plain tensor."""
    return tuple(sorted(value.device_mesh.mesh.flatten().tolist())) if is_split(value) else ()


def _fsdp() -> Any:
    """The class of modules that fully_shard has made, or None."""
    return getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)


def must_be_supported(model: nn.Module) -> None:
    """Refuse what the older FSDP wraps: it joins all weights to one vector, cut wherever a process begins."""
    older = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", None)
    if older is not None and any(isinstance(each, older) for each in model.modules()):
        raise BadInput(
            "model is wrapped in FullyShardedDataParallel, which cuts matrices anywhere: use torch's fully_shard",
            argument="model",
        )


def reshard(model: nn.Module) -> None:
    """Let every process of FSDP2 hold its part alone. A pass without gradients leaves the root whole."""
    kind = _fsdp()
    for each in model.modules() if kind is not None else ():
        if isinstance(each, kind):
            each.reshard()


@contextmanager
def resharded(model: nn.Module) -> Iterator[None]:
    """Afterwards every process of FSDP2 holds its part alone."""
    try:
        yield
    finally:
        reshard(model)


def class_name(model: nn.Module) -> str:
    """The name of its class before fully_shard made another of it, so that a record can go on without FSDP."""
    kind = _fsdp()
    return next(each.__name__ for each in type(model).__mro__ if kind is None or not issubclass(each, kind))


class Team:
    """The processes that compute one pass together, each with some heads of every attention: tensor parallelism."""

    def __init__(self, model: nn.Module) -> None:
        """model: with its weights in parts, as between two passes."""
        self._modules = {plain_name(name) or type(model).__name__: each for name, each in model.named_modules()}
        kind = _fsdp()
        self._of_fsdp = {
            id(weight)
            for each in (model.modules() if kind is not None else ())
            if isinstance(each, kind)
            for weight in each.parameters()
        }
        self.ranks = tuple(sorted({rank for each in model.parameters() for rank in self._partners(each)}))
        """Their numbers among all processes; empty: this process computes alone."""

    def part(self, layer: str) -> int:
        """Which part of the heads of a layer is here: 0 for the first ones, and where all heads are."""
        for weight in _weights_near(self._modules, layer):
            dims = [dim for dim in self._dims(weight) if axis_of(weight.placements[dim]) == 0]  # outputs of a Linear
            if dims:
                mesh, at = weight.device_mesh, 0
                for dim in dims:
                    at = at * mesh.size(dim) + mesh.get_coordinate()[dim]
                return at
        return 0

    def _dims(self, weight: Any) -> list[int]:
        if not is_split(weight):
            return []
        dims = [dim for dim, each in enumerate(weight.placements) if axis_of(each) is not None]
        # FSDP2 puts its own split before those that it finds, and puts it together for a pass.
        return dims[1:] if id(weight) in self._of_fsdp else dims

    def _partners(self, weight: Any) -> list[int]:
        if not (dims := self._dims(weight)):
            return []
        mesh = weight.device_mesh
        at = tuple(slice(None) if dim in dims else each for dim, each in enumerate(mesh.get_coordinate()))
        found: list[int] = mesh.mesh[at].flatten().tolist()
        return found


def _weights_near(modules: dict[str, nn.Module], layer: str) -> list[Any]:
    """Those of the module that attends; of the one around it where it has none, as where attention is a module."""
    name = layer
    while True:
        weights: list[Any] = list(modules[name].parameters()) if name in modules else []
        if weights or not name:
            return weights
        name = name.rpartition(".")[0]
