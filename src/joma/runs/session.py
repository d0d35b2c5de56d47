"""The open file of a run: one thread at a time, one transaction at a time, errors explained."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property, wraps
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from joma.host import limits
from joma.host.limits import depth_of
from joma.runs import file
from joma.runs.errors import RunError, sqlite_errors_explained
from joma.runs.lock import WriterLock
from joma.runs.values import Packed, checksum_of, unpack

_SMALL = 2**20
"""Bytes of an array that is remembered: of larger ones reading is not what takes time."""
S = TypeVar("S", bound="Session")


def remembered(read: Callable[[S, str], np.ndarray]) -> Callable[[S, str], np.ndarray]:
    """A method that reads a series, once inside `Session.remembering`; each caller may change what it gets."""

    @wraps(read)
    def once(self: S, name: str) -> np.ndarray:
        memory = self._remembered
        if memory is None or not isinstance(name, str):
            return read(self, name)
        found = memory.get((read.__name__, name))
        if found is None:
            found = read(self, name)
            if found.nbytes > _SMALL:
                return found
            memory[read.__name__, name] = found
        return found.copy()

    return once


class Session:
    """What `Run` reads and writes through. Its answers are what they should be, or a `RunError`."""

    _process = -1
    """Who opened the file; nobody, until all that `close` needs is there."""

    def __init__(self, path: Path, connection: file.Connection, lock: WriterLock | None) -> None:
        """path: the file. connection: to it. lock: held by the one process that writes; None for a reader."""
        self.path = path
        self._connection: file.Connection | None = connection
        self._lock = lock
        self._one_at_a_time = threading.RLock()
        self._remembered: dict[tuple[str, ...], np.ndarray] | None = None
        self._remembering = 0  # how many ask for it: threads may share a run
        self._process = os.getpid()

    def close(self) -> None:
        """Let go of the file; the status stays what it is. Closing twice is fine."""
        if self._process == os.getpid():  # a forked child must not touch its parent's connection
            try:
                self._stop_writing()
            finally:
                with self._one_at_a_time:
                    if self._connection is not None:
                        self._connection.close()
                        self._connection = None

    @contextmanager
    def remembering(self) -> Iterator[None]:
        """Inside, a series that was read once is not read from the file again: judges ask for the same ones many times.

        What this run writes is seen at once; what another process adds is seen after the block.
        """
        with self._one_at_a_time:
            self._remembering += 1
            self._remembered = {} if self._remembered is None else self._remembered
        try:
            yield
        finally:
            with self._one_at_a_time:
                self._remembering -= 1
                self._remembered = self._remembered if self._remembering else None

    def _meta(self, key: str, *kinds: type) -> Any:
        """What the run knows about itself, of these kinds; a file that was tampered with may hold anything there."""
        rows = self._rows("SELECT value, checksum FROM meta WHERE key = ?", key)
        with suppress(ValueError, TypeError, RecursionError):
            if len(rows) == 1 and rows[0][1] == checksum_of(key, rows[0][0]):
                value = json.loads(rows[0][0])
                if depth_of(value, limits.JSON_DEPTH) <= limits.JSON_DEPTH and (not kinds or type(value) in kinds):
                    return value
        raise RunError(f"{self.path} is damaged: its {key} cannot be read")

    def _meta_or_none(self, key: str) -> Any:
        return self._meta(key) if self._rows("SELECT 1 FROM meta WHERE key = ?", key) else None

    @cached_property
    def _sealed(self) -> dict[str, int]:
        """How many steps each series of a finished run has; empty before, and in files of earlier versions."""
        if self._lock is not None or not self._rows("SELECT 1 FROM meta WHERE key = 'sealed'"):
            return {}
        return self._meta("sealed", dict)  # type: ignore[no-any-return]

    def _must_be_all(self, name: str, steps: int) -> None:
        """Every row has its checksum, so a changed one is noticed; this notices one that is gone."""
        if name in self._sealed and steps != self._sealed[name]:
            raise RunError(f"{self.path} is damaged: series {name!r} has {steps} of {self._sealed[name]} steps")

    def _checked_steps(self, steps: list[Any], name: str) -> list[int]:
        """Steps, if they are numbers and each is there once: damage makes anything of them.

        One bit of the index by which SQLite finds rows can lead to one of them twice and to another never. Their
        checksums are right then, and so is their number.
        """
        if not all(type(step) is int for step in steps):
            raise RunError(f"{self.path} is damaged: the steps of {name!r} cannot be read")
        if any(later <= step for step, later in pairwise(steps)):
            raise RunError(f"{self.path} is damaged: the steps of {name!r} do not increase; restore it from a copy")
        return steps

    def _readable(self, what: str, read: Callable[[Any], Any], value: Any) -> Any:
        try:
            return read(value)
        except (AttributeError, TypeError, ValueError):
            raise RunError(f"{self.path} is damaged: the {what} cannot be read") from None

    def _unpacked(self, name: str, step: int, *packed: Any) -> np.ndarray:
        with self._naming_the_file():
            return unpack(Packed(*packed), name, step)

    @contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        try:
            yield
        except RunError as error:
            raise RunError(f"{self.path}: {error}") from None

    @contextmanager
    def _usable(self) -> Iterator[file.Connection]:
        with self._one_at_a_time, sqlite_errors_explained(self.path):
            if self._connection is None:
                raise RunError(f"{self.path} was closed; open it again with Run.open")
            if self._process != os.getpid():
                raise RunError(f"{self.path} was opened by another process, before a fork; open it again here")
            yield self._connection

    @contextmanager
    def _transaction(self) -> Iterator[file.Connection]:
        with self._usable() as connection:
            self._must_be_writable()
            if self._remembered is not None:
                self._remembered.clear()
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
            why = "is finished" if self._meta("status") == "finished" else "is open to read only"
            raise RunError(f"{self.path} {why}, nothing can be added")

    def _stop_writing(self) -> None:
        if self._lock is not None:
            try:
                with self._usable() as connection:
                    file.leave_single_file(connection)
            finally:
                self._lock.release()
                self._lock = None


def meta_row(key: str, value: object) -> tuple[str, str, int]:
    """A row of the table `meta`."""
    text = json.dumps(value)
    return key, text, checksum_of(key, text)
