"""A folder for downloads that stays within a budget: what was not used for longest is removed first.

Only files that joma made count, and only they are removed: `made_files` knows which.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from joma.scan.errors import CheckpointError
from joma.scan.sources.made_files import MadeFiles

FOLDER = "joma-downloads"  # a name that nobody else uses


class DiskCache:
    """Downloads in a folder `joma-downloads` inside `folder`, of at most `budget` bytes together.

    A download is named by its checkpoint and its file: `owner--model/commit/file`.
    """

    def __init__(self, folder: Path, budget: int) -> None:
        self.folder = folder / FOLDER
        self.budget = budget
        self._made = MadeFiles(self.folder)
        self._held: dict[str, list[int]] = {}  # checkpoints in use, and the bytes promised to each of their users
        self._changed = threading.Condition()

    def folder_of(self, checkpoint: str) -> Path:
        """Where the finished downloads of a checkpoint are."""
        return self._made.file(checkpoint)

    @contextmanager
    def hold(self, checkpoint: str, size: int, what: str) -> Iterator[None]:
        """Room for `size` bytes of a checkpoint, which no process removes meanwhile; waits until there is room.

        what: the checkpoint, for the sentence that says that it can never fit.
        """
        if size > self.budget:
            raise CheckpointError(
                f"{what} must be downloaded whole and has {size / 1e9:.2f} GB, the budget is "
                f"{self.budget / 1e9:.2f} GB; raise the budget"
            )
        with self._changed:
            self._changed.wait_for(lambda: self._fits(checkpoint, size))
            self._held.setdefault(checkpoint, []).append(size)
        try:
            with self._made.locked(checkpoint, alone=False):
                with self._changed:
                    self._make_room()
                yield
        finally:
            with self._changed:
                self._held[checkpoint].remove(size)
                if not self._held[checkpoint]:
                    del self._held[checkpoint]
                self._changed.notify_all()

    def file(self, name: str, size: int, fill: Callable[[BinaryIO], None], right: Callable[[Path], bool]) -> Path:
        """The file `name` of `size` bytes, downloaded if it is not there. The caller holds its checkpoint.

        fill: writes the rest of the file to a stream that stands at the end of what there is; right: whether a file
        has the content that the hub lists.
        """
        path = self._made.file(name)
        with self._made.locked(f"{name}.download", alone=True):
            if self._made.finished(name, size):
                self._made.touch(name)
            elif os.path.lexists(path) and path not in self._made.made(name):
                _check_foreign(path, size, right)
            else:
                try:
                    self._download(name, size, fill, right)
                except OSError as error:
                    raise CheckpointError(f"{path} cannot be written: {error.strerror or error}") from error
        return path

    def _download(self, name: str, size: int, fill: Callable[[BinaryIO], None], right: Callable[[Path], bool]) -> None:
        part = self._made.begin(name, size)
        with part.open("ab") as stream:
            fill(stream)
            stream.flush()
            os.fsync(stream.fileno())
        if not right(part):
            part.unlink()
            file = PurePosixPath(name).name
            raise CheckpointError(
                f"{file} was downloaded, but does not have the hash that the hub lists; it was deleted", file=file
            )
        self._made.finish(name)

    def _fits(self, checkpoint: str, size: int) -> bool:
        return self._promised({**self._held, checkpoint: [*self._held.get(checkpoint, []), size]}) <= self.budget

    def _promised(self, held: dict[str, list[int]]) -> int:
        """The bytes that these holders may fill; users of the same checkpoint share its files."""
        return sum(max(sizes) for sizes in held.values())

    def _make_room(self) -> None:
        names = [name for name in self._made.names() if _checkpoint(name) not in self._held]
        sizes = {name: self._made.size(name) for name in names}
        excess = sum(sizes.values()) + self._promised(self._held) - self.budget
        for name in sorted((name for name in names if sizes[name]), key=self._made.used):
            if excess <= 0:
                return
            if self._remove_unused(name):
                excess -= sizes[name]

    def _remove_unused(self, name: str) -> bool:
        """False where another process uses its checkpoint, or the system refuses."""
        with suppress(OSError, CheckpointError), self._made.locked(_checkpoint(name), alone=True, wait=False) as free:
            if free:
                self._made.remove(name)
            return free
        return False


def _checkpoint(name: str) -> str:
    return str(PurePosixPath(name).parent)


def _check_foreign(path: Path, size: int, right: Callable[[Path], bool]) -> None:
    """Refuse a file that joma did not make, unless it is the very file that the hub lists."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size != size or not right(path):
        raise CheckpointError(
            f"{path} is not the file that the hub lists, and joma did not make it; move it elsewhere", file=path.name
        )
