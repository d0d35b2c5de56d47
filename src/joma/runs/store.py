"""A run: what was asked for, on what machine, and named arrays over steps. One SQLite file each."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from glob import escape
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from joma.host.file_kinds import RUN
from joma.host.files import make_folder, refuse_others
from joma.host.showing import Shown
from joma.host.words import counted, short
from joma.runs import file
from joma.runs.dims import Dims, Named, frame_of, joined, must_fit, named, unnamed
from joma.runs.errors import RunError
from joma.runs.lock import WriterLock
from joma.runs.machine import machine, versions
from joma.runs.session import Session, meta_row, remembered
from joma.runs.values import integer, pack, plain_config, shape_of, unpack_all, valid_name, valid_step

if TYPE_CHECKING:
    from pandas import DataFrame

Status = Literal["running", "finished", "failed"]
StrPath = str | os.PathLike[str]


class Run(Session, Shown):
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

    def __init__(self, path: Path, connection: file.Connection, lock: WriterLock | None) -> None:
        """Not for callers: `Run.create` and `Run.open` make runs.

        path: the file. connection: to it. lock: held by the one process that writes; None for a reader.
        """
        super().__init__(path, connection, lock)
        self._series: dict[str, int] = {}  # ids of series this writer has used; they never change
        self._described: dict[str, Named | None] = {}  # what this writer knows of their dimensions
        try:
            self.study: str = valid_name(self._meta("study", str), "a study")
            self.config: dict[str, Any] = self._meta("config", dict)
            self.version: int = self._meta("version", int)
            self.seed: int | None = self._meta("seed", int, type(None))
            self.versions: dict[str, str] = self._meta("versions", dict)
            self.machine: dict[str, Any] = self._meta("machine", dict)
            self.created: str = self._meta("created", str)
        except BaseException:
            connection.close()
            raise

    @classmethod
    def create(
        cls, path: StrPath, *, study: str, config: Mapping[str, Any], version: int = 1, seed: int | None = None
    ) -> Run:
        """A new run in a new file; a file that exists is refused, a missing folder is made.

        config: what JSON can carry (see `plain_config`). version: the study's, raised when what it runs changes.
        """
        place = Path(os.path.realpath(path))
        file.must_be_short(place)
        meta: dict[str, Any] = {
            "study": valid_name(study, "a study"),
            "config": plain_config(config),
            "version": integer(version, "version"),
            "seed": None if seed is None else integer(seed, "seed"),
            "versions": versions(),
            "machine": machine(),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "status": "running",
            "reason": None,
        }
        if os.path.islink(path) and not place.exists():
            raise RunError(f"{path} is a link to {place}, which is not there; name the file itself")
        try:
            make_folder(place.parent)
        except OSError as error:
            raise RunError(f"{place} cannot be made: its folder cannot ({error.strerror})") from error
        with _locked_for_writing(place) as lock:
            if place.exists():
                raise RunError(f"{place} exists already; open it with Run.open or choose another name")
            file.create(place, [meta_row(key, value) for key, value in meta.items()])
            return cls(place, file.open_to_write(place), lock)

    @classmethod
    def open(cls, path: StrPath, *, write: bool = False) -> Run:
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
    def delete(path: StrPath) -> None:
        """Remove a run, if there is one, with all that stands beside it.

        One that is being written is refused, and so is what is no run of joma.
        """
        refuse_others(Path(path), RUN)  # unresolved: of a link the run that it leads to stays
        place = Path(os.path.realpath(path))
        if not place.parent.is_dir():
            return
        with _locked_for_writing(place) as lock:
            place.unlink(missing_ok=True)
            file.remove_leftovers(place)
            _remove_next_to(place, "checkpoint*", "kept", "share*")
            lock.release()

    @property
    def status(self) -> Status:
        """It is "running" also after a kill or a plain `close`: only `finish` and `fail` end a run."""
        return self._meta("status")  # type: ignore[no-any-return]

    @property
    def reason(self) -> str | None:
        """Why the run failed, in the words given to `fail`."""
        return self._meta("reason")  # type: ignore[no-any-return]

    def append(self, name: str, step: int, value: Any, *, dims: Dims | None = None) -> None:
        """Record `value` (a number, an array, a tensor) as `step` of the series `name`, durably.

        Steps come in any order, each once. bool, integers, floats and complex numbers keep their dtype;
        bfloat16 is stored as float32. dims: as in `describe`.
        """
        self.record(step, {name: value}, dims=None if dims is None else {name: dims})

    def record(self, step: int, values: Mapping[str, Any], *, dims: Mapping[str, Dims] | None = None) -> None:
        """Record one step of several series in one transaction: all of them or, if anything is wrong, none.

        dims: the dimensions of those series that have names for them, as in `describe`.
        """
        index = valid_step(step)
        packed = {valid_name(name): pack(value, name, index) for name, value in values.items()}
        described = {name: named(given, name) for name, given in (dims or {}).items()}
        with self._transaction() as connection:
            described = {name: self._describe(connection, name, given) for name, given in described.items()}
            new = {name: self._series_id(connection, name) for name in packed}
            limit = connection.getlimit(sqlite3.SQLITE_LIMIT_LENGTH) - 1000  # the other columns need room too
            for name, row in packed.items():
                known = described[name] if name in described else self._dims_of(name)
                if known is not None:
                    must_fit(known, shape_of(row.shape), name)
                what, size = f"step {index} of {name!r}", len(row.data)
                if size > limit:
                    raise RunError(f"{what} has {size:,} bytes, {limit:,} fit; record it in parts")
                try:
                    connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", (new[name], index, *row))
                except sqlite3.IntegrityError:
                    raise RunError(f"{what} is recorded already in {self.path}; a step is final") from None
        self._series.update(new)
        self._described.update(described)

    def describe(self, name: str, dims: Dims) -> None:
        """Name the dimensions of a series, once: what it holds at each step must have them.

        dims: names such as ("layer", "head"), or a mapping from names to the labels along them (None: counted from 0).
        They become the columns of `frame` and of exported tables. A description is final, as a step is.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, Run.create(f"{folder}/a", study="demo", config={}) as run:
        ...     run.describe("rank", {"matrix": ["up", "down"]})
        ...     run.append("rank", 0, [3.0, 2.0])
        ...     run.dims("rank")
        {'matrix': ('up', 'down')}
        """
        given = named(dims, valid_name(name))
        with self._transaction() as connection:
            for (shape,) in connection.execute(f"SELECT DISTINCT shape {_OF_SERIES}", (name,)).fetchall():
                must_fit(given, shape_of(shape), name)
            self._describe(connection, name, given)
        self._described[name] = given

    def dims(self, name: str) -> Named:
        """The dimensions of a series: names to labels, None for those counted from 0; dim_0, dim_1, ... if unnamed."""
        rows = self._rows(f"SELECT DISTINCT shape {_OF_SERIES}", name)
        shapes = [self._readable(f"shape of {name!r}", shape_of, shape) for (shape,) in rows]
        known = self._dims_of(name)
        if known is None:
            return unnamed(max(map(len, shapes or self._no_series(name))))
        for shape in shapes:
            must_fit(known, shape, name)  # else the file was tampered with
        return known

    def frame(self, name: str | None = None) -> DataFrame:
        """A series as a tidy table of pandas: `step`, one column per dimension, `value`; one row per number.

        Without a name all series, told apart by a first column `series`. There `value` has a type that holds all of
        them: whole numbers beyond 2^53 are exact only in the frame of their own series.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, Run.create(f"{folder}/a", study="demo", config={}) as run:
        ...     run.append("entropy", 5, [[0.5, 1.5]], dims=("layer", "head"))
        ...     run.frame("entropy")
           step  layer  head  value
        0     5      0     0    0.5
        1     5      0     1    1.5
        """
        if name is None:
            return joined({each: self.frame(each) for each in self.names()})
        dims, steps = self.dims(name), self.steps(name).tolist()
        return frame_of(dims, steps, [self.at(name, step) for step in steps])

    def keep(self, name: str, compute: Callable[[], Any], *, dims: Dims | None = None) -> np.ndarray:
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
            self.append(name, 0, compute(), dims=dims)
        return self.value(name)

    def names(self) -> list[str]:
        """All series, in the order in which they were first recorded."""
        names: list[str] = [name for (name,) in self._rows("SELECT name FROM series ORDER BY id")]
        if not all(isinstance(name, str) and name.isprintable() for name in names):
            raise RunError(f"{self.path} is damaged: a series has lost its name")
        if missing := sorted(set(self._sealed) - set(names)):
            raise RunError(f"{self.path} is damaged: series {missing[0]!r} is lost")
        return names

    def __contains__(self, name: object) -> bool:
        return bool(self._rows("SELECT 1 FROM series WHERE name = ?", name)) if isinstance(name, str) else False

    @remembered
    def steps(self, name: str) -> np.ndarray:
        """The recorded steps of a series, ascending: (steps,) int64."""
        rows = self._rows(f"SELECT step {_OF_SERIES} ORDER BY step", name) or self._no_series(name)
        self._must_be_all(name, len(rows))
        return np.array(self._checked_steps([step for (step,) in rows], name), dtype=np.int64)

    def last_step(self, name: str) -> int | None:
        """The largest recorded step, or None if the series does not exist: where to resume."""
        ((step,),) = self._rows(f"SELECT max(step) {_OF_SERIES}", name)
        return None if step is None else self._checked_steps([step], name)[0]

    @remembered
    def array(self, name: str) -> np.ndarray:
        """A series as one array (steps, ...), ordered by step. Mixed dtypes are promoted as numpy does."""
        rows = self._rows(f"SELECT step, {_PACKED} {_OF_SERIES} ORDER BY step", name) or self._no_series(name)
        self._must_be_all(name, len(rows))
        self._checked_steps([row[0] for row in rows], name)
        with self._naming_the_file():
            array = unpack_all(rows, name)
        if array is not None:
            return array
        arrays = [self._unpacked(name, *row) for row in rows]
        shapes = sorted({array.shape for array in arrays})
        if len(shapes) > 1:
            shown = ", ".join(map(str, shapes[:3])) + (", ..." if len(shapes) > 3 else "")
            raise RunError(f"{name!r} in {self.path} has steps of different shapes ({shown}); read them with at()")
        return np.stack(arrays)

    def at(self, name: str, step: int) -> np.ndarray:
        """One step of a series, with its own shape and dtype."""
        index = valid_step(step)
        rows = self._rows(f"SELECT step, {_PACKED} {_OF_SERIES} AND step = ?", name, index)
        if not rows:
            steps = self.steps(name)
            raise RunError(f"{name!r} in {self.path} has no step {index}; it has {len(steps)}, the last is {steps[-1]}")
        return self._unpacked(name, *rows[0])

    @remembered
    def value(self, name: str) -> np.ndarray:
        """The single entry of a series, as `keep` records it."""
        steps = self.steps(name)
        if len(steps) != 1:
            raise RunError(f"{name!r} in {self.path} has {len(steps)} steps, not one; read it with array()")
        return self.at(name, int(steps[0]))

    def finish(self) -> None:
        """Mark the run as complete and leave a single file. It stays open to read; nothing can be added."""
        _remove_next_to(self.path, "kept")
        counts = dict(self._rows("SELECT name, count(*) FROM entries JOIN series ON id = series GROUP BY series"))
        self._set_status("finished", None, sealed=counts)
        self._stop_writing()

    def meta(self) -> dict[str, Any]:
        """All that the run says of itself, by key; joma/host/schemas/run-1.json says what each is."""
        return {key: self._meta(key) for (key,) in self._rows("SELECT key FROM meta ORDER BY rowid")}

    @property
    def trace(self) -> str | None:
        """Where in the code a failed run stopped, if that was given to `fail`."""
        return self._meta_or_none("trace")  # type: ignore[no-any-return]

    def fail(self, reason: str, trace: str | None = None) -> None:
        """Mark the run as failed, with the reason, and leave a single file. `Run.open(..., write=True)` resumes it.

        trace: where in the code it happened, for whoever mends it.
        """
        self._set_status("failed", reason, **({} if trace is None else {"trace": trace}))
        self._stop_writing()

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
        try:
            state = f"{self.status}, {counted(len(self.names()), 'series', 'series')}"
        except RunError:
            state = "closed" if self._connection is None else "unreadable"
        return f"Run({short(self.path.name)}, study={short(self.study)}, {state})"

    def _dims_of(self, name: str) -> Named | None:
        if self._lock is not None and name in self._described:
            return self._described[name]
        given = self._meta_or_none(f"dims/{name}")
        what = f"dimensions of {name!r}"
        self._described[name] = None if given is None else self._readable(what, lambda it: named(dict(it), name), given)
        return self._described[name]

    def _describe(self, connection: sqlite3.Connection, name: str, given: Named) -> Named:
        known = self._dims_of(name)
        if known is None:
            row = meta_row(f"dims/{name}", [[dim, labels] for dim, labels in given.items()])
            connection.execute("INSERT INTO meta VALUES (?, ?, ?)", row)
        elif known != given:
            raise RunError(f"{name!r} in {self.path} is described already, with the dimensions {list(known)}")
        return given

    def _set_status(self, status: Status, reason: str | None, **more: Any) -> None:
        rows = [meta_row(key, value) for key, value in {"status": status, "reason": reason, **more}.items()]
        with self._transaction() as connection:
            connection.executemany("REPLACE INTO meta VALUES (?, ?, ?)", rows)

    def _series_id(self, connection: sqlite3.Connection, name: str) -> int:
        if name in self._series:
            return self._series[name]
        connection.execute("INSERT OR IGNORE INTO series (name) VALUES (?)", (name,))
        return int(connection.execute("SELECT id FROM series WHERE name = ?", (name,)).fetchone()[0])

    def _no_series(self, name: str) -> Any:
        names = self.names()
        if name in names:
            raise RunError(f"{self.path} is damaged: series {name!r} has lost its steps")
        known = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "") if names else "nothing yet"
        raise RunError(f"{self.path} has no series {name!r}; it has {known}")


_PACKED = "dtype, shape, checksum, data"
_OF_SERIES = "FROM entries WHERE series = (SELECT id FROM series WHERE name = ?)"


def _remove_next_to(place: Path, *kinds: str) -> None:
    """Remove what training keeps next to a run: checkpoints, states that branches begin from, shares of members."""
    for found in [found for kind in kinds for found in place.parent.glob(f"{escape(place.name)}-*.{kind}")]:
        found.unlink(missing_ok=True)


@contextmanager
def _locked_for_writing(path: Path) -> Iterator[WriterLock]:
    """The writer's lock, kept if the block succeeds and released if it does not."""
    lock = WriterLock(path)
    try:
        yield lock
    except BaseException:
        lock.release()
        raise
