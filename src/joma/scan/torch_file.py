"""Tensors in files that torch.save wrote (.pt, .bin, .ckpt, .pth), without ever running what is pickled in them.

Such a file is a zip archive: a pickle that describes the tensors, and one record of raw bytes per storage. It is opened
with `weights_only=True`, which builds tensors and plain containers and refuses everything else, and with `mmap=True`,
which leaves the bytes on disk until a tensor is read. Memory mapping skips the archive's checksums, so they are
compared here, for the tensors that are read.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from joma.host import limits
from joma.scan.errors import CheckpointError
from joma.scan.tensor_file import LocalBytes, Stored

_REFUSED = re.compile(r"GLOBAL (\S{1,80})")  # how torch names what it would have had to import


class TorchFile:
    """A state dict in a file of torch.save; nested dictionaries give names joined by dots ("model.head.weight").

    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "a.pt")
    ...     torch.save({"model": {"w": torch.eye(2)}, "step": 7}, path)
    ...     file = TorchFile(path)
    ...     list(file.tensors), file.read("model.w").tolist()
    (['model.w'], [[1.0, 0.0], [0.0, 1.0]])
    """

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        LocalBytes(path).close()  # a plain file that can be read, or a sentence that says why not
        self._checksums = self._archive(path)
        self._values = self._named(self._loaded(path))
        self._tensors = {name: Stored(tuple(value.shape), value.dtype) for name, value in self._values.items()}
        self._verified: set[int] = set()

    @property
    def tensors(self) -> Mapping[str, Stored]:
        return self._tensors

    def read(self, tensor: str) -> Tensor:
        """One tensor; its memory is the mapped file, so that pages are read when they are used."""
        value: Tensor = self._values[tensor]
        self._must_be_held(tensor, value)
        self._verify(tensor, value)
        return value

    def prefetch(self, tensor: str) -> None:
        """Nothing to do: the kernel reads ahead in a mapped file by itself."""

    def close(self) -> None:
        self._values.clear()

    def _archive(self, path: Path) -> dict[int, set[int]]:
        """The checksums of the archive's records by record size; none where torch was told to write none (all 0)."""
        try:
            with zipfile.ZipFile(path) as archive:
                records = archive.infolist()
                checked = any(record.CRC for record in records)
                _must_be_as_torch_writes(records)
                for record in records if checked else ():
                    if record.filename.endswith("/data.pkl"):  # names, shapes and offsets are in here
                        archive.read(record)
        except Exception as error:  # zipfile raises many kinds on damaged archives
            raise CheckpointError(
                f"{self.name} is cut off, damaged, or was not written by torch.save (torch 1.6 or newer): {error}",
                file=self.name,
            ) from None
        found: dict[int, set[int]] = {}
        for record in records if checked else ():
            found.setdefault(record.file_size, set()).add(record.CRC)
        return found

    def _loaded(self, path: Path) -> dict[Any, Any]:
        try:
            value = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # what breaks depends on what the file holds
            raise CheckpointError(self._why(error), file=self.name) from None
        if not isinstance(value, dict):
            raise CheckpointError(f"{self.name} holds a {type(value).__name__}, not a state dict", file=self.name)
        return value

    def _named(self, value: dict[Any, Any]) -> dict[str, Tensor]:
        try:
            return dict(_flattened(value))
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{self.name} is no checkpoint: {error}", file=self.name) from None

    def _why(self, error: Exception) -> str:
        text = str(error)
        refused = _REFUSED.search(text)
        if refused:
            return (
                f"{self.name} holds a pickled object ({refused[1]!a}), which could run code of its own; it was refused "
                "and not run: save the state dict alone"
            )
        if "Weights only load failed" in text:
            return f"{self.name} is damaged or holds a pickle of more than tensors; it was refused and not run"
        return f"{self.name} cannot be read by torch.load: {' '.join(text.split())[:160]}"

    def _must_be_held(self, tensor: str, value: Tensor) -> None:
        """A stride of 0 makes a matrix of any size from one number."""
        if value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise CheckpointError(
                f"{tensor} in {self.name} has shape {tuple(value.shape)}, but the file does not hold as many numbers",
                file=self.name,
                tensor=tensor,
            )

    def _verify(self, tensor: str, value: Tensor) -> None:
        """Compare the bytes of the tensor's storage with the archive's checksums, each storage once."""
        storage = value.untyped_storage()
        if not self._checksums or storage.nbytes() == 0 or storage.data_ptr() in self._verified:
            return
        raw = torch.empty(0, dtype=torch.uint8).set_(storage)
        # The archive says which record has which size and checksum, not which tensor: a record of the same size whose
        # checksum agrees is, but for one chance in 2^32, the one.
        if zlib.crc32(memoryview(cast(Any, raw.numpy()))) not in self._checksums.get(storage.nbytes(), set()):
            raise CheckpointError(
                f"{tensor} in {self.name} does not have the bytes that were saved: its checksum is wrong",
                file=self.name,
                tensor=tensor,
            )
        self._verified.add(storage.data_ptr())


def _must_be_as_torch_writes(records: Sequence[zipfile.ZipInfo]) -> None:
    """A few megabytes can unpack to all the memory there is; torch packs nothing."""
    for record in records:
        if record.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{record.filename[:80]!a} is compressed")
        if record.filename.endswith("/data.pkl") and record.file_size > limits.PICKLE_BYTES:
            raise ValueError(f"its names and shapes take {record.file_size:,} bytes")


def _flattened(
    value: dict[Any, Any],
    prefix: str = "",
    seen: frozenset[int] = frozenset(),
    visits: Iterator[int] | None = None,
) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of every plain tensor; optimizer states and numbers in between are left aside.

    visits: counts what is looked at. Dictionaries that hold one another twice have no end in practice.
    """
    visits = visits or count()
    for key, item in value.items():
        if next(visits) > limits.TENSORS:
            raise ValueError(f"it holds more than {limits.TENSORS:,} entries")
        if not isinstance(key, str | int):
            continue
        name = f"{prefix}{key}"
        if isinstance(item, Tensor) and item.layout is torch.strided and item.device.type == "cpu":
            yield name, item.detach()
        elif isinstance(item, dict) and id(item) not in seen:  # a pickle may hold a dictionary inside itself
            yield from _flattened(item, f"{name}.", seen | {id(value), id(item)}, visits)
