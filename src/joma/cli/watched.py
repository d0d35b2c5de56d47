"""What `joma watch` draws: the runs at a path, as `joma view` reads them, and what is new in each."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from joma.host.errors import BadInput
from joma.runs import RunError
from joma.view.feed import Feed
from joma.view.thinning import whole_steps

POINTS = 40
"""Of a history, spread over all steps."""
MOST_NEW = 100
"""Steps of a run that one look tells one by one; of more, the last ones."""
_MOST_TIMES = 21  # looks that the rate is taken over


@dataclass(frozen=True)
class Numbers:
    """One step of a series: how many numbers, how many of them finite, and the extremes and mean of those."""

    count: int
    finite: int
    min: float | None
    mean: float | None
    max: float | None


class Latest(NamedTuple):
    """A series: its last step and the numbers there, how many steps it has, and (step, mean) of earlier ones."""

    step: int
    numbers: Numbers
    steps: int
    past: list[tuple[int, float | None]]


@dataclass
class Watched:
    """One run between looks. entry: as the feed gives it; new: (step, numbers by name) since the look before."""

    entry: dict[str, Any] = field(default_factory=dict)
    series: dict[str, Latest] = field(default_factory=dict)
    new: list[tuple[int, dict[str, Numbers]]] = field(default_factory=list)
    rate: float | None = None
    unread: list[str] = field(default_factory=list)  # why a series cannot be read: damage, or steps of several shapes
    shown: dict[str, int] | None = None  # the last step of each series that was new at some look
    times: list[tuple[float, int]] = field(default_factory=list)  # when steps were first seen: (written, step)

    @property
    def fault(self) -> str | None:
        """Why it cannot be read, in one sentence."""
        return self.entry.get("fault")

    @property
    def state(self) -> str:
        return str(self.entry.get("state"))

    @property
    def over(self) -> bool:
        """Whether nobody waits for more."""
        return self.fault is not None or self.entry["status"] in ("finished", "failed")


class Folder:
    """The runs at a path: one, or those of a folder."""

    def __init__(self, path: Path) -> None:
        """path: a run or a folder."""
        self.path, self.one, self._feed = path, not path.is_dir(), Feed([path])
        self._known: dict[str, Watched] = {}

    def look(self, *, whole: bool = False) -> list[Watched]:
        """All runs, those written last first. One that cannot be read does not stop the others."""
        entries = self._feed.index()["runs"]
        first, known = not self._known, self._known
        if first and self.one and "fault" in entries[0]:
            raise RunError(entries[0]["fault"])
        if first and not entries:
            writers = "joma.monitor, joma scan and joma verify write them"
            raise BadInput(f"{self.path} holds no run; {writers}, and joma watch looks there and in its folder runs")
        self._known = {}
        for at, entry in enumerate(entries):
            run = known.get(entry["id"], Watched())
            run.new = []
            if entry is not run.entry:
                follows = whole or at == 0 or not first or entry.get("state") == "being written"
                self._update(run, entry, follows=follows)
            self._known[entry["id"]] = run
        return list(self._known.values())

    def path_of(self, run: Watched) -> Path:
        return self.path if self.one else self.path / run.entry["id"]

    def _update(self, run: Watched, entry: dict[str, Any], *, follows: bool) -> None:
        if entry.get("identity") != run.entry.get("identity"):  # another run may have got the name
            run.shown, run.times, run.series = None, [], {}
        run.entry = entry
        if "fault" not in entry:
            run.rate = _rate(run)
            if follows:
                self._read(run)

    def _read(self, run: Watched) -> None:
        """Of each series the last step and a history; what is new, and at the first look the last step of all."""
        whole, run.unread = {}, []
        for name in (each["name"] for each in run.entry["series"] if each["steps"]):
            try:
                whole[name] = self._feed.numbers(run.entry["id"], name)
            except RunError as error:
                run.unread.append(str(error))
        run.series = {name: _latest(*each) for name, each in whole.items()}
        since = run.shown
        if since is None:
            since = dict.fromkeys(whole, max((each.step for each in run.series.values()), default=0) - 1)
        steps = {name: each[np.searchsorted(each, since.get(name, -1), "right") :] for name, (each, _) in whole.items()}
        run.shown = {name: each.step for name, each in run.series.items()}
        new = sorted({step for each in steps.values() for step in each.tolist()})[-MOST_NEW:]
        run.new = [(step, {name: _at(*whole[name], step) for name in whole if step in steps[name]}) for step in new]


def _at(steps: np.ndarray, values: np.ndarray, step: int) -> Numbers:
    return numbers_of(values[np.searchsorted(steps, step)])


def _latest(steps: np.ndarray, values: np.ndarray) -> Latest:
    at, kept = whole_steps(steps, values, POINTS)
    past = [(step, numbers_of(each).mean) for step, each in zip(at.tolist(), kept, strict=True)]
    return Latest(int(steps[-1]), numbers_of(values[-1]), len(steps), past)


def _rate(run: Watched) -> float | None:
    """Steps per second over the last looks that saw something new; at the first, since the run began."""
    entry, last = run.entry, run.entry["last"]
    if last is None:
        return None
    if not run.times or last > run.times[-1][1]:
        run.times = [*run.times, (entry["written"], last)][-_MOST_TIMES:]
    begun = (_seconds(entry["created"]), min(each["first"] for each in entry["series"]))
    since = run.times[0] if len(run.times) > 1 else begun
    spent, taken = run.times[-1][0] - since[0], run.times[-1][1] - since[1]
    return taken / spent if spent > 0 and taken > 0 else None


def _seconds(created: str) -> float:
    try:
        return datetime.fromisoformat(created).timestamp()
    except ValueError:  # whatever damage has made of it
        return float("inf")


def numbers_of(values: np.ndarray) -> Numbers:
    """The smallest, mean and largest of an array; of complex numbers their size.

    >>> numbers_of(np.array([1.0, 3.0, np.nan]))
    Numbers(count=3, finite=2, min=1.0, mean=2.0, max=3.0)
    """
    plain = np.abs(values) if np.iscomplexobj(values) else values
    real = plain[np.isfinite(plain)].astype(float)
    three = (float(real.min()), float(real.mean()), float(real.max())) if real.size else (None, None, None)
    return Numbers(values.size, real.size, *three)


def in_words(numbers: Numbers) -> str:
    """A number, or the mean of several with the smallest and the largest."""
    if numbers.mean is None:
        return "no number"
    if numbers.count == 1:
        return f"{numbers.mean:.4g}"
    lost = numbers.count - numbers.finite
    none = f", {lost} of {numbers.count} no number" if lost else ""
    return f"{numbers.mean:.4g} ({numbers.min:.4g} to {numbers.max:.4g}{none})"


def latest_alarms(run: Watched, most: int) -> Sequence[str]:
    """What a monitor's last alarms say."""
    return [each["says"] for each in run.entry["alarms"][-most:]] if most else []
