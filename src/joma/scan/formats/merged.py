"""An adapter together with the model that it belongs to: W + s B A, one weight at a time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from joma.host.words import counted
from joma.scan.checkpoint import Checkpoint
from joma.scan.errors import CheckpointError
from joma.scan.formats.adapter import CONFIG, Factors, factors_of, plain_name
from joma.scan.formats.tensor_file import Stored

_CHANGES_ITS_BASE = ("pissa", "olora", "corda", "loftq")  # the adapter then belongs to a base that was changed first


class MergedFile:
    """The tensors of a base; those that an adapter changes come out changed, in float32.

    base, adapter: their checkpoints, which are closed with this. settings: what adapter_config.json says. name: for
    messages.
    """

    def __init__(self, base: Checkpoint, adapter: Checkpoint, settings: Mapping[str, Any], name: str) -> None:
        """base, adapter, settings, name: as the class says."""
        self.name = name
        self._base, self._adapter = base, adapter
        start = settings.get("init_lora_weights")
        if isinstance(start, str) and start.lower().startswith(_CHANGES_ITS_BASE):
            raise CheckpointError(
                f"{CONFIG} says that the adapter began as {start[:40]!a}, which changes the base first: merge it with "
                "peft and scan the result",
                file=CONFIG,
            )
        self._turned = settings.get("fan_in_fan_out") is True
        stored, known = adapter.raw_names(), base.names()
        self._factors = {
            _target(factors.target, known, factors.down): factors for factors in factors_of(stored, settings)
        }
        whole = {plain_name(name): name for name in stored if ".lora_" not in name}
        self._replaced = {_target(plain, known, name): name for plain, name in whole.items()}
        self._tensors = {name: self._described(name) for name in known}
        if not self._factors:
            raise CheckpointError(f"{name} has no factors lora_A and lora_B, so there is nothing to merge", file=name)

    @property
    def tensors(self) -> Mapping[str, Stored]:
        return self._tensors

    @property
    def notes(self) -> tuple[str, ...]:
        merged = f"{counted(len(self._factors), 'weight')} of the base came out with the adapter merged into"
        own = f"{counted(len(self._replaced), 'tensor')} of the adapter took the place of the base's"
        said = [f"{merged} {'it' if len(self._factors) == 1 else 'them'}"]
        return (*self._base.notes(), *said, *([own] if self._replaced else []))

    def read(self, tensor: str) -> Tensor:
        own = self._replaced.get(tensor)
        weight = self._base.read(tensor) if own is None else self._adapter.take(own)
        return self._merged(tensor, weight.float(), self._factors[tensor]) if tensor in self._factors else weight

    def read_rows(self, tensor: str, start: int, stop: int) -> Tensor:
        if tensor in self._replaced or tensor in self._factors:
            return self.read(tensor)[start:stop]
        return self._base.read_rows(tensor, start, stop)

    def prefetch(self, tensor: str) -> None:
        if tensor not in self._replaced:
            self._base.prefetch(tensor)

    def close(self) -> None:
        self._base.close()
        self._adapter.close()

    def _described(self, name: str) -> Stored:
        own = self._replaced.get(name)
        stored = self._base.stored(name) if own is None else self._adapter.look(own)
        return Stored(stored.shape, torch.float32) if name in self._factors else stored

    def _merged(self, tensor: str, weight: Tensor, factors: Factors) -> Tensor:
        down, up = factors.taken(self._adapter)
        if factors.embedding or self._turned:  # an embedding, or a layer that keeps its weight as (inputs, outputs)
            down, up = up.T, down.T
        if weight.shape != (up.shape[0], down.shape[1]):
            raise CheckpointError(
                f"{tensor} has shape {tuple(weight.shape)} in the base, and the adapter adds a matrix of "
                f"{up.shape[0]} x {down.shape[1]}",
                tensor=tensor,
            )
        weight = weight.addmm(up.float(), down.float())
        return weight if factors.magnitude is None else self._rescaled(weight, factors.magnitude)

    def _rescaled(self, weight: Tensor, magnitude: str) -> Tensor:
        """DoRA: every output has the length that was learned for it."""
        length = self._adapter.take(magnitude).float().reshape(-1)
        dim = 0 if self._turned else 1
        if len(length) != weight.shape[1 - dim]:
            raise CheckpointError(f"{magnitude} has {len(length)} lengths for {weight.shape[1 - dim]} outputs")
        lengths: Tensor = torch.linalg.vector_norm(weight, dim=dim)
        return weight * (length / lengths).unsqueeze(dim)


def _target(name: str, known: Collection[str], source: str) -> str:
    """The tensor of the base that an adapter means; either may have words before the name that the other has not."""
    if name in known:
        return name
    fitting = [each for each in known if name.endswith(f".{each}") or each.endswith(f".{name}")]
    if len(fitting) != 1:
        what = "has no such tensor" if not fitting else f"has {len(fitting)} that it may mean"
        raise CheckpointError(
            f"{source} changes {name}, and the base {what}: it belongs to another base", tensor=source
        )
    return fitting[0]
