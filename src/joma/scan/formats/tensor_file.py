"""What every file of tensors offers, where its bytes come from, and what a tensor must be to be measured."""

import io
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from joma.host import limits
from joma.scan.errors import CheckpointError

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
Rows = tuple[int, int]  # from where to where along the first dimension
Wanted = tuple[str, Rows | None]  # a tensor, or some rows of it
_POINTER = b"version https://git-lfs"
_POINTER_BYTES = 1024  # no pointer is longer


@dataclass(frozen=True)
class Stored:
    """A tensor as its file describes it. dtype is None where this torch has no such type."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None


class TensorFile:
    """Named tensors in one file. Opening it reads the description only; `read` reads one tensor.

    name: for messages. tensors: what is described. notes: sentences on what is done to read them.
    """

    name: str
    tensors: Mapping[str, Stored]
    notes: tuple[str, ...] = ()

    def read(self, tensor: str) -> Tensor:
        raise NotImplementedError

    def read_rows(self, tensor: str, start: int, stop: int) -> Tensor:
        """Entries `start` to `stop` of its first dimension, and as little else as the format allows."""
        return self.read(tensor)[start:stop]

    def prefetch(self, tensor: str) -> None:
        """Say that this tensor is read next, so that it may already be on its way."""

    def expect(self, batches: Sequence[Sequence[Wanted]]) -> None:
        """Say what will be read, in order, so that a server is asked for it in few requests; see `RangedBytes`."""

    def close(self) -> None: ...

    def wrong(self, what: str, tensor: str | None = None) -> CheckpointError:
        about = f" ({tensor})" if tensor else ""
        return CheckpointError(f"{self.name} {what}{about}", file=self.name, tensor=tensor)

    def wrong_tensor(self, tensor: str, what: str) -> CheckpointError:
        return CheckpointError(f"{tensor} in {self.name} {what}", file=self.name, tensor=tensor)


class Parts(Protocol):
    """What the files of a checkpoint hold, before anything is undone."""

    def look(self, part: str) -> Stored:
        """Shape and number format of a part."""

    def take(self, part: str, rows: Rows | None = None) -> Tensor:
        """A part, or `rows` of its first dimension."""


@dataclass(frozen=True)
class Recipe:
    """One tensor made of stored parts that say nothing alone: integers and their scales, the factors of an adapter.

    parts: their names.
    """

    parts: tuple[str, ...]

    def stored(self, parts: Parts) -> Stored:
        raise NotImplementedError

    def made(self, parts: Parts) -> Tensor:
        raise NotImplementedError

    def read(self, parts: Parts, rows: Rows | None = None) -> Tensor:
        """The tensor, or `rows` of its first dimension."""
        return cut(self.made(parts), rows)

    def note(self, parts: Parts) -> str:
        """What was done with it, after "3 tensors were"; empty where it is stored plainly after all."""
        return ""


def cut(value: Tensor, rows: Rows | None) -> Tensor:
    """Some rows of a tensor; None: all of it."""
    return value if rows is None else value[slice(*rows)]


class Bytes(Protocol):
    """Bytes that can be read in part: a local file, or one that a server hands out in ranges."""

    name: str
    size: int

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill `buffer` with the bytes from `start` on, or raise CheckpointError."""

    def prefetch(self, start: int, length: int) -> None:
        """Say that these bytes are read next; a source that cannot use that does nothing."""

    def close(self) -> None: ...


