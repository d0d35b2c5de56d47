"""A folder for downloads that stays within a budget: what was not used for longest is removed first.

Only files that joma made count, and only they are removed. Each has a record, and a file without one is never removed:

    FOLDER/CACHEDIR.TAG         says whose folder it is
    FOLDER/files/NAME           a finished download
    FOLDER/parts/NAME           a download under way, or one that was broken off
    FOLDER/records/NAME.json    {"size": bytes, "modified": nanoseconds, or null until the download is finished}
    FOLDER/locks/...            which part of the folder some process uses just now

A record holds no path: it speaks of the file of its own NAME, so that no record can point out of the folder. It is
written before the first byte of its file. A file is joma's if it is a plain file, no folder above it is a symbolic
link, and it agrees with its record: in size and time of change if it is finished, else by being no larger. Every
download has a record of its own, so that processes at work at the same time do not overwrite each other's.
"""

import json
import os
import secrets
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from joma.host.file_kinds import OWN
from joma.host.files import atomically, continued, open_lock
from joma.scan.errors import CheckpointError

FOLDER = "joma-downloads"  # a name that nobody else uses
_TAG = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"  # by which backup programs know a cache
    "# joma keeps downloaded checkpoints here. It removes only files that it made itself.\n"
)
_LONGEST_RECORD = 1000  # bytes


@dataclass(frozen=True)
class Record:
    """What is known of a download: its size, and when its file last changed (None: it is not finished)."""

    size: int
    modified: int | None


