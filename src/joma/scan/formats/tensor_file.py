"""What every file of tensors offers, and where its bytes come from."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from joma.host import limits
from joma.scan.errors import CheckpointError

_POINTER = b"version https://git-lfs"
_POINTER_BYTES = 1024  # no pointer is longer


@dataclass(frozen=True)
class Stored:
    """A tensor as its file describes it. dtype is None where this torch has no such type."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None


class TensorFile(Protocol):
    """Named tensors in one file. Opening it reads the description only; `read` reads one tensor."""

    name: str

    @property
    def tensors(self) -> Mapping[str, Stored]: ...

    def read(self, tensor: str) -> Tensor: ...

    def read_rows(self, tensor: str, start: int, stop: int) -> Tensor:
        """Entries `start` to `stop` of its first dimension, and as little else as the format allows."""
        ...

    def prefetch(self, tensor: str) -> None:
        """Say that this tensor is read next, so that it may already be on its way."""
        ...

    def close(self) -> None: ...


class Bytes(Protocol):
    """Bytes that can be read in part: a local file, or one that a server hands out in ranges."""

    name: str
    size: int

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill `buffer` with the bytes from `start` on, or raise CheckpointError."""
        ...

    def prefetch(self, start: int, length: int) -> None:
        """Say that these bytes are read next; a source that cannot use that does nothing."""
        ...

    def close(self) -> None: ...


class LocalBytes:
    """A local file. Reads carry their own position, so threads may share it."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._descriptor = _opened(path)
        self.size = os.fstat(self._descriptor).st_size
        if self.size < _POINTER_BYTES and os.pread(self._descriptor, len(_POINTER), 0) == _POINTER:
            self.close()
            raise CheckpointError(
                f"{path} is a Git-LFS pointer, not the file itself: run 'git lfs pull' in its folder", file=str(path)
            )

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
                raise CheckpointError(
                    f"{self.name} cannot be read: {error.strerror or error}", file=self.name
                ) from error
            if count == 0:  # the file was cut while it was open
                raise CheckpointError(
                    f"{self.name} ends at byte {start + done:,}, before the data it should hold", file=self.name
                )
            done += count

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class BytesPart:
    """A stretch of other bytes: a tensor that was saved into the middle of a file."""

    def __init__(self, whole: Bytes, start: int, length: int) -> None:
        """whole: where the bytes are. start, length: which of them."""
        if not 0 <= start <= start + length <= whole.size:
            raise CheckpointError(
                f"{whole.name} ends at byte {whole.size:,}, before byte {start + length:,} that it should hold",
                file=whole.name,
            )
        self.name, self.size = whole.name, length
        self._whole, self._start = whole, start

    def read_into(self, start: int, buffer: memoryview) -> None:
        if start + len(buffer) > self.size:
            raise CheckpointError(f"{self.name} ends before the data it should hold", file=self.name)
        self._whole.read_into(self._start + start, buffer)

    def prefetch(self, start: int, length: int) -> None:
        self._whole.prefetch(self._start + start, length)

    def close(self) -> None:
        """The whole is closed by whoever opened it."""


class Stream(io.RawIOBase):
    """Bytes as a file that can be read and sought in, for libraries that want one."""

    def __init__(self, source: Bytes) -> None:
        """source: the bytes; closing the stream does not close them."""
        self._source, self._at = source, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._source.size}[whence]
        if at < 0:
            raise OSError("before the beginning of the file")
        self._at = at
        return at

    def readinto(self, buffer: Any) -> int:
        count = max(0, min(len(buffer), self._source.size - self._at))
        if count:
            self._source.read_into(self._at, memoryview(buffer)[:count])
        self._at += count
        return count


def small_file(path: Path) -> bytes:
    """All of a local file that describes something and is therefore small."""
    source = LocalBytes(path)
    try:
        if source.size > limits.CONFIG_BYTES:
            raise CheckpointError(f"{path} has {source.size:,} bytes, too many for JSON", file=path.name)
        buffer = bytearray(source.size)
        source.read_into(0, memoryview(buffer))
        return bytes(buffer)
    finally:
        source.close()


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
        raise CheckpointError(f"{path} is no plain file", file=str(path))
    return descriptor
