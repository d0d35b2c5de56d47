"""Where commands write: places refused before any work is done, and files that are written whole or not at all."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from itertools import count
from pathlib import Path
from time import time
from typing import Any

from joma.host import limits
from joma.host.errors import BadInput, FileError

_NUMBERS = count()
_NAME_OF_A_RUN = 100  # bytes at most, with its folder
_ORPHANED_AFTER = 3600.0  # seconds


@contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """A name to write to; when the block ends well, what was written there becomes `path`, at once and for good.

    A reader of `path` meets the old file or the new one, never half of either, and so does whoever comes after a kill
    or a power cut. Every writer has a name of its own: two of them do not mix, the last one wins.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomically(Path(folder) / "a.txt") as unfinished:
    ...         _ = unfinished.write_text("done")
    ...     (Path(folder) / "a.txt").read_text(), len(list(Path(folder).iterdir()))
    ('done', 1)
    """
    _remove_orphans(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}-{next(_NUMBERS)}.new")
    try:
        yield unfinished
        with unfinished.open("rb+") as stream:
            os.fsync(stream.fileno())  # else, after a power cut, the new name could have an empty file
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


def usable_folder(out: Path) -> None:
    """Refuse what cannot be a folder for output before any work is done, and make it where it is not there."""
    refuse_files(out)
    out.mkdir(parents=True, exist_ok=True)


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

    >>> named_file("/a/../b.json").as_posix()
    '/b.json'
    """
    return Path(os.path.realpath(path))


def usable_file(path: Path, argument: str = "json") -> None:
    """Refuse what cannot be written as a file: said now, not after minutes of work."""
    if (path := named_file(path)).is_symlink():
        raise BadInput(f"{argument} must be a file, but {path} is a loop of links", argument=argument)
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "something else"
        raise BadInput(f"{argument} must be a file, but {path} is {kind}", argument=argument)
    if not path.parent.is_dir():
        raise BadInput(f"{argument} is {path}, and there is no folder {path.parent}", argument=argument)
    trial = path.with_name(f".{path.name}.{os.getpid()}.trial")
    with _writing(path):
        try:
            trial.touch()
        finally:
            with suppress(OSError):
                trial.unlink()


def as_json(content: dict[str, Any]) -> str:
    """As people can read it, with a line's end.

    >>> print(as_json({"rank": 0.5}), end="")
    {
     "rank": 0.5
    }
    """
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def write_json(path: Path, content: dict[str, Any]) -> None:
    """As JSON, whole or not at all."""
    write_text(path, as_json(content))


def write_text(path: Path, text: str) -> None:
    """Whole or not at all: a reader never meets half a file."""
    with _writing(path), atomically(path) as unfinished:
        # The name of a file need not be UTF-8. Half a character becomes \udce9, which JSON reads back.
        unfinished.write_text(text, encoding="utf-8", errors="backslashreplace")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Inside this block an error of the system names `path`: that of a full disk names nothing."""
    try:
        yield
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror or error}") from error
