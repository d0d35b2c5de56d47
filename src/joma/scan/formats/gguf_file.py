"""Tensors in GGUF, the format of llama.cpp, made floating numbers again where they are quantised.

A file has a header of keys and values, the names, shapes and places of its tensors, and their bytes. The header is read
here and believed as far as the file can hold what it says. Quantised blocks are undone by the package gguf, which
llama.cpp keeps up to date with its formats. The file is not mapped into memory, so that one that is cut is an error.
"""

import io
import struct
from collections import Counter
from collections.abc import Callable
from math import prod
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from joma.host import limits
from joma.host.extras import how_to_install
from joma.scan.errors import CheckpointError
from joma.scan.formats.tensor_file import Bytes, Stored, Stream, TensorFile, closed_on_error

_PLAIN = {
    0: torch.float32, 1: torch.float16, 24: torch.int8, 25: torch.int16, 26: torch.int32, 27: torch.int64,
    28: torch.float64, 30: torch.bfloat16,
}  # fmt: skip
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of a value, by its type
_STRING, _ARRAY, _UINT32 = 8, 9, 4
_WORDS = 4_000_000  # strings of a header: a vocabulary, its merges and a few more
_AT_ONCE = 2**22  # numbers that are made floating at a time


class GgufFile(TensorFile):
    """A GGUF file. Shapes are torch's, which are llama.cpp's turned round. What is quantised comes out as float32."""

    def __init__(self, source: Bytes) -> None:
        """source: where the bytes are; it is closed with this."""
        self.name = source.name
        self._source = source
        with closed_on_error(source):
            described = _Header(source, self.wrong).tensors()
            self._places = {name: self._place(name, *entry) for name, entry in described.items()}
        self.tensors = {n: Stored(shape, _PLAIN.get(kind, torch.float32)) for n, (kind, shape, _) in described.items()}
        kinds = Counter(kind for kind, _, _ in described.values() if kind not in _PLAIN)
        self.notes = tuple(
            f"{count} {'tensor was' if count == 1 else 'tensors were'} dequantised from {_kind(kind).name} (GGUF)"
            for kind, count in kinds.items()
        )

    def read(self, tensor: str) -> Tensor:
        shape = self.tensors[tensor].shape
        return self._rows(tensor, 0, prod(shape[:-1])).view(shape)

    def read_rows(self, tensor: str, start: int, stop: int) -> Tensor:
        """Entries `start` to `stop` of its first dimension; nothing else is read where it has several."""
        first, *rest = self.tensors[tensor].shape
        stop = min(stop, first)
        if not rest:
            return self.read(tensor)[start:stop]
        within = prod(rest[:-1])
        return self._rows(tensor, start * within, stop * within).view(stop - start, *rest)

    def prefetch(self, tensor: str) -> None:
        _, begin, row = self._places[tensor]
        self._source.prefetch(begin, row * prod(self.tensors[tensor].shape[:-1]))

    def close(self) -> None:
        self._source.close()

    def _rows(self, tensor: str, start: int, stop: int) -> Tensor:
        kind, begin, row = self._places[tensor]
        width, dtype = self.tensors[tensor].shape[-1], cast(torch.dtype, self.tensors[tensor].dtype)
        found = torch.empty(stop - start, width, dtype=dtype)
        if kind in _PLAIN:
            if found.numel():
                self._source.read_into(begin + start * row, memoryview(cast(Any, found.view(torch.uint8).numpy())))
            return found
        step = max(1, _AT_ONCE // max(width, 1))
        for at in range(start, stop, step):
            count = min(step, stop - at)
            raw = np.empty((count, row), np.uint8)
            self._source.read_into(begin + at * row, memoryview(cast(Any, raw.reshape(-1))))
            found[at - start : at - start + count] = torch.from_numpy(self._dequantised(raw, kind, tensor))
        return found

    def _dequantised(self, raw: np.ndarray, kind: int, tensor: str) -> np.ndarray:
        from gguf.quants import dequantize

        try:
            with np.errstate(all="ignore"):  # a scale that is no number gives numbers that are none, and all see them
                return np.ascontiguousarray(dequantize(raw, _kind(kind)), dtype=np.float32)
        except (NotImplementedError, ValueError, IndexError) as error:
            why = f"cannot be dequantised from {_kind(kind).name}: {str(error)[:80]}"
            raise self.wrong_tensor(tensor, why) from None

    def _place(self, tensor: str, kind: int, shape: tuple[int, ...], begin: int) -> tuple[int, int, int]:
        """(type, first byte, bytes of a row of numbers)."""
        block, size = (1, _PLAIN[kind].itemsize) if kind in _PLAIN else self._block(tensor, kind)
        if shape[-1] % block:
            raise self.wrong(f"gives it rows of {shape[-1]:,} numbers, in blocks of {block}", tensor)
        row = shape[-1] // block * size
        if begin + row * prod(shape[:-1]) > self._source.size:
            raise self.wrong(f"is cut off: it has {self._source.size:,} bytes", tensor)
        return kind, begin, row

    def _block(self, tensor: str, kind: int) -> tuple[int, int]:
        try:
            from gguf.constants import GGML_QUANT_SIZES

            block, size = GGML_QUANT_SIZES[_kind(kind)]
        except ImportError:
            need = f"{self.name} is quantised, and undoing that needs the package gguf: {how_to_install('gguf')}"
            raise CheckpointError(need, file=self.name, tensor=tensor) from None
        except (KeyError, ValueError):
            what = f"gives it the number format {kind}, which this version of gguf does not know"
            raise self.wrong(what, tensor) from None
        return int(block), int(size)


class _Header:
    """What stands before the numbers of a GGUF file. wrong: makes an error of what is wrong with it."""

    def __init__(self, source: Bytes, wrong: Callable[[str], CheckpointError]) -> None:
        self._size, self._wrong = source.size, wrong
        self._stream = io.BufferedReader(Stream(source), 2**20)
        self._words = _WORDS

    def tensors(self) -> dict[str, tuple[int, tuple[int, ...], int]]:
        """(number format, shape, first byte) by name."""
        magic, version = self._take(4), self._number("<I")
        if magic != b"GGUF" or version not in (2, 3):
            raise self._wrong("is no GGUF file of version 2 or 3 in little-endian order")
        count, keys = self._number("<Q"), self._number("<Q")
        if max(count, keys) > limits.TENSORS:
            raise self._wrong(f"says that it holds {max(count, keys):,} tensors or keys")
        alignment = 32
        for _ in range(keys):
            key, kind = self._string(), self._number("<I")
            if key == "general.alignment" and kind == _UINT32:
                alignment = self._number("<I")
            else:
                self._skip(kind)
        found: dict[str, tuple[int, tuple[int, ...], int]] = {}
        for _ in range(count):
            name, dimensions = self._string(), self._number("<I")
            if not 1 <= dimensions <= 4:
                raise self._wrong(f"gives {name[:80]!a} {dimensions} dimensions")
            shape = tuple(self._number("<Q") for _ in range(dimensions))[::-1]
            kind, offset = self._number("<I"), self._number("<Q")
            if not 0 < prod(shape) < 2**56 or offset >= 2**62:
                raise self._wrong(f"gives {name[:80]!a} the shape {shape}")
            if name in found:
                raise self._wrong(f"holds {name[:80]!a} twice")
            found[name] = kind, shape, offset
        if alignment < 1 or alignment & (alignment - 1):
            raise self._wrong(f"says that its numbers begin at multiples of {alignment}")
        begin = -(-self._stream.tell() // alignment) * alignment
        return {name: (kind, shape, begin + offset) for name, (kind, shape, offset) in found.items()}

    def _skip(self, kind: int) -> None:
        inner, count = (self._number("<I"), self._number("<Q")) if kind == _ARRAY else (kind, 1)
        if inner in _SIZES:
            self._pass_over(_SIZES[inner] * count)
            return
        if inner != _STRING and kind != _ARRAY:
            raise self._wrong(f"has a header with a value of the unknown type {kind}")
        self._words -= count if kind == _ARRAY else 0
        if inner != _STRING or self._words < 0:
            raise self._wrong("has a header with lists that no model has")
        for _ in range(count):
            self._pass_over(self._number("<Q"))

    def _pass_over(self, length: int) -> None:
        if self._stream.tell() + length > self._size:
            raise self._wrong("is cut off in its header")
        self._stream.seek(length, io.SEEK_CUR)

    def _string(self) -> str:
        length = self._number("<Q")
        if length > 65_535:
            raise self._wrong("has a header with a name of more than 65,535 bytes")
        try:
            return self._take(length).decode("utf-8")
        except UnicodeDecodeError:
            raise self._wrong("has a header with a name that is no UTF-8") from None

    def _number(self, form: str) -> int:
        return int(struct.unpack(form, self._take(struct.calcsize(form)))[0])

    def _take(self, length: int) -> bytes:
        found = self._stream.read(length)
        if len(found) < length:
            raise self._wrong("is cut off in its header, or no GGUF file")
        return found


def _kind(kind: int) -> Any:
    from gguf.constants import GGMLQuantizationType

    return GGMLQuantizationType(kind)
