"""The SQLite file of a run: how it is made, recognised, opened, and left behind as a single file."""

import os
import sqlite3
import stat
from contextlib import closing, suppress
from difflib import get_close_matches
from glob import escape
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from joma.host import limits
from joma.host.file_kinds import NEW
from joma.host.files import atomically
from joma.host.words import short
from joma.runs.errors import RunError, primary_code, sqlite_errors_explained

APPLICATION_ID = 0x6A6F6D61  # "joma"
SCHEMA = 1

_TABLES = {
    "meta": "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL, checksum INTEGER NOT NULL)",
    "series": "CREATE TABLE series (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    "entries": """CREATE TABLE entries (
        series INTEGER NOT NULL REFERENCES series (id),
        step INTEGER NOT NULL,
        dtype TEXT NOT NULL,
        shape TEXT NOT NULL,
        checksum INTEGER NOT NULL,
        data BLOB NOT NULL,
        PRIMARY KEY (series, step)
    )""",
}
_BEGINNING = (
    "PRAGMA journal_mode = OFF",  # nobody sees the file before it is complete, so nothing is ever rolled back
    "BEGIN",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA}",
    *_TABLES.values(),
)

_NETWORK_DRIVES = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "9p", "lustre", "gpfs", "beegfs", "ceph"}
_NETWORK_DRIVES |= {"glusterfs", "fuse.glusterfs", "fuse.sshfs"}
# What SQLite says where it cannot make the files that it needs beside a run, or cannot share their memory.
_NO_HELPER = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR)
_PATIENCE = 20.0  # seconds to wait for another connection's short lock
_A_MOMENT = 0.2  # seconds to wait for a reader that only looks
_NAP = 0.05  # seconds at a time: SQLite itself waits without hearing Ctrl-C


class Connection(sqlite3.Connection):
    """A connection that waits for the locks of others, and can be interrupted while it does."""

    patience = _PATIENCE

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        until = monotonic() + self.patience
        while True:
            try:
                return super().execute(sql, parameters)
            except sqlite3.OperationalError as error:
                if primary_code(error) != sqlite3.SQLITE_BUSY or monotonic() > until:
                    raise
            sleep(_NAP)


def create(path: Path, meta: list[tuple[str, str, int]]) -> None:
    """A new run file with its tables and rows of `meta`, complete or not there at all. Call it with the lock held."""
    for orphan in path.parent.glob(f".{escape(path.name)}.*.new"):  # of a creator that was killed: we hold the lock
        orphan.unlink(missing_ok=True)
    with atomically(path, NEW) as unfinished:
        with sqlite_errors_explained(path), closing(sqlite3.connect(unfinished, isolation_level=None)) as connection:
            for statement in _BEGINNING:
                connection.execute(statement)
            connection.executemany("INSERT INTO meta VALUES (?, ?, ?)", meta)
            connection.execute("COMMIT")
        remove_leftovers(path)


def remove_leftovers(path: Path) -> None:
    """Remove what a killed writer left beside a run: SQLite would take it for that of the next run of this name."""
    for leftover in ("-wal", "-shm", "-journal"):
        path.with_name(path.name + leftover).unlink(missing_ok=True)


def must_be_short(path: Path) -> None:
    """Refuse a path that SQLite cannot open; it would say no more than that."""
    if (length := len(os.fsencode(path))) > limits.RUN_PATH_BYTES:
        shown = short(str(path), 120)
        raise RunError(f"{shown} has a path of {length:,} bytes, and a run's has at most {limits.RUN_PATH_BYTES}")


def must_be_a_file(path: Path) -> None:
    """Refuse what cannot be a run before SQLite looks at it."""
    must_be_short(path)
    # Only stat: opening and closing the file ourselves would drop the locks SQLite holds on it in this process.
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(f"{path} does not exist; {_instead(path)}") from None
    except OSError as error:
        raise RunError(f"{path} cannot be looked at ({error.strerror}); check the name and its folder") from error
    if not stat.S_ISREG(found.st_mode):
        raise RunError(f"{path} is a folder or a device, not a run; a run is a plain file")
    if found.st_size < 512:  # the smallest page of SQLite
        raise RunError(f"{path} is empty or cut off ({found.st_size} bytes), not a run; delete it and run again")
    if not os.access(path, os.R_OK):
        raise RunError(f"{path} cannot be read; check its permissions")


def _instead(path: Path) -> str:
    """What there is in place of a run that is missing: a name like it, or any runs beside it."""
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}"
    try:
        names = sorted(entry.name for entry in path.parent.iterdir() if entry.is_file() and entry.name[0] != ".")
    except OSError:
        names = []
    if near := get_close_matches(path.name, names, 1):
        return f"did you mean {near[0]}?"
    runs = [name for name in names if name.endswith(".sqlite")]
    listed = ", ".join(runs[:5]) + (", ..." if runs[5:] else "")
    return f"its folder has {listed}" if runs else "its folder has no run"


def open_to_write(path: Path) -> Connection:
    """A connection that may write. Call it with the lock held.

    WAL with synchronous=NORMAL: a commit survives the death of the process, costs no fsync, and readers are never
    in the way. Power loss can take the last commits, never the consistency. WAL needs memory shared between all
    who open the file; on network drives there is none, so the rollback journal is used there.
    """
    must_be_a_file(path)
    with sqlite_errors_explained(path):
        try:
            return _opened_to_write(path, wal=not on_network_drive(path))
        except sqlite3.OperationalError as error:
            if primary_code(error) not in _NO_HELPER:
                raise
        # Back to the rollback journal where no memory can be shared: alone with the file, SQLite needs none for WAL.
        with closing(_connect(path, "mode=rw")) as connection:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("PRAGMA journal_mode = DELETE").fetchone()
        return _opened_to_write(path, wal=False)


def _opened_to_write(path: Path, *, wal: bool) -> Connection:
    connection = _opened(path, "mode=rw")
    try:
        if wal:
            with suppress(sqlite3.OperationalError):  # impossible here: the rollback journal stays
                connection.execute("PRAGMA journal_mode = WAL").fetchone()
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("BEGIN IMMEDIATE")  # says so here if it cannot be written
        connection.execute("ROLLBACK")
    except BaseException:
        connection.close()
        raise
    return connection


def open_to_read(path: Path) -> Connection:
    """A connection that cannot write; it sees what is committed, also while another process writes."""
    must_be_a_file(path)
    with sqlite_errors_explained(path):
        try:
            return _opened(path, "mode=ro")
        except sqlite3.OperationalError as error:
            if primary_code(error) not in _NO_HELPER:
                raise
        if _has_leftover(path, "-journal"):
            # A writer died amid a commit and the file may hold half of it; the first to open it must have that taken
            # back: SQLite rolls back before it reads anything.
            try:
                _opened(path, "mode=rw").close()
            except sqlite3.OperationalError as error:
                if primary_code(error) not in _NO_HELPER:
                    raise
                raise _interrupted(path, "-journal") from error
            return _connect(path, "mode=ro")
        # A file in WAL mode needs helper files; where none can be made, it is read as something that never changes.
        if _has_leftover(path, "-wal"):
            raise _interrupted(path, "-wal")
        return _opened(path, "mode=ro&immutable=1")


def open_untouched(path: Path, *, being_written: bool) -> Connection:
    """A connection to read that changes nothing, neither the file nor its folder, also while another process writes.

    `open_to_read` may make helper files, or mend what a killed writer left. being_written: whether somebody does.
    """
    must_be_a_file(path)
    with sqlite_errors_explained(path):
        if path.with_name(path.name + "-wal").exists():
            return _opened(path, "mode=ro&readonly_shm=1")
        if being_written:  # with a rollback journal: SQLite's locks keep half a commit from being read
            return _opened(path, "mode=ro")
        if _has_leftover(path, "-journal"):
            raise RunError(f"{path} was interrupted amid a commit; what opens it next, as joma export, mends it")
        return _opened(path, "mode=ro&immutable=1")  # else SQLite could make helper files


def has_our_mark(path: Path) -> bool:
    """Whether a file says of itself that it is a joma run. Nothing is locked or made; sqlite3.Error if it is no SQLite.

    Through SQLite: opening and closing the file ourselves would drop the locks SQLite holds on it in this process.
    """
    with closing(_connect(path, "mode=ro&immutable=1")) as connection:
        return bool(connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID)


def _opened(path: Path, options: str) -> Connection:
    connection = _connect(path, options)

    def pragma(name: str) -> int:
        return int(connection.execute(f"PRAGMA {name}").fetchone()[0])

    try:
        if pragma("application_id") != APPLICATION_ID:
            raise RunError(f"{path} is an SQLite file, but not a joma run")
        schema = pragma("user_version")
        if schema > SCHEMA:
            newer = f"was written by a newer joma (format {schema}; this reads up to {SCHEMA}); upgrade it"
            raise RunError(f"{path} {newer}")
        # SQLite notices missing pages; a last page that is cut short it would fill with zeros.
        full_pages = path.stat().st_size % pragma("page_size") == 0
        if schema < 1 or not (full_pages or _has_leftover(path, "-wal") or _has_leftover(path, "-journal")):
            raise RunError(f"{path} is damaged or cut off; restore it from a copy, or run it anew (fresh)")
        # A view in place of a table runs a query of its maker's; a trigger does so when something is written.
        for kind, name, sql in connection.execute("SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL"):
            if kind != "table" or name not in _TABLES or sql.split() != _TABLES[name].split():
                raise RunError(f"{path} is not a joma run: joma did not make its {kind} {name!r}")
        connection.execute("SELECT key FROM meta UNION ALL SELECT name FROM series LIMIT 1").fetchone()
        connection.execute("SELECT step FROM entries LIMIT 1").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def leave_single_file(connection: Connection) -> None:
    """Move everything into the one file and leave WAL mode, so that a read-only folder can serve it later.

    A reader that stays open prevents this; then the next writer, or SQLite itself, does it. One that looks for a
    moment, as `joma watch` does, is waited for.
    """
    connection.patience = _A_MOMENT
    with suppress(sqlite3.OperationalError):
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    with suppress(sqlite3.OperationalError):
        connection.execute("PRAGMA journal_mode = DELETE").fetchone()
    connection.patience = _PATIENCE


def on_network_drive(path: Path, mounts: Path = Path("/proc/self/mounts")) -> bool:
    """Whether the file system below `path` is known to be shared between machines; False where nobody can tell."""
    place = os.path.realpath(path)
    kind, longest = "", -1
    with suppress(OSError):
        for line in mounts.read_text(errors="replace").splitlines():
            _, point, found, *_ = (*line.split(" "), "", "")
            point = point.replace("\\040", " ").rstrip("/")
            if found and (place == point or place.startswith(point + "/")) and len(point) >= longest:
                kind, longest = found, len(point)
    return kind in _NETWORK_DRIVES


def _connect(path: Path, options: str) -> Connection:
    # Threads may share a run: `Run` itself lets one at a time through. No timeout: `Connection` waits.
    uri = f"{path.absolute().as_uri()}?{options}"
    connection = sqlite3.connect(
        uri, uri=True, isolation_level=None, timeout=0.0, check_same_thread=False, factory=Connection
    )
    connection.execute("PRAGMA trusted_schema = OFF")  # what a file defines calls no function of ours
    connection.execute("PRAGMA cell_size_check = ON")  # a damaged page is noticed when it is read
    return connection


def _has_leftover(path: Path, ending: str) -> bool:
    try:
        return path.with_name(path.name + ending).stat().st_size > 0
    except FileNotFoundError:
        return False


def _interrupted(path: Path, ending: str) -> RunError:
    both = f"copy it with {path.name + ending} and open the copy"
    return RunError(f"{path} was interrupted and its folder is read-only; {both}")
