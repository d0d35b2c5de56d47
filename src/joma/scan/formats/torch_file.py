"""Tensors in files that torch.save wrote (.pt, .bin, .ckpt, .pth), without ever running what is pickled in them.

Such a file is a zip archive: a pickle that describes the tensors, and one record of raw bytes per storage. It is opened
with `weights_only=True`, which builds tensors and plain containers and refuses everything else, and on the device
"meta", which has shapes and no numbers: torch then says where in the file each storage lies. The bytes are read from
there when a tensor is asked for, and compared with the archive's checksum. The file is never mapped into memory: one
that is cut while it is open would end the process (SIGBUS), and no error could be caught.

Before torch 1.6, and still on request, such a file is one pickle after another, then raw bytes: a number that says what
it is, a version, sizes of the machine, the object, the keys of its storages, and per storage its length and its bytes.
"""

import io
import pickle
import re
import sys
import warnings
import zipfile
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.serialization import MAGIC_NUMBER, PROTOCOL_VERSION

from joma.host import limits
from joma.scan.formats.pickles import Sharded, with_stand_ins
from joma.scan.formats.tensor_file import Bytes, LocalBytes, Stored, Stream, TensorFile, closed_on_error

T = TypeVar("T")

_LONGEST_MESSAGE = 10_000  # letters of an error that are looked at
_INSIDES = ("_load", "_open_zipfile_reader")  # of torch.load
_NAMES = 2**26  # letters of all names together: dictionaries in one another can make much of few
_PIECE = 2**24  # bytes at a time that are compared with a checksum
_REFUSED = re.compile(r"GLOBAL (\S{1,80})")  # how torch names what it would have had to import
_BEGINNING = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the magic number as every torch has pickled it


@dataclass(frozen=True)
class _Record:
    """Where the bytes of a storage lie in a file of the older format, which has no checksums."""

    header_offset: int
    file_size: int
    CRC: int = 0


