"""The door that all files of joma go out by: what may be replaced, what is refused, written whole or not at all.

A file that is there is replaced only where its content says that joma wrote it (`joma.host.file_kinds`), where it is
empty, or where the user said `--force`. Folders, links, devices, pipes and read-only files are never replaced.
"""

import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from glob import escape
from itertools import count
from math import isfinite
from pathlib import Path
from time import time
from typing import Any, BinaryIO

from joma.host import limits
from joma.host.errors import BadInput, FileError
from joma.host.file_kinds import JSON, Ends, Kind, forced

_NUMBERS = count()
_NAME_OF_A_RUN = 100  # bytes at most, with its folder
_ORPHANED_AFTER = 3600.0  # seconds


@contextmanager
def atomically(path: Path, kind: Kind) -> Iterator[Path]:
    """A name to write to; when the block ends well, what was written there becomes `path`, at once and for good.

    A reader of `path` meets the old file or the new one, never half of either, and so does whoever comes after a kill
    or a power cut. Every writer has a name of its own: two of them do not mix, the last one wins. Nobody can guess it,
    and so nobody can leave a link there that leads elsewhere.

    - path: the file; its folder is there
    - kind: what is written, and so what a file that is there must be to be replaced
    """
    refuse_others(path, kind)
    _remove_orphans(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}-{next(_NUMBERS)}-{secrets.token_hex(3)}.new")
    try:
        yield unfinished
        with unfinished.open("rb+") as stream:
            os.fsync(stream.fileno())  # else, after a power cut, the new name could have an empty file
        refuse_others(path, kind)  # work takes minutes, in which somebody else may have come to have a file here
        os.replace(unfinished, path)
    finally:
        with suppress(OSError):  # not there: it was never made, or it has become `path`
            unfinished.unlink()


def _remove_orphans(path: Path) -> None:
    """What writers of this file left that were killed: of processes that are gone, and not of today's last minutes.

    A folder may be shared between machines, whose processes cannot be seen here; an hour is more than any file takes.
    """
    for orphan in path.parent.glob(f".{escape(path.name)}.*.new"):
        with suppress(OSError, ValueError):
            writer = int(orphan.name.removesuffix(".new").rpartition(".")[2].partition("-")[0])
            if not _alive(writer) and time() - orphan.stat().st_mtime > _ORPHANED_AFTER:
                orphan.unlink()


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


def refuse_others(path: Path, kind: Kind) -> None:
    """Refuse what must not be replaced: all but an empty file and one of ours. Nothing is changed.

    The bits of the file count, not whether the system would let us: root may write everywhere.
    """
    try:
        found = path.lstat()
    except OSError:  # not there, or the writing says why it cannot be
        return
    what = is_no_file(found.st_mode) or ("" if found.st_mode & 0o222 else "read-only")
    if what:
        raise FileError(f"{path} is {what}, and is not replaced; name another file")
    if found.st_size and not forced.get() and not _is_ours(path, kind):
        raise _others(path, f"is there already, and is not {kind.words} that joma wrote")


