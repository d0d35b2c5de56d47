"""Tensors in the safetensors format, read one at a time, from a local file or by ranges from a server.

A file is 8 bytes of header length (little-endian), the header as JSON, then the data of all tensors without gap or
overlap. The header is checked before anything else is read, because everything after it is reached through what it
says: a length, an offset or a shape that does not fit the file is refused, never followed.
"""

import json
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, cast

import torch
from torch import Tensor

from joma.host import limits
from joma.scan.formats.ranges import RangedBytes
from joma.scan.formats.tensor_file import Bytes, Rows, Stored, TensorFile, Wanted, closed_on_error

_LONGEST_HEADER = 100_000_000  # bytes, the limit of the format's own library
_FIRST_READ = 65_536  # most headers fit, so that a server is asked once
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
_TORCH = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "U16": torch.uint16,
    "I32": torch.int32, "U32": torch.uint32, "I64": torch.int64, "U64": torch.uint64,
    "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
}  # fmt: skip


class SafetensorsFile(TensorFile):
    """A safetensors file: its header is read and checked at once, its tensors when they are asked for."""

    def __init__(self, source: Bytes, header: tuple[int, bytes] | None = None) -> None:
        """source: the bytes. header: the attribute of this name, of the same file opened before; None: it is read."""
        self.name = source.name
        self._source = source
        with closed_on_error(source):
            length, text = self.header = header or self._header()
            described = self._parsed(text)
            self._begins = {name: 8 + length + begin for name, (_, begin, _) in described.items()}
            self._check_coverage(described, source.size - 8 - length)
        self.tensors = {name: stored for name, (stored, _, _) in described.items()}

    def read(self, tensor: str) -> Tensor:
        return self._part(tensor, self.tensors[tensor].shape, 0)

    def read_rows(self, tensor: str, start: int, stop: int) -> Tensor:
        """Entries `start` to `stop` of its first dimension; nothing else is read."""
        first, *rest = self.tensors[tensor].shape
        stop = min(stop, first)
        return self._part(tensor, (max(stop - start, 0), *rest), start * prod(rest))

    def _part(self, tensor: str, shape: tuple[int, ...], skipped: int) -> Tensor:
        """The numbers of a tensor after the first `skipped`, in a shape."""
        stored = self.tensors[tensor]
        if stored.dtype is None:
            raise self.wrong_tensor(tensor, "has a number format that cannot be measured")
        value = torch.empty(shape, dtype=stored.dtype)
        if value.numel():
            raw = value.reshape(-1).view(torch.uint8).numpy()  # the same memory, as bytes
            begin = self._begins[tensor] + skipped * stored.dtype.itemsize
            self._source.read_into(begin, memoryview(cast(Any, raw)))
        return value

    def prefetch(self, tensor: str) -> None:
        stored = self.tensors[tensor]
        if stored.dtype is not None:
            self._source.prefetch(self._begins[tensor], prod(stored.shape) * stored.dtype.itemsize)

    def expect(self, batches: Sequence[Sequence[Wanted]]) -> None:
        if isinstance(self._source, RangedBytes):  # a disk needs no such plan
            self._source.expect([[self._extent(*wanted) for wanted in batch] for batch in batches])

    def close(self) -> None:
        self._source.close()

    def _extent(self, tensor: str, rows: Rows | None) -> tuple[int, int]:
        """From where to where the bytes of a tensor, or of some rows of it, lie in the file."""
        stored, begin = self.tensors[tensor], self._begins[tensor]
        if stored.dtype is None:
            return begin, begin  # reading it will say why it cannot be
        first, last = (0, stored.shape[0] if stored.shape else 1) if rows is None else rows
        row = prod(stored.shape[1:]) * stored.dtype.itemsize
        return begin + first * row, begin + last * row

    def _header(self) -> tuple[int, bytes]:
        size = self._source.size
        if size < 8:
            raise self.wrong(f"has {size} bytes, too few for a safetensors file")
        first = bytearray(min(size, _FIRST_READ))
        self._source.read_into(0, memoryview(first))
        length = int.from_bytes(first[:8], "little")
        if length > min(size - 8, _LONGEST_HEADER):
            cut = "it is cut off or no safetensors file"
            raise self.wrong(f"says that its header has {length:,} bytes, but the file has {size:,}: {cut}")
        header = first[: 8 + length].ljust(8 + length)
        if len(first) < len(header):
            self._source.read_into(len(first), memoryview(header)[len(first) :])
        return length, bytes(header[8:])

    def _parsed(self, text: bytes) -> dict[str, tuple[Stored, int, int]]:
        """(description, first byte, byte after the last) of every tensor; bytes count from the end of the header."""
        try:
            header = json.loads(text.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise self.wrong(f"has a header that is no JSON ({str(error)[:60]})") from None
        if not isinstance(header, dict) or text[:1] != b"{":
            raise self.wrong("has a header that is no JSON object")
        if len(header) > limits.TENSORS:
            raise self.wrong(f"describes {len(header):,} tensors, more than the {limits.TENSORS:,} that are believed")
        about = header.get("__metadata__", {})
        if not isinstance(about, dict) or not all(isinstance(value, str) for value in about.values()):
            raise self.wrong("has metadata that are no strings")
        return {name: self._entry(name, entry) for name, entry in header.items() if name != "__metadata__"}

    def _entry(self, name: str, entry: Any) -> tuple[Stored, int, int]:
        if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
            raise self.wrong("describes it without dtype, shape and data_offsets", name)
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in _BITS:
            raise self.wrong(f"gives it the unknown number format {str(dtype)[:40]!r}", name)
        if isinstance(shape, list) and len(shape) > limits.DIMENSIONS:
            raise self.wrong(f"gives it {len(shape):,} dimensions, more than the {limits.DIMENSIONS} of torch", name)
        if not _sizes(shape) or not _sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            raise self.wrong(f"gives it shape {str(shape)[:60]} at bytes {str(offsets)[:60]}", name)
        bits, held = prod(shape) * _BITS[dtype], 8 * (offsets[1] - offsets[0])
        if bits != held:
            needed = f"shape {tuple(shape)} of {dtype} needs {bits // 8:,}"
            raise self.wrong(f"gives it {held // 8:,} bytes, but {needed}", name)
        return Stored(tuple(shape), _TORCH.get(dtype)), offsets[0], offsets[1]

    def _check_coverage(self, described: Mapping[str, tuple[Stored, int, int]], held: int) -> None:
        """The tensors must tile the data: an overlap, a gap or a byte too few or too many is a lie of the header."""
        end = 0
        for name, (_, begin, stop) in sorted(described.items(), key=lambda item: item[1][1:]):
            if begin != end:
                raise self.wrong(f"puts it at byte {begin:,} of the data, where byte {end:,} comes next", name)
            if stop > held:
                raise self.wrong(f"is cut off: its data end at byte {stop:,}, but the file holds {held:,}", name)
            end = stop
        if end != held:
            raise self.wrong(f"holds {held:,} bytes of data, but its header describes {end:,}")


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**63 for n in value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    for name, value in pairs:
        f"{name}{value if isinstance(value, str) else ''}".encode()  # half a character is an error
    return found


def _no_number(constant: str) -> None:
    """Python reads NaN and Infinity; JSON has neither."""
    raise ValueError(f"{constant} is not a number")