class TorchFile(TensorFile):
    """A state dict in a file of torch.save; nested dictionaries give names joined by dots ("model.head.weight")."""

    def __init__(self, path: Path | Bytes, *, single: bool = False, shards: bool = False) -> None:
        # A plain file that can be read, or a sentence that says why not.
        self._source = LocalBytes(path) if isinstance(path, Path) else path
        self.name = self._source.name
        with closed_on_error(self._source):
            content, self._records = self._loaded()
            content = {"": content} if single else content
            if not isinstance(content, dict):
                raise self.wrong(f"holds a {type(content).__name__}, not a state dict")
            self.content: dict[Any, Any] = content
            """All that was saved; tensors in it have shapes and no numbers, plain objects are stand-ins."""
            try:
                found = dict(_flattened(content))
                for each in found.values():
                    _ = each.placed if isinstance(each, Sharded) else None
            except ValueError as error:
                raise self.wrong(f"is not a checkpoint: {error}") from None
            self._values = {name: part for name, each in found.items() if (part := local_part(each)) is not None}
            self.sharded = {name: each for name, each in found.items() if isinstance(each, Sharded)}
            """Tensors that lie in several processes, by name."""
            if not shards and any(each.placed[0] != self._values[name].shape for name, each in self.sharded.items()):
                raise self.wrong("holds one process's part of tensors (DTensor), and says not where the others are")
            if single and "" not in self._values:
                raise self.wrong(
                    f"holds no tensor with numbers where one should be, but a {type(content['']).__name__}"
                )
        self._checked = any(record.CRC for record in self._records)  # else torch was told to write no checksums
        self.tensors = {name: Stored(tuple(value.shape), value.dtype) for name, value in self._values.items()}
        self._verified: set[int] = set()

    def read(self, tensor: str) -> Tensor:
        return self.numbers(tensor, self._values[tensor])

    def read_rows(self, tensor: str, start: int, stop: int) -> Tensor:
        """Entries `start` to `stop` of its first dimension. The checksum of its storage takes all its bytes, once."""
        return self.numbers(tensor, self._values[tensor][start:stop])

    def numbers(self, tensor: str, value: Tensor) -> Tensor:
        """The numbers of a tensor of `content`, or of a part of one; tensor: its name, for messages."""
        (first, stop), begin = _extent(value), _begin(value)
        at = bisect_left(self._records, begin, key=lambda record: record.header_offset) - 1
        if at < 0 or self._records[at].file_size < value.untyped_storage().nbytes():
            raise self.wrong_tensor(tensor, "has no bytes in the file")
        record = self._records[at]
        size = value.numel() * value.element_size()  # strides of 0 repeat numbers
        if stop > record.file_size or size > stop - first:
            what = f"has shape {tuple(value.shape)}, but the file does not hold as many numbers"
            raise self.wrong_tensor(tensor, what)
        if not (complete := stop - first == record.file_size):
            self._verify(tensor, record, begin)
        raw = torch.empty(stop - first, dtype=torch.uint8)
        if len(raw):
            self._source.read_into(begin + first, memoryview(cast(Any, raw.numpy())))
        if complete:
            self._verify(tensor, record, begin, raw)
        found = raw.view(value.dtype).as_strided(value.shape, value.stride())
        return found.neg() if value.is_neg() else found

    def prefetch(self, tensor: str) -> None:
        value: Tensor = self._values[tensor]
        first, stop = _extent(value)
        self._source.prefetch(_begin(value) + first, stop - first)

    def close(self) -> None:
        self._source.close()

    def _loaded(self) -> tuple[Any, Sequence[zipfile.ZipInfo | _Record]]:
        first = bytearray(min(self._source.size, len(_BEGINNING)))
        self._source.read_into(0, memoryview(first))
        stream: io.BufferedReader = io.BufferedReader(Stream(self._source))
        if first == _BEGINNING:
            return self._unpickled(lambda: _legacy_content(stream, self._source.size))
        try:
            with zipfile.ZipFile(stream) as archive:
                records = sorted(archive.infolist(), key=lambda record: record.header_offset)
                _must_be_as_torch_writes(records)
                for record in records:
                    if record.filename.endswith("/data.pkl") and any(each.CRC for each in records):
                        archive.read(record)  # names, shapes and offsets are in here: compared with its checksum
        except Exception as error:  # zipfile raises many kinds on damaged archives
            raise self.wrong(f"is cut off, damaged, or was not written by torch.save: {error}") from None
        stream.seek(0)
        return self._unpickled(lambda: _loaded_on_meta(stream)), records

    def _unpickled(self, load: Callable[[], T]) -> T:
        try:
            with warnings.catch_warnings(), with_stand_ins():
                warnings.simplefilter("ignore")  # a strange pickle makes torch warn of many things
                return load()
        except Exception as error:  # what breaks depends on what the file holds
            raise self.wrong(_why(error)) from None

    def _verify(self, tensor: str, record: zipfile.ZipInfo | _Record, begin: int, raw: Tensor | None = None) -> None:
        """Compare the bytes of a storage, or `raw` if that is all of them, with the archive's checksum, each once."""
        if not self._checked or begin in self._verified:
            return
        end, found = begin + record.file_size, 0
        if raw is not None:
            found = zlib.crc32(memoryview(cast(Any, raw.numpy())))
        else:
            piece = memoryview(bytearray(min(record.file_size, _PIECE)))
            for at in range(begin, end, _PIECE):
                self._source.read_into(at, piece[: end - at])
                found = zlib.crc32(piece[: end - at], found)
        if found != record.CRC:
            raise self.wrong_tensor(tensor, "does not have the bytes that were saved: its checksum is wrong")
        self._verified.add(begin)


def _why(error: Exception) -> str:
    text = str(error)[:_LONGEST_MESSAGE]
    if refused := _REFUSED.search(text):
        how = "it was refused and not run: save the state dict alone, torch.save(model.state_dict(), FILE)"
        return f"holds a pickled object ({refused[1]!a}), which could run code of its own; {how}"
    if isinstance(error, pickle.UnpicklingError):
        return "is damaged or holds a pickle of more than tensors; it was refused and not run"
    return f"cannot be read by torch.load: {' '.join(text.split())[:160]}"


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


