"""What a run can hold: arrays of numbers, and a config that JSON can carry."""

import sys
import zlib
from collections.abc import Mapping, Sequence
from math import isfinite, prod
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from joma.runs.errors import RunError

DTYPES = {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
DTYPES |= {"float16", "float32", "float64", "complex64", "complex128"}


class Packed(NamedTuple):
    """An array as a row holds it: little-endian bytes in C order, with a checksum of all that identifies it."""

    dtype: str
    shape: str
    checksum: int
    data: bytes


def pack(value: Any, name: str, step: int) -> Packed:
    """A number, an array or a tensor as bytes; bfloat16 becomes float32, which holds it exactly."""
    torch = sys.modules.get("torch")  # never imported here: whoever holds a tensor has done so already
    try:
        if torch is not None and isinstance(value, torch.Tensor):
            tensor = value.detach()
            tensor = tensor.float() if tensor.dtype is torch.bfloat16 else tensor
            array: np.ndarray = tensor.cpu().resolve_conj().resolve_neg().numpy()
        else:
            array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        described = getattr(value, "dtype", type(value).__name__)
        raise RunError(f"{name!r} must be a number, an array or a dense tensor, got {described}") from None
    if isinstance(value, np.ma.MaskedArray):
        raise RunError(f"{name!r} is a masked array, whose mask would be lost; fill it first")
    if array.dtype.name not in DTYPES:
        raise RunError(f"{name!r} must hold numbers of at most 64 bits (complex: 128), got {array.dtype.name}")
    data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    dtype, shape = array.dtype.name, ",".join(map(str, array.shape))
    return Packed(dtype, shape, checksum_of(name, step, dtype, shape, data=data), data)


def unpack(packed: Packed, name: str, step: int) -> np.ndarray:
    """The array again, in this machine's byte order, with memory of its own."""
    array = unpack_all([(step, *packed)], name)
    assert array is not None  # one row is of one kind
    return array[0, ...]


def unpack_all(rows: Sequence[tuple[Any, ...]], name: str) -> np.ndarray | None:
    """Rows of (step, dtype, shape, checksum, data) as one array (rows, ...); None where they are not all of one kind.

    The same as `unpack` for each of them, several times as fast: a long run has a million.
    """
    if len({row[1:3] for row in rows}) != 1:
        return None
    dtype, shape = rows[0][1:3]
    start, kind = zlib.crc32(f"{name}|".encode()), f"|{dtype}|{shape}"
    step = rows[0][0]
    try:
        if dtype not in DTYPES:
            raise ValueError
        sizes, form = shape_of(shape), np.dtype(dtype).newbyteorder("<")
        length = prod(sizes) * form.itemsize
        for step, _, _, checksum, data in rows:
            if checksum != zlib.crc32(data, zlib.crc32(f"{step}{kind}".encode(), start)) or len(data) != length:
                raise ValueError
        return np.frombuffer(b"".join(row[4] for row in rows), form).reshape(len(rows), *sizes).astype(dtype)
    except (AttributeError, TypeError, ValueError):  # whatever damage has made of the columns
        raise RunError(f"step {step} of {name!r} is damaged: its bytes are not those that were recorded") from None


def checksum_of(*words: object, data: bytes = b"") -> int:
    """CRC-32 of a row: SQLite trusts the disk, a record should not."""
    return zlib.crc32(data, zlib.crc32("|".join(map(str, words)).encode()))


def shape_of(text: str) -> tuple[int, ...]:
    """A shape as a row has it."""
    return tuple(int(size) for size in text.split(",")) if text else ()


def valid_name(name: object, what: str = "a series") -> str:
    """A name that people can read and type."""
    if not isinstance(name, str) or not name or not name.isprintable():
        raise RunError(f"{what} needs a printable, non-empty name like 'loss' or 'layer3/entropy', got {name!r}")
    return name


def valid_step(step: object) -> int:
    """A step that SQLite can hold."""
    index = integer(step, "step")
    if not 0 <= index < 2**63:
        raise RunError(f"step must lie between 0 and 2^63 - 1, got {index}")
    return index


def integer(value: object, what: str) -> int:
    """An integer of Python's or numpy's."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    raise RunError(f"{what} must be a whole number, got {value!r}")


def plain_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config` as a run gives it back: tuples become lists, paths become strings, nothing else changes.

    NaN and infinity are refused: JSON has neither, and a NaN, unequal to itself, would make a finished run
    look like one with another config for ever. Write None where a limit is absent.

    >>> plain_config({"widths": (16, 32), "lr": 0.1})
    {'widths': [16, 32], 'lr': 0.1}
    """
    if not isinstance(config, Mapping):
        raise RunError(f"config must be a mapping from names to values, got {type(config).__name__}")
    plain = _plain(config, "config")
    assert isinstance(plain, dict)
    return plain


def _plain(value: Any, place: str) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not isfinite(value):
            raise RunError(f"{place} must be finite, got {value}; write None where there is no limit")
        return float(value)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, list | tuple):
        return [_plain(item, f"{place}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise RunError(f"{place} must have strings as keys, got {key!r}")
        return {str(key): _plain(item, f"{place}[{key!r}]") for key, item in value.items()}
    raise RunError(
        f"{place} must be of numbers, strings, booleans, None, lists and mappings, got {type(value).__name__}"
    )
