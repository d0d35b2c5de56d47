"""A run: what was asked for, on what machine, and named arrays over steps. One SQLite file each."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from glob import escape
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np

from joma.runs import file
from joma.runs.errors import RunError, sqlite_errors_explained
from joma.runs.lock import WriterLock
from joma.runs.machine import machine, versions
from joma.runs.values import Packed, checksum_of, pack, plain_config, unpack

Status = Literal["running", "finished", "failed"]


class Run:
    """The record of what happened. Made by `Run.create`, read and resumed by `Run.open`.

    When `append`, `record` or `keep` returns, killing the process loses nothing. One process writes; any number
    may read at the same time. Everything that goes wrong is a `RunError`.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> with Run.create(f"{folder.name}/a.joma", study="demo", config={"lr": 0.1}, seed=0) as run:
    ...     for step in range(3):
    ...         run.append("loss", step, 1 / (1 + step))
    ...     run.finish()
    >>> with Run.open(f"{folder.name}/a.joma") as run:
    ...     run.status, run.config, run.array("loss").tolist()
    ('finished', {'lr': 0.1}, [1.0, 0.5, 0.3333333333333333])
    >>> folder.cleanup()
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: WriterLock | None) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = connection
        self._lock = lock
        self._process = os.getpid()
        self._one_at_a_time = threading.RLock()
        self._series: dict[str, int] = {}  # ids of series this writer has used; they never change
        try:
            self.study: str = self._meta("study")
            self.config: dict[str, Any] = self._meta("config")
            self.version: int = self._meta("version")
            self.seed: int | None = self._meta("seed")
            self.versions: dict[str, str] = self._meta("versions")
            self.machine: dict[str, Any] = self._meta("machine")
            self.created: str = self._meta("created")
        except BaseException:
            connection.close()
            raise

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        study: str,
        config: Mapping[str, Any],
        version: int = 1,
        seed: int | None = None,
    ) -> Run:
        """A new run in a new file; a file that exists is refused, a missing folder is made.

        config: what JSON can carry (see `plain_config`). version: the study's, raised when what it runs changes.
        """
        place = Path(os.path.realpath(path))
        meta: dict[str, Any] = {
            "study": _valid_name(study, "a study"),
            "config": plain_config(config),
            "version": _whole(version, "version"),
            "seed": None if seed is None else _whole(seed, "seed"),
            "versions": versions(),
            "machine": machine(),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "status": "running",
            "reason": None,
        }
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{place} cannot be made: its folder cannot ({error.strerror})") from error
        with _locked_for_writing(place) as lock:
            if place.exists():
                raise RunError(f"{place} exists already; open it with Run.open or choose another name")
            file.create(place, [_meta_row(key, value) for key, value in meta.items()])
            return cls(place, file.open_to_write(place), lock)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, write: bool = False) -> Run:
        """A run that exists: to read (also while another process writes it), or with `write` to resume it.

        Resuming sets the status back to "running". A finished run is complete and cannot be opened to write.
        """
        place = Path(os.path.realpath(path))
        if not write:
            return cls(place, file.open_to_read(place), None)
        file.must_be_a_file(place)  # first, so that no lock appears beside something that is no run
        with _locked_for_writing(place) as lock:
            run = cls(place, file.open_to_write(place), lock)
            try:
                if run.status == "finished":
                    raise RunError(f"{place} is finished, nothing can be added; read it, or create a new run")
                run._set_status("running", None)
            except BaseException:
                run.close()
                raise
            return run

    @staticmethod
    def delete(path: str | os.PathLike[str]) -> None:
        """Remove a run, if there is one, with all that stands beside it; one that is being written is refused."""
        place = Path(os.path.realpath(path))
        if not place.parent.is_dir():
            return
        with _locked_for_writing(place) as lock:
            place.unlink(missing_ok=True)
            file.remove_leftovers(place)
            for checkpoint in place.parent.glob(f"{escape(place.name)}-*.checkpoint*"):
                checkpoint.unlink(missing_ok=True)
            lock.release()

    @property
    def status(self) -> Status:
        """It is "running" also after a kill or a plain `close`: only `finish` and `fail` end a run."""
        status: Status = self._meta("status")
        return status

    @property
    def reason(self) -> str | None:
        """Why the run failed, in the words given to `fail`."""
        reason: str | None = self._meta("reason")
        return reason

    def append(self, name: str, step: int, value: Any) -> None:
        """Record `value` (a number, an array, a tensor) as `step` of the series `name`, durably.

        Steps come in any order, each once. bool, integers, floats and complex numbers keep their dtype;
        bfloat16 is stored as float32.
        """
        self.record(step, {name: value})

    def record(self, step: int, values: Mapping[str, Any]) -> None:
        """Record one step of several series in one transaction: all of them or, if anything is wrong, none."""
        index = _valid_step(step)
        packed = {_valid_name(name): pack(value, name, index) for name, value in values.items()}
        with self._transaction() as connection:
            new = {name: self._series_id(connection, name) for name in packed}
            for name, row in packed.items():
                self._insert(connection, name, new[name], index, row)
        self._series.update(new)

    def keep(self, name: str, compute: Callable[[], Any]) -> np.ndarray:
        """What was recorded as `name`; if nothing was, `compute` it, record it as step 0 and return it.

        A study built of these resumes by itself: what is there is not computed again.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, Run.create(f"{folder}/a", study="demo", config={}) as run:
        ...     first = run.keep("answer", lambda: 6 * 7)
        ...     again = run.keep("answer", lambda: "never called")
        >>> int(again)
        42
        """
        if name not in self:
            self._must_be_writable()
            self.append(name, 0, compute())
        return self.value(name)

    def names(self) -> list[str]:
        """All series, in the order in which they were first recorded."""
        names = [name for (name,) in self._rows("SELECT name FROM series ORDER BY id")]
        if not all(isinstance(name, str) for name in names):
            raise RunError(f"{self.path} is damaged: a series has lost its name")
        return names

    def __contains__(self, name: object) -> bool:
        return bool(self._rows("SELECT 1 FROM series WHERE name = ?", name)) if isinstance(name, str) else False

    def steps(self, name: str) -> np.ndarray:
        """The recorded steps of a series, ascending: (steps,) int64."""
        rows = self._rows(f"SELECT step {_OF_SERIES} ORDER BY step", name)
        return np.array([step for (step,) in rows] or self._no_series(name), dtype=np.int64)

    def last_step(self, name: str) -> int | None:
        """The largest recorded step, or None if the series does not exist: where to resume."""
        ((step,),) = self._rows(f"SELECT max(step) {_OF_SERIES}", name)
        return None if step is None else int(step)

    def array(self, name: str) -> np.ndarray:
        """A series as one array (steps, ...), ordered by step. Mixed dtypes are promoted as numpy does."""
        rows = self._rows(f"SELECT step, {_PACKED} {_OF_SERIES} ORDER BY step", name) or self._no_series(name)
        arrays = [self._unpacked(name, *row) for row in rows]
        shapes = sorted({array.shape for array in arrays})
        if len(shapes) > 1:
            shown = ", ".join(map(str, shapes[:3])) + (", ..." if len(shapes) > 3 else "")
            raise RunError(f"{name!r} in {self.path} has steps of different shapes ({shown}); read them with at()")
        return np.stack(arrays)

    def at(self, name: str, step: int) -> np.ndarray:
        """One step of a series, with its own shape and dtype."""
        index = _valid_step(step)
        rows = self._rows(f"SELECT step, {_PACKED} {_OF_SERIES} AND step = ?", name, index)
        if not rows:
            steps = self.steps(name)
            raise RunError(f"{name!r} in {self.path} has no step {index}; it has {len(steps)}, the last is {steps[-1]}")
        return self._unpacked(name, *rows[0])

    def value(self, name: str) -> np.ndarray:
        """The single entry of a series, as `keep` records it."""
        steps = self.steps(name)
        if len(steps) != 1:
            raise RunError(f"{name!r} in {self.path} has {len(steps)} steps, not one; read it with array()")
        return self.at(name, int(steps[0]))

    def finish(self) -> None:
        """Mark the run as complete and leave a single file. It stays open to read; nothing can be added."""
        self._set_status("finished", None)
        self._stop_writing()

    @property
    def trace(self) -> str | None:
        """Where in the code a failed run stopped, if that was given to `fail`."""
        if not self._rows("SELECT 1 FROM meta WHERE key = 'trace'"):
            return None
        trace: str | None = self._meta("trace")
        return trace

    def fail(self, reason: str, trace: str | None = None) -> None:
        """Mark the run as failed, with the reason, and leave a single file. `Run.open(..., write=True)` resumes it.

        trace: where in the code it happened, for whoever mends it.
        """
        self._set_status("failed", reason, trace)
        self._stop_writing()

    def close(self) -> None:
        """Let go of the file; the status stays what it is. Closing twice is fine."""
        if self._process == os.getpid():  # a forked child must not touch its parent's connection
            try:
                self._stop_writing()
            finally:
                self._disconnect()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Close. An exception marks a run that is being written as failed; an interrupt leaves it "running"."""
        if isinstance(error, Exception) and self._lock is not None:
            with suppress(RunError):  # the first error is the one to show
                self.fail(f"{type(error).__name__}: {error}")
        self.close()

    def __del__(self) -> None:
        with suppress(RunError):  # a run that was dropped without close must not stay locked
            self.close()

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, study={self.study!r})"

    def _meta(self, key: str) -> Any:
        rows = self._rows("SELECT value, checksum FROM meta WHERE key = ?", key)
        if len(rows) != 1 or rows[0][1] != checksum_of(key, rows[0][0]):
            raise RunError(f"{self.path} is damaged: its {key} cannot be read")
        return json.loads(rows[0][0])

    def _set_status(self, status: Status, reason: str | None, trace: str | None = None) -> None:
        with self._transaction() as connection:
            rows = [_meta_row("status", status), _meta_row("reason", reason)]
            if trace is not None:
                rows.append(_meta_row("trace", trace))
            connection.executemany("REPLACE INTO meta VALUES (?, ?, ?)", rows)

    @contextmanager
    def _usable(self) -> Iterator[sqlite3.Connection]:
        """The connection, for one thread at a time, with SQLite's errors explained."""
        with self._one_at_a_time, sqlite_errors_explained(self.path):
            if self._connection is None:
                raise RunError(f"{self.path} was closed; open it again with Run.open")
            if self._process != os.getpid():
                raise RunError(f"{self.path} was opened by another process, before a fork; open it again here")
            yield self._connection

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._usable() as connection:
            self._must_be_writable()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # some errors roll back by themselves
                    connection.execute("ROLLBACK")
                raise

    def _rows(self, query: str, *values: object) -> list[Any]:
        with self._usable() as connection:
            return connection.execute(query, values).fetchall()

    def _must_be_writable(self) -> None:
        if self._lock is None:
            why = "is finished" if self.status == "finished" else "is open to read only"
            raise RunError(f"{self.path} {why}, nothing can be added")

    def _series_id(self, connection: sqlite3.Connection, name: str) -> int:
        if name in self._series:
            return self._series[name]
        connection.execute("INSERT OR IGNORE INTO series (name) VALUES (?)", (name,))
        return int(connection.execute("SELECT id FROM series WHERE name = ?", (name,)).fetchone()[0])

    def _insert(self, connection: sqlite3.Connection, name: str, series: int, step: int, row: Packed) -> None:
        limit = connection.getlimit(sqlite3.SQLITE_LIMIT_LENGTH) - 1000  # the other columns need room too
        if len(row.data) > limit:
            raise RunError(
                f"step {step} of {name!r} has {len(row.data):,} bytes, at most {limit:,} fit; record it in parts"
            )
        try:
            connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", (series, step, *row))
        except sqlite3.IntegrityError:
            raise RunError(f"step {step} of {name!r} is recorded already in {self.path}; a step is final") from None

    def _unpacked(self, name: str, step: int, *packed: Any) -> np.ndarray:
        try:
            return unpack(Packed(*packed), name, step)
        except RunError as error:
            raise RunError(f"{self.path}: {error}") from None

    def _no_series(self, name: str) -> Any:
        names = self.names()
        if name in names:
            raise RunError(f"{self.path} is damaged: series {name!r} has lost its steps")
        known = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "") if names else "nothing yet"
        raise RunError(f"{self.path} has no series {name!r}; it has {known}")

    def _stop_writing(self) -> None:
        if self._lock is not None:
            try:
                with self._usable() as connection:
                    file.leave_single_file(connection)
            finally:
                self._lock.release()
                self._lock = None

    def _disconnect(self) -> None:
        with self._one_at_a_time:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


_PACKED = "dtype, shape, checksum, data"
_OF_SERIES = "FROM entries WHERE series = (SELECT id FROM series WHERE name = ?)"


@contextmanager
def _locked_for_writing(path: Path) -> Iterator[WriterLock]:
    """The writer's lock, kept if the block succeeds and released if it does not."""
    lock = WriterLock(path)
    try:
        yield lock
    except BaseException:
        lock.release()
        raise


def _meta_row(key: str, value: object) -> tuple[str, str, int]:
    text = json.dumps(value)
    return key, text, checksum_of(key, text)


def _valid_name(name: object, what: str = "a series") -> str:
    if not isinstance(name, str) or not name or not name.isprintable():
        raise RunError(f"{what} needs a printable, non-empty name like 'loss' or 'layer3/entropy', got {name!r}")
    return name


def _valid_step(step: object) -> int:
    index = _whole(step, "step")
    if not 0 <= index < 2**63:
        raise RunError(f"step must lie between 0 and 2^63 - 1, got {index}")
    return index


def _whole(value: object, what: str) -> int:
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    raise RunError(f"{what} must be a whole number, got {value!r}")
