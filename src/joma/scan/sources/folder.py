"""A checkpoint on this machine: a file or a folder; and what the names of files say, here or elsewhere.

Which checkpoints a path holds is said in `places`.
"""

import hashlib
import os
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from joma.scan.errors import CheckpointError
from joma.scan.formats.checkpoint import (
    ENDINGS,
    NO_WEIGHTS,
    Checkpoint,
    Weights,
    choose_weights,
    ends_in,
    is_read,
    parts_of_one,
)
from joma.scan.formats.dcp import METADATA
from joma.scan.formats.opening import listed, open_file, open_folder, rank_files, weights_folder
from joma.scan.formats.tensor_file import parsed_json, small_file
from joma.scan.sources.series import Moment, known_by, moment_in

_PARTS = (".distcp", ".index.json")  # of a checkpoint that is a folder
_TIMM = ".pth.tar"
_PIECES, _PIECE = 16, 2**14  # of a file that are looked at to know it again, and their bytes


@dataclass(frozen=True)
class LocalFile:
    """A checkpoint that is one file."""

    path: Path
    step: int
    epoch: int | None = None

    @property
    def name(self) -> str:
        return self.path.name

    def config(self) -> dict[str, Any] | None:
        return None

    def identity(self) -> str:
        return known_by(_known(self.path.parent, [self.path.name]))

    def weights(self) -> Weights:
        return Weights((self.path.name,))

    def open(self) -> Checkpoint:
        return open_file(self.path)

    def folder(self) -> AbstractContextManager[Path]:
        raise CheckpointError(f"{self.path} is a file of tensors without a config.json, so its model cannot be run")


@dataclass(frozen=True)
class LocalFolder:
    """A checkpoint that is a folder: config.json and weights, sharded or not."""

    path: Path
    step: int
    epoch: int | None = None
    called: str | None = None
    """What messages call it, where its path says little: the revision of a folder that is named by its commit."""
    base: Path | None = None  # of an adapter: see `open_folder`
    files: tuple[str, ...] = ()
    """The files of this checkpoint, where a folder holds several."""

    @property
    def name(self) -> str:
        return self.called or self.path.name

    def identity(self) -> str:
        folder, weights = weights_folder(self.path), self.weights()
        names = [*self._names(folder), *([METADATA] if is_plain_file(folder / METADATA) else [])]
        known = _known(folder, [name for name in names if is_read(name, weights)])
        return known_by([*known, *([] if self.base is None else [("its base", str(self.base), "")])])

    def open(self) -> Checkpoint:
        holds = weights_folder(self.path)
        opened = open_folder(holds, self.weights(), self.base)
        if (inside := holds.relative_to(self.path).as_posix()) not in (".", ""):
            opened.remark(f"the weights are those in {inside}")
        return opened

    @contextmanager
    def folder(self) -> Iterator[Path]:
        if self.files:
            what = f"{self.path} holds several checkpoints, and transformers reads one per folder"
            raise CheckpointError(f"{what}, so the model of {self.name} cannot be run", file=self.files[0])
        if (folder := self._configured()) is None:
            raise CheckpointError(f"{self.path} has no config.json, so its model cannot be run", file="config.json")
        yield folder

    def weights(self) -> Weights:
        if self.files:
            return Weights(self.files)
        folder = weights_folder(self.path)
        return choose_weights(self._names(folder), lambda name: small_file(folder / name), str(folder))

    def _names(self, folder: Path) -> list[str]:
        parts = rank_files(folder)
        files = [*(entry for entry in entries_of(folder) if is_plain_file(entry)), *(parts if len(parts) > 1 else ())]
        return [file.relative_to(folder).as_posix() for file in files]

    def config(self) -> dict[str, Any] | None:
        folder = self._configured()
        path = (folder or self.path) / "config.json"
        return parsed_json(small_file(path), str(path)) if folder else None

    def _configured(self) -> Path | None:
        """The folder with config.json: this one, or the one inside that holds the weights."""
        if is_plain_file(self.path / "config.json"):
            return self.path
        try:
            inside = weights_folder(self.path)
        except CheckpointError:  # opening the weights will say so
            return None
        beside = (inside, inside / "huggingface")  # verl has the config beside its shards
        return next((folder for folder in beside if is_plain_file(folder / "config.json")), None)


def is_weights_name(name: str) -> bool:
    """Whether a file is one of weights by its name, not of an optimizer.

    >>> [is_weights_name(name) for name in ("model.safetensors", "optimizer.pt", "config.json")]
    [True, False, False]
    """
    return ends_in(name) and not NO_WEIGHTS.fullmatch(name)