def is_no_file(mode: int) -> str:
    """What a place is, by its mode, that is no regular file; empty for one that is.

    >>> is_no_file(Path("/").stat().st_mode), is_no_file(stat.S_IFREG)
    ('a folder', '')
    """
    kinds = {stat.S_IFREG: "", stat.S_IFDIR: "a folder", stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe"}
    return kinds.get(stat.S_IFMT(mode), "a device or a socket")


def _others(path: Path, why: str) -> FileError:
    error = FileError(f"{path} {why}; name another file, or remove this one first")
    error.argument = "force"
    return error


def _is_ours(path: Path, kind: Kind) -> bool:
    try:
        with _opened(path, os.O_RDONLY) as descriptor:
            read = lambda at, size: os.pread(descriptor, size, at)
            return kind.is_ours(Ends(os.fstat(descriptor).st_size, read))
    except OSError:  # what cannot be read is nobody's to replace
        return False


def open_lock(path: Path) -> int:
    """The descriptor of a file that is only locked: made where it is not there, and never through a link."""
    return _descriptor(path, os.O_RDWR | os.O_CREAT)


def _descriptor(path: Path, flags: int) -> int:
    with suppress(FileNotFoundError):
        _must_be_a_file(path, path.lstat())  # first: opening a device can do something
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    """The descriptor of a regular file; a link is not followed, and a pipe is not waited for."""
    descriptor = _descriptor(path, flags)
    try:
        _must_be_a_file(path, os.fstat(descriptor))
        yield descriptor
    finally:
        os.close(descriptor)


def _must_be_a_file(path: Path, found: os.stat_result) -> None:
    if what := is_no_file(found.st_mode):
        raise FileError(f"{path} is {what}; name a file")


@contextmanager
def continued(path: Path) -> Iterator[BinaryIO]:
    """A stream at the end of a file that goes on, which is made where it is not there; links are refused."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
    with _opened(path, flags) as descriptor, open(descriptor, "ab", closefd=False) as stream:
        yield stream


def ready_for_lines(path: Path, begins: bytes, is_ours: Callable[[bytes], bool]) -> None:
    """Make a file of lines, or cut off the line that a killed process did not finish. Others' files are refused.

    Ours is a file that is empty, or whose last line is. Only the end of the file is read.
    """
    with _writing(path), _opened(path, os.O_RDWR | os.O_CREAT) as descriptor:
        found = os.fstat(descriptor)
        if not found.st_mode & 0o222:
            raise FileError(f"{path} is read-only; name another file")
        if not (end := _last_line(descriptor, found.st_size)):
            return
        line, newline, rest = end.rpartition(b"\n")
        if not (is_ours(line) and begins.startswith(rest[: len(begins)]) if newline else rest.startswith(begins)):
            raise FileError(f"{path} is there already, and does not end in a line that joma wrote; name another file")
        os.ftruncate(descriptor, found.st_size - len(rest))


def _last_line(descriptor: int, size: int) -> bytes:
    """The last whole line, with its end, and what comes after it; longer than any line, where there is none."""
    window = 2**16
    while True:
        end = os.pread(descriptor, window, max(size - window, 0))
        whole, newline, rest = end.rpartition(b"\n")
        _, before, line = whole.rpartition(b"\n")
        if newline and (before or window >= size):
            return line + newline + rest
        if window >= size or window >= limits.LINE_BYTES:
            return end
        window *= 16


def usable_folder(out: Path) -> None:
    """Refuse what cannot be a folder for output before any work is done, and make it where it is not there."""
    refuse_files(out)
    make_folder(out)


def make_folder(path: Path) -> None:
    """With its parents, where it is not there."""
    path.mkdir(parents=True, exist_ok=True)


def refuse_files(out: Path) -> None:
    """Refuse what cannot be a folder for output, and make nothing yet."""
    if out.exists() and not out.is_dir():
        raise BadInput(f"out must be a folder, but {out} is a file", argument="out")
    deep, most = len(os.fsencode(os.path.realpath(out))), limits.RUN_PATH_BYTES - _NAME_OF_A_RUN
    if deep > most:
        sentence = f"out has a path of {deep:,} bytes, and runs below it need one of at most {most}: {out}"
        raise BadInput(sentence, argument="out")


def named_file(path: str | Path) -> Path:
    """The file that a user means who names it by a link: the file is written, and the link stays.

    For names that a user types alone. In a folder of a stranger a link is replaced: it may lead to a file of yours.
    """
    return Path(os.path.realpath(path))


def usable_file(path: Path, kind: Kind, argument: str = "json") -> None:
    """Refuse what cannot be written as a file, and what must not be replaced: said now, not after minutes of work."""
    if (path := named_file(path)).is_symlink():
        raise BadInput(f"{argument} must be a file, but {path} is a loop of links", argument=argument)
    if path.exists() and (what := is_no_file(path.stat().st_mode)):
        raise BadInput(f"{argument} must be a file, but {path} is {what}", argument=argument)
    if not path.parent.is_dir():
        raise BadInput(f"{argument} is {path}, and there is no folder {path.parent}", argument=argument)
    refuse_others(path, kind)
    trial = path.with_name(f".{path.name}.{os.getpid()}.trial")
    with _writing(path):
        try:
            trial.touch()
        finally:
            with suppress(OSError):
                trial.unlink()


def as_json(content: dict[str, Any]) -> str:
    """As people can read it, with a line's end. JSON has no NaN and no infinity: they are refused."""
    try:
        return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    except ValueError:
        place, number = next(_not_finite(content, ""))
        raise FileError(f"{place} is {number}, and JSON has no such number") from None


def _not_finite(value: Any, place: str) -> Iterator[tuple[str, float]]:
    """Every number that JSON cannot hold, and where it is."""
    if isinstance(value, float) and not isfinite(value):
        yield place, value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _not_finite(each, f"{place}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for at, each in enumerate(value):
            yield from _not_finite(each, f"{place}[{at}]")


def write_json(path: Path, content: dict[str, Any], kind: Kind = JSON) -> None:
    """As JSON, whole or not at all. kind: what a file that is there must be, `OWN` where its name is ours."""
    write_text(path, as_json(content), kind)


def write_text(path: Path, text: str, kind: Kind) -> None:
    """Whole or not at all: a reader never meets half a file."""
    with _writing(path), atomically(path, kind) as unfinished:
        # The name of a file need not be UTF-8. Half a character becomes \udce9, which JSON reads back.
        unfinished.write_text(text, encoding="utf-8", errors="backslashreplace")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Inside this block an error of the system names `path`: that of a full disk names nothing."""
    try:
        yield
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror or error}") from error
