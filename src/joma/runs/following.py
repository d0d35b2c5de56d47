"""Follow runs while other processes write them: what is new, in a few numbers. Nothing in their folder changes.

A run is opened for a moment at each look and closed again: a reader that stays would keep its writer from leaving a
single file behind.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from time import sleep, time_ns
from typing import Any, TypeVar

import numpy as np

from joma.host.words import brief_repr
from joma.runs import file
from joma.runs.errors import RunError
from joma.runs.lock import writer_of
from joma.runs.store import Run

T = TypeVar("T")
MONITOR = "monitor"
"""What the runs of `joma.monitor` are of."""
ALARMS = "alarms"
"""The series of a monitor's run that tells what its alarms found, as bytes of JSON: a list per step."""
POINTS = 40  # of a history, spread over all steps
_TRIES, _NAP = 8, 0.02  # to read a run while its writer opens or closes it, with seconds between
_SETTLED = 1_000_000_000  # nanoseconds after which what was written is there for readers
MOST_NEW = 100  # steps that one look tells apart; of more, the last ones
_ENDINGS = (".sqlite", ".joma")  # files that are meant to be runs, whatever is in them
_BESIDE = ("-wal", "-shm", "-journal", ".lock")  # what stands beside a run


@brief_repr
@dataclass(frozen=True)
class Numbers:
    """One step of a series: over all layers, heads or whatever it has.

    - count: how many numbers; finite: how many of them are numbers, neither NaN nor infinite
    - min, mean, max: of the finite ones; None where there are none
    """

    count: int
    finite: int
    min: float | None
    mean: float | None
    max: float | None


@brief_repr
@dataclass(frozen=True)
class Latest:
    """A series: its last step, the numbers there, and the means of earlier steps.

    - steps: how many are recorded
    - past: (step, mean) of up to `POINTS` steps, the first and the last among them
    """

    step: int
    numbers: Numbers
    steps: int
    past: tuple[tuple[int, float | None], ...]


@brief_repr
@dataclass(frozen=True)
class Seen:
    """A run at one look.

    - path, study: of the run; step: the last of all series, None before the first
    - status: as the run says; reason: why it failed
    - writer: the process of this machine that writes it, None where there is none
    - written: when it was last written, in seconds since 1970
    - rate: steps per second, over the last looks or since the run began; None where nobody can tell
    - series: what was measured, by name
    - new: since the look before, (step, numbers by name); at the first look the last step alone
    - alarms: what a monitor's alarms found, (step, sentence) in order
    """

    path: Path
    study: str
    status: str
    reason: str | None
    writer: int | None
    written: float
    step: int | None
    rate: float | None
    series: dict[str, Latest]
    new: tuple[tuple[int, dict[str, Numbers]], ...]
    alarms: tuple[tuple[int, str], ...]

    @property
    def over(self) -> bool:
        """Whether nothing more can come."""
        return self.status in ("finished", "failed")

    @property
    def state(self) -> str:
        """In words."""
        if self.status == "failed":
            return f"failed: {self.reason}"
        if self.over:
            return "finished"
        return "not being written" if self.writer is None else "being written"


def numbers_of(values: np.ndarray) -> Numbers:
    """The smallest, mean and largest of an array; of complex numbers their size.

    >>> numbers_of(np.array([1.0, 3.0, np.nan]))
    Numbers(count=3, finite=2, min=1, mean=2, max=3)
    """
    plain = np.abs(values) if np.iscomplexobj(values) else values
    real = plain[np.isfinite(plain)].astype(float)
    three = (float(real.min()), float(real.mean()), float(real.max())) if real.size else (None, None, None)
    return Numbers(values.size, real.size, *three)


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
            beside = path.name.startswith(".") or path.name.endswith(_BESIDE)
            if not beside and path.is_file() and _is_a_run(path):
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


