"""What is worth a word while training runs: each alarm looks at the tables of one step after the other.

Only one limit here is published (100, the limit of Kimi K2's QK-clip). Healthy heads have any entropy, also very low
ones, and stable ranks may fall far while a network learns. So the others compare a head or a matrix with itself: with
the first part of its own run. None of these shares was measured on runs that collapse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from joma.host.arguments import shown
from joma.host.errors import BadInput, JomaError
from joma.host.words import brief, short
from joma.monitor.sinks.guard import report
from joma.monitor.tables import Table, Tables

MOST_LINES = 5
"""Sentences in the log at one step; the rest is counted."""


@dataclass(frozen=True)
class Alert:
    """What an alarm found: one number beyond its limit.

    - step: of the measuring
    - measure: the series
    - layer: the attention module or the matrix; head: its head, None for a matrix
    - value: what was measured; limit: what it is compared with
    - why: the comparison in words, as "above its limit"

    >>> str(Alert(300, "largest_logit", "h.0.attn", 2, 131.2, 100.0, "above its limit"))
    'step 300: largest_logit of h.0.attn, head 2, is 131.2, above its limit 100'
    """

    step: int
    measure: str
    layer: str
    head: int | None
    value: float
    limit: float
    why: str

    def __str__(self) -> str:
        head = "" if self.head is None else f", head {self.head},"
        return (
            f"step {self.step}: {self.measure} of {self.layer}{head} is {self.value:.4g}, {self.why} {self.limit:.4g}"
        )

    __repr__ = brief


class Alarm(Protocol):
    """Anything with these two can be an alarm."""

    @property
    def measure(self) -> str | None:
        """The series that it needs; None: whatever there is."""

    def look(self, step: int, tables: Tables) -> Iterable[Alert]:
        """Called once per measuring, in order. On a resumed record also for all that it holds."""


def _found(step: int, name: str, table: Table, beyond: np.ndarray, limit: Any, why: str) -> Iterator[Alert]:
    limits = np.broadcast_to(limit, table.values.shape)
    for at in map(tuple, np.argwhere(beyond & table.real).tolist()):
        yield Alert(step, name, *table.place(at), float(table.values[at]), float(limits[at]), why)


def _share(value: float, name: str) -> float:
    if not (isinstance(value, int | float) and 0 < value < 1):
        raise BadInput(f"{name} must lie between 0 and 1, got {shown(value)}", argument="alarms")
    return float(value)


def _positive(value: float, name: str) -> float:
    if not (isinstance(value, int | float) and 0 < value < math.inf):
        raise BadInput(f"{name} must be a number above 0, got {shown(value)}", argument="alarms")
    return float(value)


class LargestLogit:
    """The largest logit of a head is above a limit. Kimi K2 clips queries and keys from 100 on.

    >>> LargestLogit()
    LargestLogit(limit=100)
    """

    measure = "largest_logit"

    def __init__(self, limit: float = 100.0) -> None:
        """limit: in nats."""
        self.limit = _positive(limit, "limit")

    def look(self, step: int, tables: Tables) -> Iterator[Alert]:
        """Every head above the limit."""
        if (table := tables.get(self.measure)) is not None:
            yield from _found(step, self.measure, table, table.values > self.limit, self.limit, "above its limit")

    def __repr__(self) -> str:
        return f"LargestLogit(limit={self.limit:g})"


class EntropyFloor:
    """The entropy of a head is below a share of ln T, T being the tokens of a probe row; it began above that.

    A head that begins below it, as one that reads the token before, has not collapsed. No such share is published.

    >>> EntropyFloor()
    EntropyFloor(share=0.02)
    """

    measure = "entropy"

    def __init__(self, share: float = 0.02) -> None:
        """share: of ln T."""
        self.share = _share(share, "share")
        self._began: np.ndarray | None = None

    def look(self, step: int, tables: Tables) -> Iterator[Alert]:
        """Every head below its limit that was not there at first."""
        if (table := tables.get(self.measure)) is None:
            return
        limit = self.share * _log_keys(table)
        if self._began is None:
            self._began = table.values > limit
        why = f"below {self.share:.0%} of ln T, its limit"
        yield from _found(step, self.measure, table, (table.values < limit) & self._began, limit, why)

    def __repr__(self) -> str:
        return f"EntropyFloor(share={self.share:g})"


class EntropyFall:
    """The entropy of a head fell between two measurings further than its own history allows.

    The first measurings of each head calibrate it: afterwards a fall may be `times` the largest of theirs, and always
    `least` of ln T. No number of this kind is published; these are choices.

    >>> EntropyFall()
    EntropyFall(first=20, times=3, least=0.1)
    """

    measure = "entropy"

    def __init__(self, first: int = 20, times: float = 3.0, least: float = 0.1) -> None:
        """first: measurings that calibrate. times: their largest fall. least: a share of ln T that may always fall."""
        if not isinstance(first, int) or first < 2:
            raise BadInput(f"first must be a whole number of at least 2, got {shown(first)}", argument="alarms")
        self.first, self.times, self.least = first, _positive(times, "times"), _share(least, "least")
        self._seen = 0
        self._before: np.ndarray | None = None
        self._largest: np.ndarray | None = None

    def look(self, step: int, tables: Tables) -> Iterator[Alert]:
        """Every head that fell too far since the measuring before."""
        if (table := tables.get(self.measure)) is None:
            return
        before, self._before, self._seen = self._before, table.values, self._seen + 1
        if before is None:
            self._largest = np.zeros_like(table.values)
            return
        assert self._largest is not None
        if self._seen <= self.first:
            self._largest = np.fmax(self._largest, before - table.values)
            return
        limit = before - np.maximum(self.times * self._largest, self.least * _log_keys(table))
        why = f"below what the falls of its first {self.first} measurings allow,"
        yield from _found(step, self.measure, table, table.values < limit, limit, why)

    def __repr__(self) -> str:
        return f"EntropyFall(first={self.first}, times={self.times:g}, least={self.least:g})"


def _log_keys(table: Table) -> np.ndarray:
    """(layers, 1): ln T of each attention module."""
    keys: np.ndarray = np.array(table.rows.keys or (1,) * len(table.values), float)
    return np.asarray(np.log(keys)[:, None])


class RankDrop:
    """The stable rank of a matrix is below a share of what it was at the first measuring. No share is published.

    >>> RankDrop()
    RankDrop(share=0.1)
    """

    measure = "stable_rank"

    def __init__(self, share: float = 0.1) -> None:
        """share: of the first stable rank."""
        self.share = _share(share, "share")
        self._start: np.ndarray | None = None

    def look(self, step: int, tables: Tables) -> Iterator[Alert]:
        """Every matrix below its limit."""
        if (table := tables.get(self.measure)) is None:
            return
        if self._start is None:
            self._start = table.values
        limit = self.share * self._start
        why = f"below {self.share:.0%} of its start, its limit"
        yield from _found(step, self.measure, table, table.values < limit, limit, why)

    def __repr__(self) -> str:
        return f"RankDrop(share={self.share:g})"


class NotFinite:
    """A number that is NaN or infinite, in any measure.

    >>> NotFinite()
    NotFinite()
    """

    measure = None

    def look(self, step: int, tables: Tables) -> Iterator[Alert]:
        """Every such number."""
        for name, table in tables.items():
            yield from _found(step, name, table, ~np.isfinite(table.values), math.inf, "not a number below its limit")

    def __repr__(self) -> str:
        return "NotFinite()"


def usual_alarms() -> tuple[Alarm, ...]:
    """What a monitor watches for unless told otherwise; new ones, since each remembers its run."""
    return LargestLogit(), EntropyFloor(), EntropyFall(), RankDrop(), NotFinite()


class TrainingStopped(JomaError):
    """An alarm ended the training, as `on_alarm="stop"` asks for; `alerts` has all that were found."""

    def __init__(self, alerts: Sequence[Alert]) -> None:
        """alerts: what the alarms found, at least one."""
        others = f", and {len(alerts) - 1} more" if len(alerts) > 1 else ""
        super().__init__(f"{alerts[0]}{others}")
        self.alerts = list(alerts)


OnAlarm = Literal["log", "stop"] | Callable[[Alert], Any]


class Watch:
    """All alarms of a monitor, and what happens at one. A number beyond its limit is told once, until it comes back."""

    def __init__(self, alarms: Sequence[Alarm] | Alarm | None, on_alarm: OnAlarm, measured: Iterable[str]) -> None:
        """alarms: some or one; None for the usual ones. on_alarm: what happens. measured: measures that are taken."""
        if not callable(on_alarm) and on_alarm not in ("log", "stop"):
            raise BadInput(f"on_alarm must be 'log', 'stop' or a function, got {shown(on_alarm)}", argument="on_alarm")
        known = set(measured)
        given = usual_alarms() if alarms is None else _several(alarms)
        for alarm in given if alarms is not None else ():
            _must_be_an_alarm(alarm, known)
        self.alarms = tuple(map(deepcopy, given))  # each remembers its run
        self._broken: set[int] = set()
        self.on_alarm = on_alarm
        self._told: set[tuple[int, str, str, int | None]] = set()

    def new(self, step: int, tables: Tables) -> list[Alert]:
        """What was not beyond its limit at the measuring before."""
        now: dict[tuple[int, str, str, int | None], Alert] = {}
        for at, alarm in enumerate(self.alarms):
            now |= {(at, each.measure, each.layer, each.head): each for each in self._look(at, alarm, step, tables)}
        found = [alert for key, alert in now.items() if key not in self._told]
        # What was not measured at this step stays told.
        self._told = {key for key in self._told if key[1] not in tables} | set(now)
        return found

    def _look(self, at: int, alarm: Alarm, step: int, tables: Tables) -> list[Alert]:
        """What one alarm finds; one that raises is told once and asked no more."""
        if at in self._broken:
            return []
        try:
            return list(alarm.look(step, tables))
        except Exception as error:
            self._broken.add(at)
            what = f"{type(error).__name__}: {error}"
            report(f"alarm {short(alarm)} failed at step {step} and is dropped, training goes on: {what}")
            return []

    def act(self, alerts: Sequence[Alert]) -> None:
        """Log, call, or stop."""
        if callable(self.on_alarm):
            for alert in alerts:
                self.on_alarm(alert)
        elif alerts and self.on_alarm == "stop":
            raise TrainingStopped(alerts)
        else:
            for alert in alerts[:MOST_LINES]:
                report(str(alert))
            if len(alerts) > MOST_LINES:
                report(f"step {alerts[0].step}: {len(alerts) - MOST_LINES} more alarms")


def _several(alarms: Sequence[Alarm] | Alarm) -> tuple[Any, ...]:
    return tuple(alarms) if isinstance(alarms, Iterable) and not hasattr(alarms, "look") else (alarms,)


def _must_be_an_alarm(alarm: Any, measured: set[str]) -> None:
    if not callable(getattr(alarm, "look", None)) or not hasattr(alarm, "measure"):
        raise BadInput(
            f"alarms must be those of joma.monitor or have look and measure, got {shown(alarm)}", argument="alarms"
        )
    if alarm.measure is not None and alarm.measure not in measured:
        raise BadInput(f"alarms has {short(alarm)}, which needs {alarm.measure} among measures", argument="alarms")