class MadeFiles:
    """The downloads under `folder`, by name: `owner--model/commit/file`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, name: str) -> Path:
        return self.folder / "files" / name

    def names(self) -> list[str]:
        records = self.folder / "records"
        walked = os.walk(records) if self._unlinked(records) else ()  # it does not follow symbolic links
        paths = [Path(where, name) for where, _, names in walked for name in names if name.endswith(".json")]
        found = [path.relative_to(records).as_posix().removesuffix(".json") for path in paths]
        return [name for name in found if self._record(name) is not None]

    def made(self, name: str) -> list[Path]:
        """The files of this name that joma made: the finished one, the unfinished one, both or none."""
        return [path for path in (self.file(name), self._part(name)) if self._is_made(path, name)]

    def finished(self, name: str, size: int) -> bool:
        return self._is_made(self.file(name), name) and self.file(name).stat().st_size == size

    def size(self, name: str) -> int:
        return sum(found.st_size for path in self.made(name) if (found := self._plain(path)))

    def used(self, name: str) -> int:
        """When it was last used, in nanoseconds; 0 where another process has just removed it."""
        found = self._plain(self._record_path(name))
        return found.st_mtime_ns if found else 0

    def touch(self, name: str) -> None:
        os.utime(self._record_path(name))

    def begin(self, name: str, size: int) -> Path:
        """The file to write `size` bytes to. What an earlier download has left in it may stay."""
        part, record = self._part(name), self._record(name)
        if os.path.lexists(part) and not self._is_made(part, name):
            raise CheckpointError(f"{part} is in the way of a download, and joma did not make it; move it elsewhere")
        self._make_folder(part.parent)
        if record is None or record.size != size:
            self.remove(name)
        self._write_record(name, Record(size, None))
        if not part.exists():
            part.touch(exist_ok=False)
        return part

    def finish(self, name: str) -> None:
        """What `begin` gave has become the file."""
        part, file, record = self._part(name), self.file(name), self._record(name)
        self._make_folder(file.parent)
        if record is None or (os.path.lexists(file) and not self._is_made(file, name)):
            raise CheckpointError(f"{file} was changed by someone else during its download")
        self._write_record(name, Record(record.size, part.stat().st_mtime_ns))
        os.replace(part, file)

    def remove(self, name: str) -> None:
        """Remove what joma made under this name; a file of the same name that it did not make stays."""
        for path in self.made(name):
            path.unlink(missing_ok=True)
        if self._record(name) is not None:  # last: nothing of ours is ever without its record
            self._record_path(name).unlink(missing_ok=True)

    @contextmanager
    def locked(self, name: str, *, alone: bool, wait: bool = True) -> Iterator[bool]:
        """Keep other processes and threads off `name`, or with alone=False only those that want to be alone.

        Yields whether that was possible; with wait=True it always is.
        """
        path = self.folder / "locks" / f"{name}.lock"
        try:
            self._make_folder(path.parent)
            descriptor = open_lock(path)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be made: {error.strerror or error}") from error
        import fcntl  # here, so that local checkpoints can be scanned where there is none

        free = True
        try:
            try:
                fcntl.flock(descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                free = False
            except OSError as error:
                raise CheckpointError(f"{path} cannot be locked: {error.strerror or error}") from error
            yield free
        finally:
            os.close(descriptor)

    def _part(self, name: str) -> Path:
        return self.folder / "parts" / name

    def _record_path(self, name: str) -> Path:
        return self.folder / "records" / f"{name}.json"

    def _is_made(self, path: Path, name: str) -> bool:
        record, found = self._record(name), self._plain(path)
        if record is None or found is None:
            return False
        if record.modified is None:
            return path == self._part(name) and found.st_size <= record.size
        return (found.st_size, found.st_mtime_ns) == (record.size, record.modified)

    def _record(self, name: str) -> Record | None:
        """None where there is none, or something else in its place."""
        path = self._record_path(name)
        found = self._plain(path)
        if found is None or found.st_size > _LONGEST_RECORD:
            return None
        with suppress(OSError, ValueError, RecursionError):
            match json.loads(path.read_bytes()):
                case {"size": int(size), "modified": int() | None as modified} if size >= 0:
                    return Record(size, modified)
        return None

    def _write_record(self, name: str, record: Record) -> None:
        path = self._record_path(name)
        self._make_folder(path.parent)
        if os.path.lexists(path) and self._record(name) is None:  # damaged, or not ours: kept under another name
            path.rename(path.with_name(f"{path.name}.{secrets.token_hex(8)}.unreadable"))
        _write_atomically(path, json.dumps(asdict(record)))

    def _plain(self, path: Path) -> os.stat_result | None:
        """What the system knows of a plain file inside the folder; None for all else."""
        try:
            found = path.lstat()
        except (OSError, ValueError):
            return None
        return found if stat.S_ISREG(found.st_mode) and self._unlinked(path.parent) else None

    def _unlinked(self, path: Path) -> bool:
        """Whether nothing from the folder down to `path` is a symbolic link."""
        inside = path.relative_to(self.folder).parts
        return not any(self.folder.joinpath(*inside[:depth]).is_symlink() for depth in range(len(inside) + 1))

    def _make_folder(self, path: Path) -> None:
        if not self._unlinked(path):
            raise CheckpointError(f"{path} leads through a symbolic link; downloads go only to folders of their own")
        path.mkdir(parents=True, exist_ok=True)
        tag = self.folder / "CACHEDIR.TAG"
        if not os.path.lexists(tag):
            _write_atomically(tag, _TAG)


def _write_atomically(path: Path, text: str) -> None:
    with atomically(path, OWN) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


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
        return self._made.file(checkpoint)

    @contextmanager
    def hold(self, checkpoint: str, size: int, what: str) -> Iterator[None]:
        """Room for `size` bytes of a checkpoint, which no process removes meanwhile; waits until there is room."""
        if size > self.budget:
            budget = f"the budget is {self.budget / 1e9:.2f} GB; raise the budget"
            raise CheckpointError(f"{what} must be downloaded whole and has {size / 1e9:.2f} GB, {budget}")
        with self._changed:
            held = self._held  # users of the same checkpoint share its files
            self._changed.wait_for(
                lambda: _promised({**held, checkpoint: [*held.get(checkpoint, []), size]}) <= self.budget
            )
            held.setdefault(checkpoint, []).append(size)
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
        """The file `name` of `size` bytes, downloaded if it is not there. The caller holds its checkpoint."""
        path = self._made.file(name)
        with self._made.locked(f"{name}.download", alone=True):
            if self._made.finished(name, size):
                self._made.touch(name)
            elif os.path.lexists(path) and path not in self._made.made(name):
                # A file that joma did not make is refused, unless it is the very file that the hub lists.
                if path.is_symlink() or not path.is_file() or path.stat().st_size != size or not right(path):
                    what = f"{path} is not the file that the hub lists, and joma did not make it; move it elsewhere"
                    raise CheckpointError(what, file=path.name)
            else:
                try:
                    part = self._made.begin(name, size)
                    with continued(part) as stream:
                        fill(stream)
                        stream.flush()
                        os.fsync(stream.fileno())
                    if not right(part):
                        part.unlink()
                        what = "was downloaded, but does not have the hash that the hub lists; it was deleted"
                        raise CheckpointError(f"{path.name} {what}", file=path.name)
                    self._made.finish(name)
                except OSError as error:
                    raise CheckpointError(f"{path} cannot be written: {error.strerror or error}") from error
        return path

    def _make_room(self) -> None:
        names = [name for name in self._made.names() if _checkpoint(name) not in self._held]
        sizes = {name: self._made.size(name) for name in names}
        excess = sum(sizes.values()) + _promised(self._held) - self.budget
        for name in sorted((name for name in names if sizes[name]), key=self._made.used):
            if excess <= 0:
                return
            locked = self._made.locked(_checkpoint(name), alone=True, wait=False)
            with suppress(OSError, CheckpointError), locked as free:  # else the system refuses
                if free:  # and no other process uses its checkpoint
                    self._made.remove(name)
                    excess -= sizes[name]


def _promised(held: dict[str, list[int]]) -> int:
    return sum(max(sizes) for sizes in held.values())


def _checkpoint(name: str) -> str:
    return str(PurePosixPath(name).parent)
