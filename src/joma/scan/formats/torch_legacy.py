"""Files that torch.save wrote before torch 1.6, or still writes on request: one pickle after another, then raw bytes.

They are a number that says what they are, a version, sizes of the machine, the object, the keys of its storages, and
then, per storage, its length and its bytes. Every pickle is read by torch's restricted unpickler.
"""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch.serialization import MAGIC_NUMBER, PROTOCOL_VERSION

BEGINNING = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the magic number as every torch has pickled it


@dataclass(frozen=True)
class Record:
    """Where the bytes of a storage lie. These files have no checksums."""

    header_offset: int
    file_size: int
    CRC: int = 0


def legacy_content(stream: io.BufferedReader, size: int) -> tuple[Any, list[Record]]:
    """The object of a file of `size` bytes, with tensors on the device "meta", and the records of its storages."""
    if _unpickled(stream) != MAGIC_NUMBER or _unpickled(stream) != PROTOCOL_VERSION:
        raise ValueError("it begins with another version of the format")
    machine = _unpickled(stream)
    if isinstance(machine, dict) and machine.get("little_endian", True) != (sys.byteorder == "little"):
        raise ValueError("its numbers have another byte order than this machine's")
    storages: dict[str, Any] = {}
    value, keys = _unpickled(stream, storages), _unpickled(stream)
    if not isinstance(keys, list) or len(set(map(str, keys))) != len(keys):
        raise ValueError("it does not say in which order its storages follow")
    records: list[Record] = []
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
        records.append(Record(at, held))
        at += 8 + held
    return value, records


def _unpickled(stream: io.BufferedReader, storages: dict[str, Any] | None = None) -> Any:
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
