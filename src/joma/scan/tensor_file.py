"""What every file of tensors offers, and where its bytes come from."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from joma.host import limits
from joma.scan.errors import CheckpointError


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
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointError(f"{path} is no plain file", file=str(path))
    return descriptor