def local_part(item: Any) -> Tensor | None:
    """A plain tensor with numbers in the file, or this process's part of one; None for anything else."""
    part = item.get("_local_tensor") if isinstance(item, Sharded) else item
    is_plain = isinstance(part, Tensor) and part.layout is torch.strided and _begin(part) >= 0
    return part.detach() if is_plain else None


def _flattened(value: dict[Any, Any]) -> Iterator[tuple[str, Tensor | Sharded]]:
    """(name, tensor) of every plain tensor; optimizer states and numbers in between are left aside.

    Whatever is looked at counts: dictionaries that hold one another twice have no end in practice.
    """
    visits, within, letters = count(1), {id(value)}, 0
    opened = [("", value, iter(value.items()))]
    while opened:
        prefix, owner, entries = opened[-1]
        for key, item in entries:
            if next(visits) > limits.TENSORS:
                raise ValueError(f"it holds more than {limits.TENSORS:,} entries")
            if not isinstance(key, str | int):
                continue
            name = f"{prefix}{key}"
            if (letters := letters + len(name)) > _NAMES:
                raise ValueError(f"its names have more than {_NAMES:,} letters")
            if (part := local_part(item)) is not None:
                if part.ndim > limits.DIMENSIONS:
                    raise ValueError(f"{name[:80]} has {part.ndim:,} dimensions")
                yield name, item
            elif isinstance(item, dict) and id(item) not in within:  # a pickle may hold a dictionary inside itself
                if len(opened) == limits.JSON_DEPTH:
                    raise ValueError(f"its dictionaries lie more than {limits.JSON_DEPTH} deep")
                within.add(id(item))
                opened.append((f"{name}.", item, iter(item.items())))
                break
        else:
            opened.pop()
            within.remove(id(owner))


def _legacy_content(stream: io.BufferedReader, size: int) -> tuple[Any, list[_Record]]:
    """The object of a file of `size` bytes, with tensors on the device "meta", and the records of its storages."""
    if _legacy_pickle(stream) != MAGIC_NUMBER or _legacy_pickle(stream) != PROTOCOL_VERSION:
        raise ValueError("it begins with another version of the format")
    machine = _legacy_pickle(stream)
    if isinstance(machine, dict) and machine.get("little_endian", True) != (sys.byteorder == "little"):
        raise ValueError("its numbers have another byte order than this machine's")
    storages: dict[str, Any] = {}
    value, keys = _legacy_pickle(stream, storages), _legacy_pickle(stream)
    if not isinstance(keys, list) or len(set(map(str, keys))) != len(keys):
        raise ValueError("it does not say in which order its storages follow")
    records: list[_Record] = []
    at = stream.tell()
    for key in keys:
        storage = storages.get(str(key))
        if storage is None:
            raise ValueError("it holds a storage that no tensor uses")
        stream.seek(at)
        count, held = int.from_bytes(stream.read(8), "little"), storage._untyped_storage.nbytes()
        if count * storage._element_size() != held or at + 8 + held > size:
            raise ValueError(f"it is cut off, or a storage has {count:,} numbers where {held:,} bytes are needed")
        storage._untyped_storage._checkpoint_offset = at + 8
        records.append(_Record(at, held))
        at += 8 + held
    return value, records


def _legacy_pickle(stream: io.BufferedReader, storages: dict[str, Any] | None = None) -> Any:
    unpickler = torch._weights_only_unpickler.Unpickler(stream, encoding="utf-8")

    def storage(name: Any) -> Any:
        _, kind, key, _, count, view = name
        if storages is None or view is not None:
            raise ValueError("its storages are parts of one another, as only torch before 0.4 wrote them")
        if str(key) not in storages:
            empty = torch.UntypedStorage(count * kind.dtype.itemsize, device="meta")
            storages[str(key)] = torch.storage.TypedStorage(wrap_storage=empty, dtype=kind.dtype, _internal=True)
        return storages[str(key)]

    unpickler.persistent_load = storage  # type: ignore[method-assign]
    return unpickler.load()
