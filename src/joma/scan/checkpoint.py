"""One model at one step: its tensors by name, whichever files they lie in."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from torch import Tensor

from joma.host import limits
from joma.host.limits import depth_of
from joma.scan.errors import CheckpointError
from joma.scan.tensor_file import Stored, TensorFile

TORCH_ENDINGS = (".bin", ".pt", ".pth", ".ckpt")
ENDINGS = (".safetensors", *TORCH_ENDINGS)
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.\w+)")
# What training leaves beside the weights, in the same formats.
_NO_WEIGHTS = re.compile(r"(optimizer|scheduler|scaler|training_args|rng_state|random_states|trainer_state).*")


class Checkpoint:
    """Tensors of one step. Files are opened when a tensor of theirs is first needed; use it in a `with` block."""

    def __init__(self, files: Mapping[str, Callable[[], TensorFile]], index: Mapping[str, str] | None) -> None:
        self._openers = files
        self._index = index
        self._open: dict[str, TensorFile] = {}
        self._last: Callable[[], None] = lambda: None
        self._place: dict[str, str] = dict(index or {})
        if index is None:
            try:
                for file in files:
                    for tensor in self._opened(file).tensors:
                        self._place.setdefault(tensor, file)
            except BaseException:
                self.close()
                raise

    def names(self) -> list[str]:
        """All tensors of the checkpoint."""
        return list(self._place)

    def file_of(self, tensor: str) -> str | None:
        """The file that holds the tensor; None if there is no such tensor."""
        return self._place.get(tensor)

    def stored(self, tensor: str) -> Stored:
        """Shape and number format of a tensor, without reading it."""
        return self._file_with(tensor).tensors[tensor]

    def read(self, tensor: str) -> Tensor:
        """One tensor, on the CPU."""
        return self._file_with(tensor).read(tensor)

    def prefetch(self, tensor: str) -> None:
        """Say that this tensor is read next; for one that is not there, reading it will say so."""
        if tensor in self._place and tensor in self._opened(self._place[tensor]).tensors:
            self._opened(self._place[tensor]).prefetch(tensor)

    def open_all(self) -> None:
        """Open every file, so that a missing or truncated one is found even if no measure needs it."""
        for file in self._openers:
            self._opened(file)

    def after_close(self, call: Callable[[], None]) -> None:
        """What to do once no file is open any more."""
        self._last = call

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()
        last, self._last = self._last, lambda: None
        last()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def _file_with(self, tensor: str) -> TensorFile:
        place = self._place.get(tensor)
        if place is None:
            raise CheckpointError(f"{tensor} is in no file of the checkpoint", tensor=tensor)
        file = self._opened(place)
        if tensor not in file.tensors:
            raise CheckpointError(f"the index puts {tensor} in {place}, but it is not there", file=place, tensor=tensor)
        return file

    def _opened(self, file: str) -> TensorFile:
        if file not in self._open:
            self._open[file] = self._openers[file]()
        return self._open[file]


@dataclass(frozen=True)
class Weights:
    """The files of a checkpoint that hold its weights; index says which tensor is in which (None: ask the files)."""

    files: tuple[str, ...]
    index: Mapping[str, str] | None = None

    def file_of(self, tensor: str) -> str | None:
        """The file with a tensor; None if only opening them could tell."""
        return self.index.get(tensor) if self.index else self.files[0] if len(self.files) == 1 else None


class Place(Protocol):
    """Where a checkpoint of a series is. Nothing is read before `open`."""

    @property
    def step(self) -> int: ...

    @property
    def name(self) -> str: ...

    def model_type(self) -> str | None:
        """What config.json calls the architecture; None without a config."""
        ...

    def identity(self) -> str:
        """Words that change when the files do."""
        ...

    def weights(self) -> Weights:
        """The files with the tensors, without opening them."""
        ...

    def open(self) -> Checkpoint: ...

    def folder(self) -> AbstractContextManager[Path]:
        """The whole checkpoint as a local folder, for measures that run the model."""
        ...


def choose_weights(names: Collection[str], read: Callable[[str], bytes], where: str) -> Weights:
    """Which of a folder's files are its weights: safetensors before torch files, as transformers chooses.

    names: files of the folder. read: the bytes of one of them. where: what messages call the folder.
    """
    for stem, ending in (("model", ".safetensors"), ("pytorch_model", ".bin")):
        if stem + ending in names:
            return Weights((stem + ending,))
        index = f"{stem}{ending}.index.json"
        if index in names:
            return _by_index(index, names, read, where)
    for endings in ((".safetensors",), TORCH_ENDINGS):
        fitting = sorted(n for n in names if n.endswith(endings) and not _NO_WEIGHTS.fullmatch(n))
        if len(fitting) == 1 and not _SHARD.fullmatch(fitting[0]):
            return Weights((fitting[0],))
        if fitting:
            return _shards(fitting, where)
    raise CheckpointError(f"{where} holds no weights: no {', '.join('*' + ending for ending in ENDINGS)}", file=where)


def _by_index(index: str, names: Collection[str], read: Callable[[str], bytes], where: str) -> Weights:
    found = parsed_json(read(index), f"{where}/{index}")
    places = found.get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(f"{where}/{index} has no weight_map from tensors to files", file=index)
    for tensor, file in places.items():
        # An index must not lead out of its folder.
        if not isinstance(file, str) or "/" in file or "\\" in file or not file.endswith(ENDINGS):
            raise CheckpointError(
                f"{where}/{index} puts {tensor} in {str(file)[:80]!r}, which is no weights file beside it",
                file=index,
                tensor=tensor,
            )
        if file not in names:
            raise CheckpointError(f"{file} is missing in {where}, and the index names it", file=file, tensor=tensor)
    return Weights(tuple(sorted(set(places.values()))), places)


def _shards(names: list[str], where: str) -> Weights:
    """Shards without an index: their names say how many there must be."""
    parts = [_SHARD.fullmatch(name) for name in names]
    families = {(part[1], part[3], part[4]) for part in parts if part}
    if None in parts or len(families) != 1:
        raise CheckpointError(
            f"{where} holds several weights files ({', '.join(names[:3])}, ...) and no index; name one of them",
            file=where,
        )
    ((stem, total, ending),) = families
    wanted = [f"{stem}-{part:05d}-of-{total}{ending}" for part in range(1, int(total) + 1)]
    for file in wanted:
        if file not in names:
            raise CheckpointError(f"{file} is missing in {where}", file=file)
    return Weights(tuple(wanted))


def parsed_json(text: bytes, name: str) -> dict[str, Any]:
    """A JSON object, or one sentence about the file."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise CheckpointError(f"{name} is no JSON: it is damaged or cut off", file=name) from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{name} is no JSON object", file=name)
    if depth_of(value, limits.JSON_DEPTH) > limits.JSON_DEPTH:
        raise CheckpointError(f"{name} holds lists and mappings more than {limits.JSON_DEPTH} deep", file=name)
    return value
