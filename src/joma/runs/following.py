"""Read runs while other processes write them: which there are, and whether one changed. Nothing in their folder does.

A run is opened for a moment at each look and closed again: a reader that stays would keep its writer from leaving a
single file behind.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import sleep, time_ns
from typing import Any, TypeVar

from joma.runs import file
from joma.runs.errors import RunError
from joma.runs.lock import writer_of
from joma.runs.store import Run

T = TypeVar("T")
MONITOR = "monitor"
"""What the runs of `joma.monitor` are of."""
ALARMS = "alarms"
"""The series of a monitor's run that tells what its alarms found, as bytes of JSON: a list per step."""
_TRIES, _NAP = 8, 0.02  # to read a run while its writer opens or closes it, with seconds between
_SETTLED = 1_000_000_000  # nanoseconds after which what was written is there for readers
_ENDINGS = (".sqlite", ".joma")  # files that are meant to be runs, whatever is in them
_HELPERS = ("-wal", "-shm", "-journal", ".lock")  # files of SQLite and of the writer


def runs_in(folder: Path) -> list[Path]:
    """The runs of a folder and of `runs` in it, where `joma verify` puts them; those written last come first.

    A file that is called like a run is among them, whatever is in it.
    """
    found = [path for place in (folder, folder / "runs") for path in _runs_of(place)]
    return sorted(found, key=lambda path: (-written_at(path), path.name))


def must_stay_in(path: Path, folder: Path) -> None:
    """Refuse a link in a folder that leads out of it: who shows a folder to others shows what is in it, and no more.

    >>> must_stay_in(Path("/"), Path("/tmp"))
    Traceback (most recent call last):
        ...
    joma.runs.errors.RunError: / leads out of /tmp by a link, so it is not shown; name the file itself
    """
    inside, outside = Path(os.path.realpath(folder)), Path(os.path.realpath(path))
    if not outside.is_relative_to(inside):
        raise RunError(f"{path} leads out of {folder} by a link, so it is not shown; name the file itself")


def _runs_of(folder: Path) -> Iterator[Path]:
    try:
        paths = sorted(folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise RunError(f"{folder} cannot be looked at ({error.strerror}); check its permissions") from error
    for path in paths:
        with suppress(OSError):  # it is gone
            helper = path.name.startswith(".") or path.name.endswith(_HELPERS)
            if not helper and path.is_file() and _is_a_run(path):
                yield path


def _is_a_run(path: Path) -> bool:
    meant = path.suffix in _ENDINGS
    if path.stat().st_size < 512:  # the smallest page of SQLite
        return meant
    try:
        return file.has_our_mark(path)
    except (sqlite3.Error, UnicodeDecodeError):
        return meant


def written_at(path: Path) -> float:
    """When a run was last written, in seconds since 1970; 0 where there is none."""
    times = [0.0]
    for each in (path, path.with_name(path.name + "-wal")):
        with suppress(OSError):
            times.append(each.stat().st_mtime)
    return max(times)


def mark_of(path: Path) -> tuple[Any, ...]:
    """What differs when a run was written, its writer came or went, or a link leads elsewhere.

    SQLite writes a commit to its file first and shows it to readers a moment later; a look between the two sees the new
    file and the old rows. So a file that was just written gets another mark once it has been left alone.
    """
    found: list[Any] = [os.path.realpath(path), writer_of(path.resolve())]
    for each in (path, path.with_name(path.name + "-wal")):
        with suppress(OSError):
            stat = each.stat()
            found += [stat.st_mtime_ns, stat.st_size, stat.st_ino, time_ns() - stat.st_mtime_ns > _SETTLED]
    return tuple(found)


def read_patiently(path: Path, read: Callable[[Run, int | None], T]) -> T:
    """What `read` makes of a run that is opened for a moment, without a change to its file or folder.

    Again where it fails and somebody writes: who opens or closes a run takes files away beside it.
    read: gets the run and the process that writes it, None where there is none.
    """
    place = path.resolve()
    for left in reversed(range(_TRIES)):
        writer = writer_of(place)
        try:
            with Run(place, file.open_untouched(place, being_written=writer is not None), None) as run:
                return read(run, writer)
        except (RunError, OSError):
            if not left or (writer is None and writer_of(place) is None):
                raise
        sleep(_NAP)
    raise AssertionError  # the last try returns or raises