class Follower:
    """One run, looked at again and again.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Run.create(f"{folder}/a", study="demo", config={}) as run:
    ...     run.append("loss", 10, 0.5)
    ...     follower = Follower(run.path)
    ...     first = follower.look()
    ...     run.append("loss", 20, 0.25)
    ...     second = follower.look()
    >>> first.step, second.step, [step for step, _ in second.new]
    (10, 20, [20])
    """

    def __init__(self, path: Path) -> None:
        """path: of the run."""
        self.path = path
        self._mark: tuple[Any, ...] | None = None
        self._seen: Seen | None = None
        self._identity: tuple[Any, ...] = ()
        self._shown: dict[str, int] | None = None  # of each series the last step that was new
        self._times: list[tuple[float, int]] = []  # when steps were first seen: (written, step)
        self._known: dict[str, dict[int, Numbers]] = {}  # a step is final, so it is read once

    def look(self) -> Seen:
        """What the run holds now. A file that did not change is not opened. RunError where it cannot be read."""
        mark = mark_of(self.path)
        if self._seen is None or mark != self._mark:
            self._seen, self._mark = read_patiently(self.path, self._read), mark
        elif self._seen.new:
            self._seen = replace(self._seen, new=())
        return self._seen

    def _read(self, run: Run, writer: int | None) -> Seen:
        self._begin_anew_if_replaced(run)
        written = written_at(self.path)
        steps = {name: run.steps(name) for name in run.names()}
        last = max((int(each[-1]) for each in steps.values()), default=None)
        measured = {name: each for name, each in steps.items() if self._measures(run, name, int(each[-1]))}
        self._known = {name: self._known.get(name, {}) for name in measured}
        new = self._new(run, measured)
        series = {name: self._latest(run, name, each) for name, each in measured.items()}
        rate = self._rate(run, written, steps)
        return Seen(
            self.path, run.study, run.status, run.reason, writer, written, last, rate, series, new, _alarms(run, steps)
        )

    def _begin_anew_if_replaced(self, run: Run) -> None:
        """Another run may have got the name."""
        identity = (run.created, run.study, run.config, self.path.stat().st_ino)
        if identity != self._identity:
            self._identity, self._shown, self._times, self._known = identity, None, [], {}

    def _measures(self, run: Run, name: str, last: int) -> bool:
        """Not bytes, which are words or checksums, and not nothing."""
        if last in self._known.get(name, ()):
            return True
        values = run.at(name, last)
        return values.dtype != np.uint8 and values.size > 0

    def _numbers(self, run: Run, name: str, step: int) -> Numbers:
        known = self._known[name]
        if step not in known:
            known[step] = numbers_of(run.at(name, step))
        return known[step]

    def _latest(self, run: Run, name: str, steps: np.ndarray) -> Latest:
        at = np.unique(np.linspace(0, len(steps) - 1, POINTS).round().astype(int))
        points = {step: self._numbers(run, name, step) for step in steps[at].tolist()}
        self._known[name] = points
        last = int(steps[-1])
        return Latest(last, points[last], len(steps), tuple((step, each.mean) for step, each in points.items()))

    def _new(self, run: Run, measured: dict[str, np.ndarray]) -> tuple[tuple[int, dict[str, Numbers]], ...]:
        recent: dict[str, list[int]] = {name: steps[-MOST_NEW:].tolist() for name, steps in measured.items()}
        if self._shown is None:
            last = max((steps[-1] for steps in recent.values()), default=-1)
            holds = {name: {last}.intersection(steps) for name, steps in recent.items()}
        else:
            before = self._shown
            holds = {name: {step for step in steps if step > before.get(name, -1)} for name, steps in recent.items()}
        self._shown = {name: steps[-1] for name, steps in recent.items()}
        new = sorted(set[int]().union(*holds.values()))[-MOST_NEW:]
        return tuple(
            (step, {name: self._numbers(run, name, step) for name in measured if step in holds[name]}) for step in new
        )

    def _rate(self, run: Run, written: float, steps: dict[str, np.ndarray]) -> float | None:
        """Over the last looks that saw something new; at the first, since the run began."""
        if not steps:
            return None
        first, last = min(int(each[0]) for each in steps.values()), max(int(each[-1]) for each in steps.values())
        if not self._times or last > self._times[-1][1]:
            self._times = [*self._times[-20:], (written, last)]
        since = self._times[0] if len(self._times) > 1 else (_seconds(run.created), first)
        spent, taken = self._times[-1][0] - since[0], self._times[-1][1] - since[1]
        return taken / spent if spent > 0 and taken > 0 else None


def _seconds(created: str) -> float:
    try:
        return datetime.fromisoformat(created).timestamp()
    except ValueError:  # whatever damage has made of it
        return float("inf")


def _alarms(run: Run, steps: dict[str, np.ndarray]) -> tuple[tuple[int, str], ...]:
    found: list[tuple[int, str]] = []
    for step in steps[ALARMS].tolist() if run.study == MONITOR and ALARMS in steps else ():
        try:
            each = json.loads(run.at(ALARMS, step).tobytes())
            found += [(step, str(alarm["says"])) for alarm in each]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise RunError(f"{run.path} is damaged: its alarms at step {step} cannot be read") from None
    return tuple(found)
