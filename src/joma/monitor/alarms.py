"""What is worth a word while training runs: each alarm looks at the tables of one step after the other.

Only one limit here is published (100, the limit of Kimi K2's QK-clip). Healthy heads have any entropy, also very low
ones, and stable ranks may fall far while a network learns. So the others compare a head or a matrix with itself: with
the first part of its own run. The study `collapse` holds them against runs that diverge: the largest logit, the floor
of entropy and the rank ring early, and also where a rate is too high and the loss never diverges; a fall of entropy out
of its own history rings too late there.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Protocol

import numpy as np

from joma.host.arguments import shown
from joma.host.errors import BadInput
from joma.host.words import brief
from joma.monitor.tables import Table, Tables

_FOR_A_SLOPE = 5  # measurings that a slope is fitted to


class Alarm(Protocol):
    """Anything with these two can be an alarm."""

    @property
    def measure(self) -> str | None:
        """The series that it needs; None: whatever there is."""

    def look(self, step: int, tables: Tables) -> Iterable["Alert"]:
        """Called once per measuring, in order. On a resumed record also for all that it holds."""


Beyond = tuple[np.ndarray, Any, str] | tuple[np.ndarray, Any, str, np.ndarray | None]
"""Which numbers are beyond their limit, the limit, the comparison in words, and maybe how fast each number changes."""


def _alerts(step: int, name: str, table: Table, beyond: Beyond) -> Iterator["Alert"]:
    where, limit, why, *slopes = beyond
    limits, slope = np.broadcast_to(limit, table.values.shape), next(iter(slopes), None)
    for at in map(tuple, np.argwhere(where & table.real).tolist()):
        moving = None if slope is None else float(slope[at])
        yield Alert(step, name, *table.place(at), float(table.values[at]), float(limits[at]), why, moving)


class _OfOneMeasure:
    """What the alarms here share: the series that they look at, and how they are shown."""

    measure: str | None = None

    def look(self, step: int, tables: Tables) -> Iterator["Alert"]:
        table = tables.get(self.measure or "")
        if table is not None and (beyond := self._beyond(step, table)) is not None:
            yield from _alerts(step, str(self.measure), table, beyond)

    def _beyond(self, step: int, table: Table) -> Beyond | None:
        """What is beyond its limit at one measuring; None: there is no limit yet."""
        raise NotImplementedError

    def __repr__(self) -> str:
        given = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return f"{type(self).__name__}({', '.join(f'{name}={value:g}' for name, value in given.items())})"


def _share(value: float, name: str) -> float:
    if not (isinstance(value, int | float) and 0 < value < 1):
        raise BadInput(f"{name} must lie between 0 and 1, got {shown(value)}", argument="alarms")
    return float(value)


def _positive(value: float, name: str) -> float:
    if not (isinstance(value, int | float) and 0 < value < math.inf):
        raise BadInput(f"{name} must be a number above 0, got {shown(value)}", argument="alarms")
    return float(value)


class LargestLogit(_OfOneMeasure):
    """The largest logit of a head is above a limit. Kimi K2 clips queries and keys from 100 on, as `QKClip` does.

    Each alert has the slope: how fast the logit rises per step, by least squares over the last five measurings.

    >>> LargestLogit()
    LargestLogit(limit=100)
    """

    measure = "largest_logit"

    def __init__(self, limit: float = 100.0) -> None:
        """limit: in nats."""
        self.limit = _positive(limit, "limit")
        self._last: list[tuple[int, np.ndarray]] = []

    def _beyond(self, step: int, table: Table) -> Beyond:
        self._last = [*self._last, (step, table.values)][-_FOR_A_SLOPE:]
        return table.values > self.limit, self.limit, "above its limit", _slope(self._last)


def _slope(last: list[tuple[int, np.ndarray]]) -> np.ndarray | None:
    """Of the line of least squares through some measurings, per step and number; None of a single one."""
    if len(last) < 2:
        return None
    steps = np.array([step for step, _ in last], float)
    away = steps - steps.mean()
    return np.asarray(np.tensordot(away, np.stack([values for _, values in last]), 1) / (away @ away))


class EntropyFloor(_OfOneMeasure):
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

    def _beyond(self, step: int, table: Table) -> Beyond:
        limit = self.share * _log_keys(table)
        if self._began is None:
            self._began = table.values > limit
        return (table.values < limit) & self._began, limit, f"below {self.share:.0%} of ln T, its limit"


class EntropyFall(_OfOneMeasure):
    """The entropy of a head fell between two measurings further than its own history allows.

    The first measurings of each head calibrate it: afterwards a fall may be `times` the largest of theirs, and always
    `least` of ln T. No number of this kind is published. `first` and `times` are choices; `least` is above every fall
    of the healthy runs of `benchmarks/bench_alarms.py`.

    >>> EntropyFall()
    EntropyFall(first=20, times=3, least=0.2)
    """

    measure = "entropy"

    def __init__(self, first: int = 20, times: float = 3.0, least: float = 0.2) -> None:
        """first: measurings that calibrate. times: their largest fall. least: a share of ln T that may always fall."""
        if not isinstance(first, int) or first < 2:
            raise BadInput(f"first must be a whole number of at least 2, got {shown(first)}", argument="alarms")
        self.first, self.times, self.least = first, _positive(times, "times"), _share(least, "least")
        self._seen = 0
        self._before: np.ndarray | None = None
        self._largest: np.ndarray | None = None

    def _beyond(self, step: int, table: Table) -> Beyond | None:
        before, self._before, self._seen = self._before, table.values, self._seen + 1
        if before is None or self._largest is None:
            self._largest = np.zeros_like(table.values)
            return None
        if self._seen <= self.first:
            self._largest = np.fmax(self._largest, before - table.values)
            return None
        limit = before - np.maximum(self.times * self._largest, self.least * _log_keys(table))
        return table.values < limit, limit, f"below what the falls of its first {self.first} measurings allow,"


def _log_keys(table: Table) -> np.ndarray:
    """(layers, 1): ln T of each attention module."""
    keys: np.ndarray = np.array(table.rows.keys or (1,) * len(table.values), float)
    return np.asarray(np.log(keys)[:, None])


class RankDrop(_OfOneMeasure):
    """The stable rank of a matrix is below a share of what it was at the first measuring. No share is published.

    >>> RankDrop()
    RankDrop(share=0.1)
    """

    measure = "stable_rank"

    def __init__(self, share: float = 0.1) -> None:
        """share: of the first stable rank."""
        self.share = _share(share, "share")
        self._start: np.ndarray | None = None

    def _beyond(self, step: int, table: Table) -> Beyond:
        if self._start is None:
            self._start = table.values
        limit = self.share * self._start
        return table.values < limit, limit, f"below {self.share:.0%} of its start, its limit"


class NotFinite(_OfOneMeasure):
    """A number is NaN or infinite, in any measure: the first one is told, and how many others are.

    It is told again once all numbers were finite.

    >>> NotFinite()
    NotFinite()
    """

    def __init__(self) -> None:
        """Nothing has a limit here."""
        self._lost: set[str] = set()  # series with such a number when they were measured last

    def look(self, step: int, tables: Tables) -> Iterator["Alert"]:
        """One alert, at the first step with such a number."""
        told, why = bool(self._lost), "not a number below its limit"
        lost = {name: ~np.isfinite(table.values) & table.real for name, table in tables.items()}
        self._lost = {name for name in self._lost if name not in lost} | {name for name in lost if lost[name].any()}
        found = [each for name in lost for each in _alerts(step, name, tables[name], (lost[name], math.inf, why))]
        if found and not told:
            others = f"{len(found) - 1} other numbers of this step are not finite either" if len(found) > 1 else None
            yield replace(found[0], cause=others)


def usual_alarms() -> tuple[Alarm, ...]:
    """What a monitor watches for by default; new ones, since each remembers its run."""
    return LargestLogit(), EntropyFloor(), EntropyFall(), RankDrop(), NotFinite()


MOST_LINES = 5
"""Alarms of one step that are reported one by one; the rest is counted: 1,600 heads may fail at one step."""


@dataclass(frozen=True)
class Alert:
    """What an alarm found: one number beyond its limit.

    - step: of the measuring
    - measure: the series
    - layer: the attention module or the matrix; head: its head, None for a matrix
    - value: what was measured; limit: what it is compared with
    - why: the comparison in words, as "above its limit"
    - slope: how fast the number changes, per step; None where that is not followed
    - cause: why, where the spread of logits tells; None where it does not or was not measured

    >>> str(Alert(300, "largest_logit", "h.0.attn", 2, 131.2, 100.0, "above its limit"))
    'step 300: largest_logit of h.0.attn, head 2, is 131.2, above its limit 100'
    >>> str(Alert(300, "norm", "up", None, 3.0, 2.0, "above its limit", slope=0.25, cause="somebody doubled it"))
    'step 300: norm of up is 3, above its limit 2, rising by 0.25 per step: somebody doubled it'
    """

    step: int
    measure: str
    layer: str
    head: int | None
    value: float
    limit: float
    why: str
    slope: float | None = None
    cause: str | None = None

    def __str__(self) -> str:
        head = "" if self.head is None else f", head {self.head},"
        cause = f": {self.cause}" if self.cause else ""
        return (
            f"step {self.step}: {self.measure} of {self.layer}{head} is {self.value:.4g}, {self.why} {self.limit:.4g}"
            f"{self._moving}{cause}"
        )

    @property
    def _moving(self) -> str:
        if not self.slope or not isfinite(self.slope):  # one of the measurings before was NaN
            return ""
        return f", {'rising' if self.slope > 0 else 'falling'} by {abs(self.slope):.3g} per step"

    __repr__ = brief


def few_sentences(alerts: Sequence[Alert]) -> list[str]:
    """One sentence for each of the first alerts of a step, and one that counts the others."""
    more = len(alerts) - MOST_LINES
    return [*map(str, alerts[:MOST_LINES]), *([f"step {alerts[0].step}: {more} more alarms"] if more > 0 else [])]