def stem_of(name: str) -> str:
    """The name of a file without its ending.

    >>> stem_of("step10.safetensors"), stem_of("checkpoint-3.pth.tar")
    ('step10', 'checkpoint-3')
    """
    return name.removesuffix(_TIMM).removesuffix(PurePosixPath(name).suffix)


def moment_of_file(name: str) -> Moment:
    """The moment that a name speaks of. timm, and the scripts that it follows, number `.pth.tar` files by epoch.

    >>> moment_of_file("step10.safetensors").step, moment_of_file("checkpoint-3.pth.tar").epoch
    (10, 3)
    """
    found = moment_in(stem_of(name))
    by_epoch = name.endswith(_TIMM) and found.epoch is None and name.startswith("checkpoint")
    return Moment(None, found.step) if by_epoch else found


def is_one_model(names: Collection[str]) -> bool:
    """Whether the files of a folder are one model: as transformers names them, or one file beside its config.

    >>> is_one_model(["config.json", "step10.safetensors"]), is_one_model(["step10.safetensors", "step20.safetensors"])
    (True, False)
    """
    if {"model.safetensors", "pytorch_model.bin"} & {*names} or any(name.endswith(".index.json") for name in names):
        return True
    if parts_of_one(names):  # of DeepSpeed, of torch's distributed checkpoints
        return True
    return "config.json" in names and sum(bool(moment_of_file(name)) for name in filter(is_weights_name, names)) < 2


def is_weights(path: Path) -> bool:
    """Whether it is a file of weights by its name, and no folder."""
    return is_weights_name(path.name) and not os.path.isdir(path)


def is_folder(path: Path) -> bool:
    """Whether it is a folder, or nothing that can be read: opening it as a checkpoint will say so."""
    return os.path.isdir(path) or not (os.path.isfile(path) or ends_in(path.name))


def holds_weights(folder: Path) -> bool:
    """Whether a folder is a checkpoint by the names in it."""
    entries = visible_in(folder)
    parts = parts_of_one([entry.name for entry in entries])
    return bool(parts) or any(
        is_weights(e) or e.name.endswith(_PARTS) or e.name.startswith("mp_rank_") for e in entries
    )


def leads_to_weights(folder: Path) -> Path | None:
    """The folder inside that holds the weights of a checkpoint, or should; None where there is none."""
    try:
        inside = weights_folder(folder)
    except CheckpointError:  # opening it will say what is wrong
        return folder
    return None if inside == folder else inside


def visible_in(folder: Path) -> list[Path]:
    """What a folder holds as far as that can be told: one that cannot be listed holds nothing."""
    try:
        return entries_of(folder)
    except CheckpointError:
        return []


def must_hold_weights(folder: Path) -> None:
    """Refuse a folder without a checkpoint."""
    if not holds_weights(folder) and leads_to_weights(folder) is None:
        endings = ", ".join(f"*{ending}" for ending in ENDINGS)
        what = f"neither weights ({endings}) nor folders named by their step (checkpoint-100, step100, epoch_1)"
        raise CheckpointError(f"{folder} holds no checkpoint: {what}")


def entries_of(path: Path) -> list[Path]:
    """What a folder holds, by name; hidden entries are nobody's checkpoints."""
    return [entry for entry in listed(path) if not entry.name.startswith(".")]


def is_plain_file(path: Path) -> bool:
    """Whether it is a file, or a sentence where that cannot be told."""
    try:
        return path.is_file()
    except OSError as error:  # a folder that may be listed, but not entered
        raise CheckpointError(f"{path} cannot be read: {error.strerror}", file=str(path)) from error


def _known(folder: Path, names: list[str]) -> Iterator[tuple[str, str, str]]:
    for name in names:
        with suppress(OSError):  # opening it will say what is wrong
            at = os.stat(folder / name)
            yield name, f"{at.st_size} {_samples(folder / name, at.st_size)}", str(at.st_mtime_ns)


def _samples(file: Path, size: int) -> str:
    """A hash of the beginning, the end and pieces in between: some tools set the time of a file back."""
    digest, starts = hashlib.sha256(), {size * at // _PIECES for at in range(_PIECES)} | {max(size - _PIECE, 0)}
    with file.open("rb") as stream:
        for start in sorted(starts):
            stream.seek(start)
            digest.update(stream.read(_PIECE))
    return digest.hexdigest()[:16]
