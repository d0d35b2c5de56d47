"""Checkpoints on this machine: a file, a model folder, or a folder with one of them per step."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from joma.scan.checkpoint import ENDINGS, Checkpoint, Place, Weights, choose_weights, parsed_json
from joma.scan.errors import CheckpointError
from joma.scan.safetensors_file import SafetensorsFile
from joma.scan.tensor_file import LocalBytes, TensorFile, small_file
from joma.scan.torch_file import TorchFile

# "checkpoint-500", "step1000-tokens4B", "global_step20", "epoch=3-step=700", but not "step1k".
_STEP = re.compile(r"(?:checkpoint|ckpt|global_?step|steps?|iter(?:ation)?)[-_=]?(\d{1,15})(?![0-9A-Za-z])", re.I)


def step_in(name: str) -> int | None:
    """The training step that a name speaks of; None if it speaks of none.

    >>> [step_in(n) for n in ("checkpoint-500", "step10", "epoch=3-step=700", "0020", "final")]
    [500, 10, 700, 20, None]
    """
    found = _STEP.findall(name)
    if found:
        return int(found[-1])
    return int(name) if re.fullmatch(r"\d{1,15}", name) else None


def opener(path: Path) -> Callable[[], TensorFile]:
    """How a local file of tensors is opened: the ending decides the format."""
    return lambda: SafetensorsFile(LocalBytes(path)) if path.suffix == ".safetensors" else TorchFile(path)


@dataclass(frozen=True)
class LocalFile:
    """A checkpoint that is one file."""

    path: Path
    step: int

    @property
    def name(self) -> str:
        return self.path.name

    def model_type(self) -> str | None:
        return None

    def identity(self) -> str:
        return _identity([self.path])

    def weights(self) -> Weights:
        return Weights((self.path.name,))

    def open(self) -> Checkpoint:
        return Checkpoint({self.path.name: opener(self.path)}, None)

    def folder(self) -> AbstractContextManager[Path]:
        raise CheckpointError(f"{self.path} is a file of tensors without a config.json, so its model cannot be run")


@dataclass(frozen=True)
class LocalFolder:
    """A checkpoint that is a folder: config.json and weights, sharded or not."""

    path: Path
    step: int

    @property
    def name(self) -> str:
        return self.path.name

    def model_type(self) -> str | None:
        return model_type(self._config())

    def identity(self) -> str:
        return _identity(self._files())

    def open(self) -> Checkpoint:
        checkpoint = Checkpoint({file: opener(self.path / file) for file in self.weights().files}, self.weights().index)
        try:
            checkpoint.open_all()
        except BaseException:
            checkpoint.close()
            raise
        return checkpoint

    @contextmanager
    def folder(self) -> Iterator[Path]:
        if not _is_file(self.path / "config.json"):
            raise CheckpointError(f"{self.path} has no config.json, so its model cannot be run", file="config.json")
        yield self.path

    def weights(self) -> Weights:
        """Which of the files hold the tensors."""
        return choose_weights([file.name for file in self._files()], self._bytes, str(self.path))

    def _files(self) -> list[Path]:
        return [entry for entry in _entries(self.path) if _is_file(entry)]

    def _config(self) -> dict[str, Any] | None:
        present = _is_file(self.path / "config.json")
        return parsed_json(self._bytes("config.json"), f"{self.path}/config.json") if present else None

    def _bytes(self, file: str) -> bytes:
        return small_file(self.path / file)


@dataclass(frozen=True)
class Disputed:
    """Checkpoints that claim the same step: they cannot all be right, so none of them is used."""

    name: str
    step: int

    def model_type(self) -> str | None:
        self._refuse()

    def identity(self) -> str:
        self._refuse()

    def weights(self) -> Weights:
        self._refuse()

    def open(self) -> Checkpoint:
        self._refuse()

    def folder(self) -> AbstractContextManager[Path]:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise CheckpointError(f"{self.name} claim the same step; keep one of them")


def model_type(config: dict[str, Any] | None) -> str | None:
    """The architecture that a config.json names."""
    name = None if config is None else config.get("model_type")
    return name if isinstance(name, str) else None


def local_places(path: Path) -> list[Place]:
    """The checkpoints at `path`, ordered by step: one for a file or a model folder, else one per entry with a step."""
    if _is_file(path):
        if path.suffix not in ENDINGS:
            raise CheckpointError(f"{path} is no checkpoint: its name must end in {', '.join(ENDINGS)}")
        return [LocalFile(path, step_in(path.stem) or 0)]
    places: list[LocalFile | LocalFolder] = []
    for entry in _entries(path):
        is_file = os.path.isfile(entry)  # False where it leads to what may not be read: its step will say so
        step = step_in(entry.stem if is_file else entry.name)
        if step is None or (is_file and entry.suffix not in ENDINGS):
            continue
        places.append(LocalFile(entry, step) if is_file else LocalFolder(entry, step))
    folders = [place for place in places if isinstance(place, LocalFolder)]
    if folders:  # files beside step folders belong to the final model
        return in_order(folders)
    if _is_file(path / "config.json") or not places:
        single = LocalFolder(path, step_in(path.name) or 0)
        _must_hold_weights(single)
        return [single]
    return in_order(places)


def in_order(places: list[Any]) -> list[Any]:
    """Places by step; several that claim the same step become one that cannot be used."""
    by_step: dict[int, list[Any]] = {}
    for place in sorted(places, key=lambda place: place.step):
        by_step.setdefault(place.step, []).append(place)
    return [
        several[0] if len(several) == 1 else Disputed(" and ".join(place.name for place in several), step)
        for step, several in by_step.items()
    ]


def _must_hold_weights(place: LocalFolder) -> None:
    if not any(file.name.endswith((*ENDINGS, ".index.json")) for file in place._files()):
        raise CheckpointError(
            f"{place.path} holds no checkpoint: neither weights ({', '.join('*' + e for e in ENDINGS)}) nor folders "
            "named by their step (checkpoint-100, step100)"
        )


def _entries(path: Path) -> list[Path]:
    try:
        return sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be listed: {error.strerror}", file=str(path)) from error


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:  # a folder that may be listed, but not entered
        raise CheckpointError(f"{path} cannot be read: {error.strerror}", file=str(path)) from error


def _identity(files: list[Path]) -> str:
    found: list[str] = []
    for file in files:
        try:
            at = os.stat(file)
        except OSError:
            continue  # opening it will say what is wrong
        found.append(f"{file.name} {at.st_size} {at.st_mtime_ns}")
    return "\n".join(found)
