"""The one exception of `joma.runs`, and how SQLite's own errors become it."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from joma.host.errors import JomaError


class RunError(JomaError):
    """Something about a run is wrong; the message is one sentence with the path and what would be right."""


class RunBusy(RunError):
    """Another process writes the run."""

    def __init__(self, message: str, writer: str) -> None:
        """writer: the number of the process, as far as it is known."""
        super().__init__(message)
        self.writer = writer


_SENTENCES: dict[int | None, str] = {
    sqlite3.SQLITE_NOTADB: "is not a joma run: it is no SQLite file, or its beginning is damaged",
    sqlite3.SQLITE_CORRUPT: "is damaged or cut off; restore it from a copy, or run it anew (fresh)",
    sqlite3.SQLITE_FULL: (
        "could not grow, the disk is full; everything recorded so far is safe, and once there is room "
        "the same command continues (in Python, Run.open(path, write=True) resumes it)"
    ),
    sqlite3.SQLITE_BUSY: "stayed locked by another program; close that program or try again",
    sqlite3.SQLITE_READONLY: "cannot be written; check the permissions of the file and of its folder",
    sqlite3.SQLITE_PERM: "cannot be opened; check the permissions of the file and of its folder",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; check the permissions of the file and of its folder",
    sqlite3.SQLITE_IOERR: (
        "could not be read or written, the disk is full or broken; what was recorded before stays recorded, "
        "and once the disk works the same command continues (in Python, Run.open(path, write=True) resumes it)"
    ),
}


@contextmanager
def sqlite_errors_explained(path: Path) -> Iterator[None]:
    """Inside this block every sqlite3 error becomes a RunError that says what is wrong with `path`."""
    try:
        yield
    except sqlite3.Error as error:
        # Our queries are fixed, so where no sentence fits the file is wrong. SQLite may quote pages of it.
        damage = f"is damaged: it has the mark of a joma run, but {' '.join(str(error).split())[:100]}"
        raise RunError(f"{path} {_SENTENCES.get(primary_code(error), damage)}") from error
    except UnicodeDecodeError as error:  # SQLite quotes damaged text in its own message, and Python cannot read it
        raise RunError(f"{path} {_SENTENCES[sqlite3.SQLITE_CORRUPT]}") from error


def primary_code(error: sqlite3.Error) -> int | None:
    """SQLite's result code without its extension; None for errors that Python itself raised."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else int(code) & 0xFF
