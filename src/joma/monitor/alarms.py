"""What is worth a word while training runs: each alarm looks at the tables of one step after the other.

Only one limit here is published (100, the limit of Kimi K2's QK-clip). Healthy heads have any entropy, also very low
ones, and stable ranks may fall far while a network learns. So the others compare a head or a matrix with itself: with
the first part of its own run. None of these shares was measured on runs that collapse.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np

from joma.host.arguments import shown
from joma.host.errors import BadInput
from joma.monitor.alert import Alert
from joma.monitor.tables import Table, Tables

_FOR_A_SLOPE = 5  # measurings that a slope is fitted to


class Alarm(Protocol):
    """Anything with these two can be an alarm."""

    @property
    def measure(self) -> str | None:
        """The series that it needs; None: whatever there is."""

    def look(self, step: int, tables: Tables) -> Iterable[Alert]:
        """Called once per measuring, in order. On a resumed record also for all that it holds."""


def _found(
    step: int, name: str, table: Table, beyond: np.ndarray, limit: Any, why: str, slope: np.ndarray | None = None
) -> Iterator[Alert]:
    limits = np.broadcast_to(limit, table.values.shape)
    for at in map(tuple, np.argwhere(beyond & table.real).tolist()):
        moving = None if slope is None else float(slope[at])
        yield Alert(step, name, *table.place(at), float(table.values[at]), float(limits[at]), why, moving)


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

    Each alert has the slope: how fast the logit rises per step, by least squares over the last five measurings.

    >>> LargestLogit()
    LargestLogit(limit=100)
    """

    measure = "largest_logit"

    def __init__(self, limit: float = 100.0) -> None:
        """limit: in nats."""
        self.limit = _positive(limit, "limit")
        self._last: list[tuple[int, np.ndarray]] = []

    def look(self, step: int, tables: Tables) -> Iterator[Alert]:
        """Every head above the limit."""
        if (table := tables.get(self.measure)) is None:
            return
        self._last = [*self._last, (step, table.values)][-_FOR_A_SLOPE:]
        above, why = table.values > self.limit, "above its limit"
        yield from _found(step, self.measure, table, above, self.limit, why, _slope(self._last))

    def __repr__(self) -> str:
        return f"LargestLogit(limit={self.limit:g})"


def _slope(last: list[tuple[int, np.ndarray]]) -> np.ndarray | None:
    """Of the line of least squares through some measurings, per step and number; None of a single one."""
    if len(last) < 2:
        return None
    steps = np.array([step for step, _ in last], float)
    away = steps - steps.mean()
    return np.asarray(np.tensordot(away, np.stack([values for _, values in last]), 1) / (away @ away))


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
