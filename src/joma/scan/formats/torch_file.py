"""Tensors in files that torch.save wrote (.pt, .bin, .ckpt, .pth), without ever running what is pickled in them.

Such a file is a zip archive: a pickle that describes the tensors, and one record of raw bytes per storage. It is opened
with `weights_only=True`, which builds tensors and plain containers and refuses everything else, and on the device
"meta", which has shapes and no numbers: torch then says where in the file each storage lies. The bytes are read from
there when a tensor is asked for, and compared with the archive's checksum. The file is never mapped into memory: one
that is cut while it is open would end the process (SIGBUS), and no error could be caught.
"""

from __future__ import annotations

import io
import pickle
import re
import sys
import warnings
import zipfile
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from joma.host import limits
from joma.scan.errors import CheckpointError
from joma.scan.formats.plain_objects import stood_in_for
from joma.scan.formats.tensor_file import Bytes, LocalBytes, Stored, Stream
from joma.scan.formats.torch_legacy import BEGINNING, Record, legacy_content

T = TypeVar("T")

_LONGEST_MESSAGE = 10_000  # letters of an error that are looked at
_INSIDES = ("_load", "_open_zipfile_reader")  # of torch.load
_PIECE = 2**24  # bytes at a time that are compared with a checksum
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

    def __init__(self, path: Path | Bytes, *, single: bool = False) -> None:
        """path: the file, or where its bytes are. single: it holds one tensor and no dictionary; its name is empty."""
        # A plain file that can be read, or a sentence that says why not.
        self._source = LocalBytes(path) if isinstance(path, Path) else path
        self.name = self._source.name
        self._records: Sequence[zipfile.ZipInfo | Record]
        try:
            content, self._records = self._legacy() if self._is_legacy() else self._zipped()
            self.content: dict[Any, Any] = self._dictionary({"": content} if single else content)
            """All that was saved; tensors in it have shapes and no numbers, plain objects are stand-ins."""
            self._values = self._named(self.content)
        except BaseException:
            self._source.close()
            raise
        self._checked = any(record.CRC for record in self._records)  # else torch was told to write no checksums
        self._tensors = {name: Stored(tuple(value.shape), value.dtype) for name, value in self._values.items()}
        self._verified: set[int] = set()

    @property
    def tensors(self) -> Mapping[str, Stored]:
        return self._tensors

    def read(self, tensor: str) -> Tensor:
        """One tensor, in memory of its own."""
        return self.numbers(tensor, self._values[tensor])

    def read_rows(self, tensor: str, start: int, stop: int) -> Tensor:
        """Entries `start` to `stop` of its first dimension. The checksum of its storage takes all its bytes, once."""
        return self.numbers(tensor, self._values[tensor][start:stop])

    def numbers(self, tensor: str, value: Tensor) -> Tensor:
        """The numbers of a tensor of `content`, or of a part of one; tensor: its name, for messages."""
        record, begin = self._place(tensor, value)
        first, stop = _extent(value)
        if (
            stop > record.file_size or value.numel() * value.element_size() > stop - first
        ):  # strides of 0 repeat numbers
            raise self._wrong(f"has shape {tuple(value.shape)}, but the file does not hold as many numbers", tensor)
        whole = stop - first == record.file_size
        if not whole:
            self._verify(tensor, record, begin)
        raw = torch.empty(stop - first, dtype=torch.uint8)
        if len(raw):
            self._source.read_into(begin + first, memoryview(cast(Any, raw.numpy())))
        if whole:
            self._verify(tensor, record, begin, raw)
        found = raw.view(value.dtype).as_strided(value.shape, value.stride())
        return found.neg() if value.is_neg() else found

    def prefetch(self, tensor: str) -> None:
        value: Tensor = self._values[tensor]
        first, stop = _extent(value)
        self._source.prefetch(_begin(value) + first, stop - first)

    def close(self) -> None:
        self._values.clear()
        self._source.close()

    def _is_legacy(self) -> bool:
        if self._source.size < len(BEGINNING):
            return False
        first = bytearray(len(BEGINNING))
        self._source.read_into(0, memoryview(first))
        return bytes(first) == BEGINNING

    def _stream(self) -> io.BufferedReader:
        return io.BufferedReader(Stream(self._source))

    def _legacy(self) -> tuple[Any, Sequence[Record]]:
        return self._unpickled(lambda: legacy_content(self._stream(), self._source.size))

    def _zipped(self) -> tuple[Any, Sequence[zipfile.ZipInfo]]:
        records = self._archive()
        return self._unpickled(lambda: _loaded_on_meta(self._stream())), records

    def _archive(self) -> list[zipfile.ZipInfo]:
        """The archive's records in the order in which they lie in the file."""
        try:
            with self._stream() as stream, zipfile.ZipFile(stream) as archive:
                records = sorted(archive.infolist(), key=lambda record: record.header_offset)
                _must_be_as_torch_writes(records)
                for record in records:
                    if record.filename.endswith("/data.pkl") and any(each.CRC for each in records):
                        archive.read(record)  # names, shapes and offsets are in here: compared with its checksum
        except Exception as error:  # zipfile raises many kinds on damaged archives
            raise CheckpointError(
                f"{self.name} is cut off, damaged, or was not written by torch.save: {error}", file=self.name
            ) from None
        return records

    def _unpickled(self, load: Callable[[], T]) -> T:
        try:
            with warnings.catch_warnings(), stood_in_for():
                warnings.simplefilter(
                    "ignore"
                )  # a strange pickle makes torch warn of many things; one sentence will do
                return load()
        except Exception as error:  # what breaks depends on what the file holds
            raise CheckpointError(self._why(error), file=self.name) from None

    def _dictionary(self, value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise CheckpointError(f"{self.name} holds a {type(value).__name__}, not a state dict", file=self.name)
        return value

    def _named(self, value: dict[Any, Any]) -> dict[str, Tensor]:
        try:
            return dict(_flattened(value))
        except ValueError as error:
            raise CheckpointError(f"{self.name} is no checkpoint: {error}", file=self.name) from None

    def _why(self, error: Exception) -> str:
        text = str(error)[:_LONGEST_MESSAGE]
        refused = _REFUSED.search(text)
        if refused:
            return (
                f"{self.name} holds a pickled object ({refused[1]!a}), which could run code of its own; it was refused "
                "and not run: save the state dict alone, torch.save(model.state_dict(), FILE)"
            )
        if isinstance(error, pickle.UnpicklingError):
            return f"{self.name} is damaged or holds a pickle of more than tensors; it was refused and not run"
        return f"{self.name} cannot be read by torch.load: {' '.join(text.split())[:160]}"

    def _place(self, tensor: str, value: Tensor) -> tuple[zipfile.ZipInfo | Record, int]:
        """The record with the tensor's storage, and where its bytes begin in the file."""
        begin = _begin(value)
        at = bisect_left(self._records, begin, key=lambda record: record.header_offset) - 1
        if at < 0 or self._records[at].file_size < value.untyped_storage().nbytes():
            raise self._wrong("has no bytes in the file", tensor)
        return self._records[at], begin

    def _verify(self, tensor: str, record: zipfile.ZipInfo | Record, begin: int, raw: Tensor | None = None) -> None:
        """Compare the bytes of a storage, or `raw` if that is all of them, with the archive's checksum, each once."""
        if not self._checked or begin in self._verified:
            return
        found = (
            self._checksum(begin, record.file_size) if raw is None else zlib.crc32(memoryview(cast(Any, raw.numpy())))
        )
        if found != record.CRC:
            raise self._wrong("does not have the bytes that were saved: its checksum is wrong", tensor)
        self._verified.add(begin)

    def _checksum(self, begin: int, length: int) -> int:
        found, piece = 0, memoryview(bytearray(min(length, _PIECE)))
        for at in range(begin, begin + length, _PIECE):
            part = piece[: begin + length - at]
            self._source.read_into(at, part)
            found = zlib.crc32(part, found)
        return found

    def _wrong(self, what: str, tensor: str) -> CheckpointError:
        return CheckpointError(f"{tensor} in {self.name} {what}", file=self.name, tensor=tensor)


def _loaded_on_meta(stream: io.BufferedReader) -> Any:
    """`torch.load(stream, map_location="meta", weights_only=True)`, less what that does with an error.

    It searches the error's message with a pattern whose time grows with the square of the longest word in it, and a
    file can put a word of a million letters there. Where a torch has other insides, it is called as it is.
    """
    load, reader = (getattr(torch.serialization, name, None) for name in _INSIDES)
    if load is None or reader is None:
        return torch.load(stream, map_location="meta", weights_only=True)
    with reader(stream) as archive:
        return load(archive, "meta", torch._weights_only_unpickler, encoding="utf-8")


def _extent(value: Tensor) -> tuple[int, int]:
    """The bytes of its storage between which a tensor lies; strides are never negative in torch."""
    first, size = int(value.storage_offset()), value.element_size()
    last = first + sum((length - 1) * int(stride) for length, stride in zip(value.shape, value.stride(), strict=True))
    return (first * size, (last + 1) * size) if value.numel() else (0, 0)


def _begin(value: Tensor) -> int:
    """Where in the file the bytes of its storage begin, as torch found it; -1 if it had none when it was saved."""
    begin = value.untyped_storage()._checkpoint_offset
    return -1 if begin is None else begin


def _must_be_as_torch_writes(records: Sequence[zipfile.ZipInfo]) -> None:
    """A few megabytes can unpack to all the memory there is; torch packs nothing."""
    if any(record.filename.endswith("/constants.pkl") for record in records):
        raise ValueError("it is a TorchScript program; save its state dict")
    for record in records:
        if record.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{record.filename[:80]!a} is compressed")
        if record.filename.endswith("/data.pkl") and record.file_size > limits.PICKLE_BYTES:
            raise ValueError(f"its names and shapes take {record.file_size:,} bytes")
        if record.filename.endswith("/byteorder") and record.file_size != len(sys.byteorder):  # "little" or "big"
            raise ValueError("its numbers have another byte order than this machine's")


def _flattened(value: dict[Any, Any]) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of every plain tensor; optimizer states and numbers in between are left aside.

    Whatever is looked at counts: dictionaries that hold one another twice have no end in practice.
    """
    visits, within = count(1), {id(value)}
    opened = [("", value, iter(value.items()))]
    while opened:
        prefix, owner, entries = opened[-1]
        for key, item in entries:
            if next(visits) > limits.TENSORS:
                raise ValueError(f"it holds more than {limits.TENSORS:,} entries")
            name = f"{prefix}{key}" if isinstance(key, str | int) else None
            if name is None:
                continue
            if isinstance(item, Tensor) and item.layout is torch.strided and _begin(item) >= 0:
                if item.ndim > limits.DIMENSIONS:
                    raise ValueError(f"{name[:80]} has {item.ndim:,} dimensions")
                yield name, item.detach()
            elif isinstance(item, dict) and id(item) not in within:  # a pickle may hold a dictionary inside itself
                if len(opened) == limits.JSON_DEPTH:
                    raise ValueError(f"its dictionaries lie more than {limits.JSON_DEPTH} deep")
                within.add(id(item))
                opened.append((f"{name}.", item, iter(item.items())))
                break
        else:
            opened.pop()
            within.remove(id(owner))