class LocalBytes:
    """A local file. Reads carry their own position, so threads may share it."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._descriptor = _opened(path)
        self.size = os.fstat(self._descriptor).st_size
        if self.size < _POINTER_BYTES and os.pread(self._descriptor, len(_POINTER), 0) == _POINTER:
            self.close()
            raise self._wrong("is a Git-LFS pointer, not the file itself: run 'git lfs pull' in its folder")

    def prefetch(self, start: int, length: int) -> None:
        # The kernel reads them into its cache meanwhile; its own read-ahead is too timid for a fast disk.
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, start, length, os.POSIX_FADV_WILLNEED)

    def read_into(self, start: int, buffer: memoryview) -> None:
        self.prefetch(start, len(buffer))
        done = 0
        while done < len(buffer):
            try:
                count = os.preadv(self._descriptor, [buffer[done:]], start + done)
            except OSError as error:
                raise self._wrong(f"cannot be read: {error.strerror or error}") from error
            if count == 0:  # the file was cut while it was open
                raise self._wrong(f"ends at byte {start + done:,}, before the data it should hold")
            done += count

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _wrong(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.name} {what}", file=self.name)


class BytesPart:
    """A stretch of other bytes: a tensor that was saved into the middle of a file. Closing it closes nothing."""

    def __init__(self, source: Bytes, start: int, length: int) -> None:
        """source: where the bytes are. start, length: which of them."""
        if not 0 <= start <= start + length <= source.size:
            end = f"ends at byte {source.size:,}, before byte {start + length:,} that it should hold"
            raise CheckpointError(f"{source.name} {end}", file=source.name)
        self.name, self.size = source.name, length
        self._source, self._start = source, start

    def read_into(self, start: int, buffer: memoryview) -> None:
        if start + len(buffer) > self.size:
            raise CheckpointError(f"{self.name} ends before the data it should hold", file=self.name)
        self._source.read_into(self._start + start, buffer)

    def prefetch(self, start: int, length: int) -> None:
        self._source.prefetch(self._start + start, length)

    def close(self) -> None: ...


class Stream(io.RawIOBase):
    """Bytes as a file that can be read and sought in, for libraries that want one."""

    def __init__(self, source: Bytes) -> None:
        """source: the bytes; closing the stream does not close them."""
        self._source, self._at = source, 0

    def readable(self) -> bool:
        return True

    seekable = readable

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._source.size}[whence]
        if self._at < 0:
            raise OSError("before the beginning of the file")
        return self._at

    def readinto(self, buffer: Any) -> int:
        count = max(0, min(len(buffer), self._source.size - self._at))
        if count:
            self._source.read_into(self._at, memoryview(buffer)[:count])
        self._at += count
        return count


class Closable(Protocol):
    """What is held open."""

    def close(self) -> None: ...


@contextmanager
def closed_on_error(*held: Closable) -> Iterator[None]:
    """What fails inside this block closes what was opened for it."""
    try:
        yield
    except BaseException:
        for one in held:
            one.close()
        raise


def small_file(path: Path) -> bytes:
    """All of a local file that describes something and is therefore small."""
    with closing(LocalBytes(path)) as source:
        if source.size > limits.CONFIG_BYTES:
            raise CheckpointError(f"{path} has {source.size:,} bytes, too many for JSON", file=path.name)
        buffer = bytearray(source.size)
        source.read_into(0, memoryview(buffer))
        return bytes(buffer)


def parsed_json(text: bytes, name: str) -> dict[str, Any]:
    """A JSON object, or one sentence about the file."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise CheckpointError(f"{name} is no JSON: it is damaged or cut off", file=name) from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{name} is no JSON object", file=name)
    if limits.depth_of(value, limits.JSON_DEPTH) > limits.JSON_DEPTH:
        raise CheckpointError(f"{name} holds lists and mappings more than {limits.JSON_DEPTH} deep", file=name)
    return value


def check_matrix(stored: Stored, tensor: str, file: str | None) -> None:
    """Refuse what is no matrix of floating numbers."""
    if len(stored.shape) != 2 or 0 in stored.shape or stored.dtype not in FLOATS:
        small = stored.dtype is None or stored.dtype.itemsize == 1
        scales = ", and quantised ones with the scales that belong to them" if small else ""
        what = f"{stored.dtype} {stored.shape}; only matrices of floating numbers can be measured{scales}"
        raise CheckpointError(f"{tensor} is {what}", file=file, tensor=tensor)


def check_finite(w: Tensor, tensor: str, file: str | None) -> None:
    """Refuse NaN and infinity; one pass and no memory where all is well, because only then is the sum finite."""
    if w.sum(dtype=torch.promote_types(w.dtype, torch.float32)).isfinite():
        return
    if bad := int((~w.isfinite()).sum()):
        what = f"{tensor} has {bad:,} of {w.numel():,} values that are NaN or infinite"
        raise CheckpointError(what, file=file, tensor=tensor)


def _opened(path: Path) -> int:
    try:
        # Non-blocking, because opening a pipe that somebody named like a checkpoint would wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        missing = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be opened: {error.strerror}"
        raise CheckpointError(f"{path} {missing}", file=str(path)) from error
    except ValueError:  # a NUL in the name
        raise CheckpointError(f"{str(path)!a} cannot be the name of a file", file=None) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointError(f"{path} is not a plain file", file=str(path))
    return descriptor
