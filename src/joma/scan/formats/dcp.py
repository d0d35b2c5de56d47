"""Folders that torch.distributed.checkpoint wrote: `.metadata`, and files of tensors in chunks (`__0_0.distcp`).

`.metadata` is a pickle. It is read by formats.pickles, with stand-ins for torch's own descriptions and nothing
else. It says where in which file each chunk of a tensor lies; a chunk is a small file of torch.save.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from joma.host import limits
from joma.host.words import counted
from joma.scan.errors import CheckpointError
from joma.scan.formats.pickles import Plain, Refused, plain_unpickled
from joma.scan.formats.tensor_file import Bytes, BytesPart, Stored, TensorFile
from joma.scan.formats.torch_file import TorchFile

METADATA = ".metadata"
Size = tuple[int, ...]
# A stand-in of its own for every class that must be told apart.
_STAND_INS: list[type[Plain]] = [type(name, (Plain,), {}) for name in ("Metadata", "Tensor", "Chunk", "Index", "Info")]
_Metadata, _Tensor, _Chunk, _Index, _Info = _STAND_INS
_HERE = "torch.distributed.checkpoint"
_ALLOWED: dict[str, Any] = {
    f"{_HERE}.metadata.Metadata": _Metadata,
    f"{_HERE}.metadata.TensorStorageMetadata": _Tensor,
    f"{_HERE}.metadata.ChunkStorageMetadata": _Chunk,
    f"{_HERE}.metadata.MetadataIndex": _Index,
    f"{_HERE}.filesystem._StorageInfo": _Info,
    **dict.fromkeys(
        (
            f"{_HERE}.metadata.BytesStorageMetadata",
            f"{_HERE}.metadata.TensorProperties",
            f"{_HERE}.metadata._MEM_FORMAT_ENCODING",
            "torch.distributed._shard.sharded_tensor.metadata.TensorProperties",  # of older versions
            "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING",
            f"{_HERE}.metadata.StorageMeta",
            f"{_HERE}.filesystem._StoragePrefix",
            "torch.serialization._get_layout",
            *(f"{home}.{kind}Path" for home in ("pathlib", "pathlib._local") for kind in ("Posix", "Windows")),
            "collections.OrderedDict",
        ),
        Plain,
    ),
    "torch.Size": lambda value=(): value if isinstance(value, tuple) else Plain(),
    **{str(kind): kind for kind in (getattr(torch, name) for name in dir(torch)) if isinstance(kind, torch.dtype)},
}


@dataclass(frozen=True)
class Chunk:
    """A box of a tensor: where it begins, its shape, and the bytes that hold it."""

    offsets: Size
    sizes: Size
    file: str
    start: int
    length: int


Described = tuple[Stored, tuple[Chunk, ...]]  # one tensor: its shape and number format, and its chunks


class DcpFolder(TensorFile):
    """The tensors of such a folder."""

    def __init__(self, name: str, metadata: bytes, open_file: Callable[[str], Bytes]) -> None:
        """name: the folder. metadata: the bytes of `.metadata`. open_file: opens one of its files by name."""
        self.name = name
        self._open_file = open_file
        self._files: dict[str, Bytes] = {}
        try:
            found, aside = described(plain_unpickled(metadata, _ALLOWED))
        except Refused as error:
            raise CheckpointError(f"{name}/{METADATA} cannot be read: {error}", file=METADATA) from None
        self.tensors = {tensor: stored for tensor, (stored, _) in found.items()}
        self._chunks = {tensor: chunks for tensor, (_, chunks) in found.items()}
        what = f"{counted(aside, 'entry', 'entries')} of the folder that {'is' if aside == 1 else 'are'} no tensor"
        self.notes = (f"{what} {'was' if aside == 1 else 'were'} left aside",) if aside else ()

    def read(self, tensor: str) -> Tensor:
        shape = self.tensors[tensor].shape
        return self.read_rows(tensor, 0, shape[0]) if shape else self._chunk(tensor, self._chunks[tensor][0])

    def read_rows(self, tensor: str, start: int, stop: int) -> Tensor:
        """Entries `start` to `stop` of its first dimension; chunks that hold none of them are not read."""
        (first, *rest), dtype = self.tensors[tensor].shape, self.tensors[tensor].dtype
        stop = min(stop, first)
        if dtype is None:
            raise self.wrong_tensor(tensor, "has a number format that cannot be measured")
        needed: Counter[str] = Counter()
        for chunk in self._chunks[tensor]:
            BytesPart(self._source(chunk.file), chunk.start, chunk.length)
            needed[chunk.file] += chunk.length
        # The files must be as large as what they are said to hold: nothing is made in memory before.
        size = first * prod(rest) * dtype.itemsize
        if any(count > self._source(file).size for file, count in needed.items()) or needed.total() < size:
            raise self.wrong_tensor(tensor, f"has shape {(first, *rest)}, but its files do not hold as many numbers")
        # Chunks that overlap leave a gap elsewhere, and what is measured must not be NaN.
        joined = torch.full((stop - start, *rest), torch.nan if dtype.is_floating_point else 0, dtype=dtype)
        for chunk in self._chunks[tensor]:
            begin, end = max(chunk.offsets[0], start), min(chunk.offsets[0] + chunk.sizes[0], stop)
            if begin >= end:
                continue
            boxes = zip(chunk.offsets[1:], chunk.sizes[1:], strict=True)
            place = (slice(begin - start, end - start), *(slice(offset, offset + size) for offset, size in boxes))
            joined[place] = self._chunk(tensor, chunk)[begin - chunk.offsets[0] : end - chunk.offsets[0]].to(dtype)
        return joined

    def prefetch(self, tensor: str) -> None:
        for chunk in self._chunks[tensor]:
            self._source(chunk.file).prefetch(chunk.start, chunk.length)

    def close(self) -> None:
        for source in self._files.values():
            source.close()
        self._files.clear()

    def open_all(self) -> None:
        """Open every file that a tensor needs, so that a missing one is found at once."""
        for chunk in (chunk for chunks in self._chunks.values() for chunk in chunks):
            self._source(chunk.file)

    def _chunk(self, tensor: str, chunk: Chunk) -> Tensor:
        value = TorchFile(BytesPart(self._source(chunk.file), chunk.start, chunk.length), single=True).read("")
        if tuple(value.shape) != chunk.sizes:
            given = f"has a chunk of shape {tuple(value.shape)}"
            raise self.wrong_tensor(tensor, f"{given} where {chunk.sizes} is described")
        return value

    def _source(self, file: str) -> Bytes:
        if file not in self._files:
            self._files[file] = self._open_file(file)
        return self._files[file]


def described(metadata: Any) -> tuple[dict[str, Described], int]:
    """The tensors that `.metadata` describes, and how many entries are none; Refused where it contradicts itself."""
    entries, places = _mapping(metadata, "state_dict_metadata"), _mapping(metadata, "storage_data")
    if max(len(entries), len(places)) > limits.TENSORS:
        raise Refused(f"it describes more than {limits.TENSORS:,} tensors or chunks")
    infos: dict[tuple[str, Size], Plain] = {}
    for index, info in places.items():
        if isinstance(index, _Index) and isinstance(info, _Info) and isinstance(index.get("fqn"), str):
            infos[index.get("fqn"), _sizes(index.get("offset") or (), "offset")] = info
    tensors = {name: entry for name, entry in entries.items() if isinstance(name, str) and isinstance(entry, _Tensor)}
    boxes = (entry.get("chunks") for entry in tensors.values())
    if sum(len(each) for each in boxes if isinstance(each, list)) > limits.TENSORS:  # they may share one list
        raise Refused(f"it describes more than {limits.TENSORS:,} tensors or chunks")
    return {name: _tensor(name, entry, infos) for name, entry in tensors.items()}, len(entries) - len(tensors)


def _tensor(name: str, entry: Plain, infos: Mapping[tuple[str, Size], Plain]) -> Described:
    properties, shape = entry.get("properties"), _sizes(entry.get("size"), "size")
    state = properties.state if isinstance(properties, Plain) else None
    dtype = state[0] if isinstance(state, tuple) and state else None
    boxes = entry.get("chunks")
    chunked = isinstance(boxes, list) and all(isinstance(box, _Chunk) for box in boxes)
    if not isinstance(dtype, torch.dtype) or not isinstance(boxes, list) or not chunked:
        raise Refused(f"it describes {name[:80]!a} without a number format and chunks")
    chunks = tuple(_chunk(name, shape, box, infos) for box in boxes)
    if sum(prod(chunk.sizes) for chunk in chunks) != prod(shape):
        raise Refused(f"the chunks of {name[:80]!a} do not make up its shape {shape}")
    return Stored(shape, dtype), chunks


def _chunk(name: str, shape: Size, box: Plain, infos: Mapping[tuple[str, Size], Plain]) -> Chunk:
    offsets, sizes = _sizes(box.get("offsets"), "offsets"), _sizes(box.get("sizes"), "sizes")
    inside = len(offsets) == len(sizes) == len(shape)
    if not inside or any(o + s > length for o, s, length in zip(offsets, sizes, shape, strict=True)):
        raise Refused(f"a chunk of {name[:80]!a} lies outside of its shape {shape}")
    info = infos.get((name, offsets))
    if info is None:
        raise Refused(f"it does not say where {name[:80]!a} lies")
    file, start, length = info.get("relative_path"), info.get("offset"), info.get("length")
    # A description must not lead out of its folder.
    plain = isinstance(file, str) and file and file.isprintable() and not {"/", "\\"} & set(file)
    if not isinstance(file, str) or not plain or file.startswith(".."):
        raise Refused(f"it puts {name[:80]!a} in {_shown(file)}, which is not a file beside it")
    if info.get("transform_descriptors"):
        raise Refused(f"{name[:80]!a} is packed by an extension ({_shown(info.get('transform_descriptors'))})")
    if type(start) is not int or type(length) is not int or start < 0 or length < 0:
        raise Refused(f"it puts {name[:80]!a} at byte {_shown(start)}")
    return Chunk(offsets, sizes, file, start, length)


def _shown(value: Any) -> str:
    """In a few letters. Not `str` of anything: tuples that hold one another twice have no end in practice."""
    words = [one for one in value if isinstance(one, str)] if isinstance(value, list) else [value]
    first = words[0] if words else None
    return ascii(first[:80]) if isinstance(first, str) else str(first) if type(first) is int else type(first).__name__


def _sizes(value: Any, what: str) -> Size:
    few = isinstance(value, tuple) and len(value) <= limits.DIMENSIONS
    if few and all(type(n) is int and 0 <= n < 2**56 for n in value):
        return tuple(value)
    raise Refused(f"its {what} are no sizes")


def _mapping(owner: Any, field: str) -> dict[Any, Any]:
    found = owner.get(field) if isinstance(owner, _Metadata) else None
    if not isinstance(found, dict):
        raise Refused("it is not a description that torch.distributed.checkpoint wrote")
    return found
