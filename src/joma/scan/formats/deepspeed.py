"""Folders that DeepSpeed and programs on top of it wrote (Megatron-DeepSpeed, GPT-NeoX).

- `mp_rank_00_model_states.pt`, ...: the weights under "module", one file per part of tensor parallelism. ZeRO stages 1
  and 2 leave them whole, in 16 bits.
- `layer_03-model_00-model_states.pt`, ...: one file per layer of a pipeline, and per part of tensor parallelism.
- `consolidated.00.pth`, ...: not of DeepSpeed, but cut in the same way.
- `zero_pp_rank_0_mp_rank_00_model_states.pt`, ...: ZeRO stage 3. The weights lie in 32 bits in the files of the
  optimizer: every rank holds one slice of each weight, one weight after the other. `param_shapes` says in which order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from joma.scan.errors import CheckpointError
from joma.scan.formats.joined import JoinedFile, Source
from joma.scan.formats.tensor_file import Stored
from joma.scan.formats.torch_file import TorchFile

MODEL = re.compile(r"mp_rank_(\d+)_model_states\.pt")
PUBLISHED = re.compile(r"consolidated\.(\d+)\.pth")
LAYER = re.compile(r"layer_(\d+)-model_(\d+)-model_states\.pt")
ZERO = re.compile(r"(?:\w+_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_(model|optim)_states\.pt")
_BLOCK = re.compile(r"(.*\.)?(mlp|attention|self_attention|attn)\..*")
_CONVERTER = "convert it with zero_to_fp32.py, which DeepSpeed puts beside its checkpoints"

Open = Callable[[str], TorchFile]


def consolidated(names: Sequence[str], open_file: Open, where: str) -> JoinedFile:
    """The weights of `consolidated.00.pth`, ..., as Llama was first published."""
    ranks = {int(found[1]): name for name in names if (found := PUBLISHED.fullmatch(name))}
    files = _opened(_in_order(ranks, where), open_file)
    parts: dict[str, list[Source]] = {}
    for file in files:
        for name in file.tensors:
            parts.setdefault(name, []).append(Source(file, name))
    return _joined(where, files, parts, "tensor-parallel files (consolidated.*)")


def model_states(names: Sequence[str], open_file: Open, where: str) -> JoinedFile:
    """The weights of `mp_rank_*` files. names: these files, all of them."""
    ranks = _in_order({int(found[1]): name for name in names if (found := MODEL.fullmatch(name))}, where)
    files = _opened(ranks, open_file)
    parts: dict[str, list[Source]] = {}
    for file in files:
        inside = [name for name in file.tensors if name.startswith("module.")]
        if not inside:
            _close(files)
            raise CheckpointError(
                f"{file.name} holds no weights under 'module'; those of a pipeline are in layer_* files beside it",
                file=file.name,
            )
        for name in inside:
            parts.setdefault(name.removeprefix("module."), []).append(Source(file, name))
    return _joined(where, files, parts, "tensor-parallel files (mp_rank_*)")


def layer_states(names: Sequence[str], open_file: Open, where: str) -> JoinedFile:
    """The weights of `layer_*` files, with the names of blocks counted from 0: "layers.0.mlp.dense_h_to_4h.weight"."""
    by_layer: dict[int, dict[int, str]] = {}
    for name in names:
        if found := LAYER.fullmatch(name):
            by_layer.setdefault(int(found[1]), {})[int(found[2])] = name
    width = max(map(len, by_layer.values()))
    if any(len(ranks) != width for ranks in by_layer.values()):
        raise CheckpointError(f"{where} does not hold {width} parts of every layer; a file is missing", file=where)
    files: list[TorchFile] = []
    parts: dict[str, list[Source]] = {}
    blocks = 0
    try:
        for layer in sorted(by_layer):
            mine = _opened(_in_order(by_layer[layer], where), open_file)
            files += mine
            block = any(_BLOCK.fullmatch(name) for name in mine[0].tensors)
            prefix = f"layers.{blocks}" if block else f"layer_{layer:02d}"
            blocks += block
            for file in mine:
                for name in file.tensors:
                    parts.setdefault(f"{prefix}.{name}", []).append(Source(file, name))
    except BaseException:
        _close(files)
        raise
    return _joined(where, files, parts, "tensor-parallel files (layer_*)")


def _joined(where: str, files: list[TorchFile], parts: dict[str, list[Source]], what: str) -> JoinedFile:
    count = max(map(len, parts.values()), default=0)
    try:
        uneven = next((name for name, sources in parts.items() if len(sources) not in (1, count)), None)
        if uneven is not None:
            raise CheckpointError(f"{uneven} is in only some of the {count} {what} of {where}", tensor=uneven)
        note = f"every weight was joined from {count} {what}"
        return JoinedFile(where, files, parts, [note] if count > 1 else [])
    except BaseException:
        _close(files)
        raise


@dataclass(frozen=True)
class _Slices:
    """Where one weight lies in every rank: the numbers from `offset` on, `length` of them."""

    shape: tuple[int, ...]
    offset: int

    def length(self, ranks: int) -> int:
        return -(-prod(self.shape) // ranks)


class ZeroFile:
    """The weights of ZeRO stage 3. names: the `zero_pp_rank_*` files. open_file: opens one. where: the folder."""

    def __init__(self, names: Sequence[str], open_file: Open, where: str) -> None:
        """names, open_file, where: as the class says."""
        self.name = where
        self.notes = ("the weights are the 32-bit ones of the optimizer, joined from the slices of ZeRO stage 3",)
        self._files: list[TorchFile] = []
        try:
            model, optim = (self._ranks(names, kind) for kind in ("model", "optim"))
            if len(model) != len(optim):
                raise CheckpointError(
                    f"{where} holds {len(model)} files of the model and {len(optim)} of the optimizer"
                )
            self._files = _opened(optim, self._explained(open_file))
            self._flat = [_flat(file) for file in self._files]
            models = _opened(model, self._explained(open_file))
            self._files += models
            self._places = self._layout(_shapes(models[0], "param_shapes"))
            self._frozen = _frozen(models)
        except BaseException:
            self.close()
            raise
        shapes = {name: place.shape for name, place in self._places.items()}
        shapes |= {name: shape for name, (shape, _) in self._frozen.items()}
        self._tensors = {name: Stored(shape, torch.float32) for name, shape in shapes.items()}

    @property
    def tensors(self) -> Mapping[str, Stored]:
        return self._tensors

    def read(self, tensor: str) -> Tensor:
        """One weight, from its slices; the last slice ends in numbers that fill it up."""
        if tensor in self._frozen:
            shape, pieces = self._frozen[tensor]
            found = torch.cat([file.numbers(tensor, piece) for file, piece in pieces])
            return found[: prod(shape)].view(shape).float()
        place = self._places[tensor]
        length = place.length(len(self._flat))
        slices = [self._slice(tensor, rank, place.offset, length) for rank in range(len(self._flat))]
        return torch.cat(slices)[: prod(place.shape)].view(place.shape).float()

    def read_rows(self, tensor: str, start: int, stop: int) -> Tensor:
        return self.read(tensor)[start:stop]

    def prefetch(self, tensor: str) -> None:
        """Slices lie in the middle of large tensors, which are checked whole when they are first read."""

    def close(self) -> None:
        _close(self._files)

    def _slice(self, tensor: str, rank: int, offset: int, length: int) -> Tensor:
        """Some numbers of the flat groups of a rank, one group after the other."""
        found: list[Tensor] = []
        for group in self._flat[rank]:
            begin, end = max(offset, 0), min(offset + length, group.numel())
            if begin < end:
                found.append(self._files[rank].numbers(tensor, group[begin:end]))
            offset -= group.numel()
        return torch.cat(found)

    def _layout(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, _Slices]:
        held = {sum(group.numel() for group in groups) for groups in self._flat}
        found: dict[str, _Slices] = {}
        offset = 0
        for name, shape in shapes.items():
            found[name] = _Slices(shape, offset)
            offset += found[name].length(len(self._flat))
        if held != {offset}:
            raise CheckpointError(
                f"the ranks in {self.name} hold {', '.join(f'{n:,}' for n in sorted(held))} numbers, and param_shapes "
                f"describes {offset:,}; {_CONVERTER}",
                file=self.name,
            )
        return found

    def _ranks(self, names: Collection[str], kind: str) -> list[str]:
        found = {int(m[1]): (int(m[2]), name) for name in names if (m := ZERO.fullmatch(name)) and m[3] == kind}
        if any(part for part, _ in found.values()):
            raise CheckpointError(f"{self.name} is cut by ZeRO stage 3 and tensor parallelism; {_CONVERTER}")
        if not found:
            raise CheckpointError(f"{self.name} has no zero_pp_rank_*_{kind}_states.pt, so its weights are not there")
        return _in_order({rank: name for rank, (_, name) in found.items()}, self.name)

    def _explained(self, open_file: Open) -> Open:
        def opened(name: str) -> TorchFile:
            try:
                return open_file(name)
            except CheckpointError as error:
                raise CheckpointError(f"{error}; or {_CONVERTER}", file=error.file) from None

        return opened


def _flat(file: TorchFile) -> list[Tensor]:
    state = file.content.get("optimizer_state_dict")
    groups = state.get("fp32_flat_groups") if isinstance(state, dict) else None
    flat = (
        isinstance(groups, list) and groups and all(isinstance(group, Tensor) and group.ndim == 1 for group in groups)
    )
    if not flat or not isinstance(groups, list):
        raise CheckpointError(f"{file.name} has no fp32_flat_groups of ZeRO stage 3; {_CONVERTER}", file=file.name)
    return groups


_Frozen = dict[str, tuple[tuple[int, ...], list[tuple[TorchFile, Tensor]]]]


def _frozen(models: Sequence[TorchFile]) -> _Frozen:
    """Weights that are not trained lie in the files of the model: their shapes, and the slice of every rank."""
    if not models[0].content.get("frozen_param_shapes"):
        return {}
    found: _Frozen = {}
    for name, shape in _shapes(models[0], "frozen_param_shapes").items():
        pieces: list[tuple[TorchFile, Tensor]] = []
        for file in models:
            held = file.content.get("frozen_param_fragments")
            piece = held.get(name) if isinstance(held, dict) else None
            if not isinstance(piece, Tensor) or piece.ndim != 1:
                raise CheckpointError(
                    f"{file.name} lacks its slice of {name}; {_CONVERTER}", file=file.name, tensor=name
                )
            pieces.append((file, piece))
        if sum(piece.numel() for _, piece in pieces) < prod(shape):
            raise CheckpointError(f"the slices of {name} do not fill its shape {shape}; {_CONVERTER}", tensor=name)
        found[name] = shape, pieces
    return found


def _shapes(file: TorchFile, key: str) -> dict[str, tuple[int, ...]]:
    """The shapes of all weights in the order in which they lie."""
    groups = file.content.get(key)
    found: dict[str, tuple[int, ...]] = {}
    for group in groups if isinstance(groups, list) else [groups]:
        for name, shape in group.items() if isinstance(group, dict) else [(None, None)]:
            sized = isinstance(shape, tuple) and all(isinstance(n, int) and 0 < n < 2**40 for n in shape)
            if not isinstance(name, str) or not sized or shape is None:
                raise CheckpointError(f"{file.name} has no {key} that say how its weights lie; {_CONVERTER}")
            found[name] = tuple(shape)
    return found


def _in_order(ranks: Mapping[int, str], where: str) -> list[str]:
    for rank in range(max(ranks) + 1):
        if rank not in ranks:
            raise CheckpointError(f"{where} lacks part {rank} beside {ranks[max(ranks)]}", file=where)
    return [ranks[rank] for rank in sorted(ranks)]


def _opened(names: Sequence[str], open_file: Open) -> list[TorchFile]:
    files: list[TorchFile] = []
    try:
        for name in names:
            files.append(open_file(name))
    except BaseException:
        _close(files)
        raise
    return files


def _close(files: Sequence[Any]) -> None:
    for file in files:
        file.close()
