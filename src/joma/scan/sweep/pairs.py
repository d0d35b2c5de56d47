"""Measures of two neighbouring checkpoints: taken one pair after the other, with two checkpoints in memory at a time.

What a pair gives is recorded at its later step, in a series that names the earlier one ("allocation/entropy/from-0"):
a checkpoint that appears between two others later makes new pairs, and those that were measured stay.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from time import monotonic
from typing import Any, Self

import numpy as np

from joma.runs import Dims, Run
from joma.scan.errors import CheckpointError, Fault
from joma.scan.model.allocation import allocated, loaded_whole
from joma.scan.model.running import Between
from joma.scan.names.architecture import layers, rows_of
from joma.scan.result.curves import Curve
from joma.scan.sources.series import Place
from joma.scan.sweep.plan import Plan, fault_of

Pairs = Sequence[tuple[int, int]]  # earlier and later steps, in order
SINCE = "since"  # the column that holds the earlier step of a pair
_SERIES = re.compile(r"(.+)/from-(\d{1,18})")


def is_pair(name: str) -> bool:
    """Whether a series of a run holds pairs."""
    return _SERIES.fullmatch(name) is not None


def is_of(name: str, step: int, steps: Collection[int]) -> bool:
    """Whether what a series of a run has at a step came from one of some checkpoints; of a pair, from either.

    >>> is_of("stable_rank/mlp", 10, {10}), is_of("allocation/loss/from-10", 20, {10}), is_of("entropy", 20, {10})
    (True, True, False)
    """
    return step in steps or (is_pair(name) and _split(name)[1] in steps)


class Chain:
    """The pairs of a series: those that have numbers, what is wrong, what is worth a note.

    On its way it holds the last checkpoint that could be used, and what was loaded of it.
    """

    def __init__(self, plan: Plan, run: Run, name: str, between: Between) -> None:
        """name: the measure. between: called on the way, with what comes next."""
        self.plan, self.run, self.name, self.between = plan, run, name, between
        self.curves = tuple(plan.measures[name].curves)
        self.pairs: list[tuple[int, int]] = []
        self.faults: list[Fault] = []
        self.notes: list[str] = []
        recorded = {name: _split(name) for name in filter(is_pair, run.names())}
        self.known = {(since, step) for name, (curve, since) in recorded.items() if curve == self.curves[0]
                      for step in run.steps(name).tolist()}  # fmt: skip
        self.held: Any = None

    def sweep(self, places: Sequence[Place], report: Callable[[str], None]) -> Self:
        """Measure the neighbours among `places` that the run lacks. One that cannot be loaded is passed over.

        report gets a line for each pair, beginning with "[".
        """
        self.last, left = places[0], TimeLeft(len(places) - 1)
        for place in places[1:]:
            moment = f"[{left.done + 1}/{left.total}] {self.plan.series.axis} {self.last.step} to {place.step}"
            line, worked = self.on(place)
            report(f"{moment}  {self.name}: {line}{left.after(worked)}")
        return self

    def on(self, place: Place) -> tuple[str, bool]:
        """Go on to `place`; what a line of progress says of the pair, and whether it took any work."""
        if (self.last.step, place.step) in self.known:
            self.pairs.append((self.last.step, place.step))
            self.last, self.held = place, None
            return "recorded already", False
        at, loaded = self.last, None
        try:
            self.held = self._loaded(self.last) if self.held is None else self.held
            at = place
            loaded = self._loaded(place)
            line = self._measured(place, loaded)
        except CheckpointError as error:
            self.faults.append(fault_of(at, error, self.name))
            line = f"left out: {error}"
        # Where the later one could not be loaded, the next pair begins where this one did.
        if loaded is not None or at is not place:
            self.last, self.held = place, loaded
        return line, True

    def _loaded(self, place: Place) -> Any:
        with place.folder() as folder:
            return loaded_whole(folder, self.plan.device, self.between)

    def _measured(self, place: Place, loaded: Any) -> str:
        assert self.plan.tokens is not None  # without a text no such measure is planned
        since, step = self.last.step, place.step
        found = allocated(self.held, loaded, self.plan.tokens, self.between, self.plan.seq_len)
        values = {_series(curve, since): rows for curve, rows in found.values.items()}
        dims: dict[str, Dims] = {}
        for curve in found.values:  # rows are layers, or what the curve is of
            rows = {"layer": None} if curve in found.by_layer else {"tensor": (curve.partition("/")[2],)}
            dims[_series(curve, since)] = {**rows, "quantity": found.columns}
        self.run.record(step, values, dims=dims)
        self.pairs.append((since, step))
        self.notes += [f"{self.name}, {self.plan.series.axis} {since} to {step}: {note}" for note in found.notes]
        return found.line


def finest(run: Run, names: Iterable[str], left_out: Collection[int]) -> dict[str, list[tuple[int, int]]]:
    """The recorded pairs of every curve that lie next to each other: each step with the nearest one before it."""
    nearest: dict[str, dict[int, int]] = {}
    for name in names:
        curve, since = _split(name)
        for step in run.steps(name).tolist() if since not in left_out else ():
            mine = nearest.setdefault(curve, {})
            if step not in left_out:
                mine[step] = max(since, mine.get(step, since))
    return {curve: [(since, step) for step, since in sorted(mine.items())] for curve, mine in nearest.items() if mine}


def pair_curves(run: Run, names: Iterable[str], pairs: Pairs, steps: Sequence[int]) -> dict[str, Curve]:
    """Curves over `steps` from recorded pairs; a step without a pair that ends there has no numbers."""
    found: dict[str, Curve] = {}
    for name in names if pairs else ():
        dims = run.dims(_series(name, pairs[0][0]))
        # The earlier step stands in a column behind those that are of the change of all parameters together.
        pieces = [np.insert(np.asarray(run.at(_series(name, since), step), float), 2, since, axis=1)
                  for since, step in pairs]  # fmt: skip
        values = np.full((len(steps), *pieces[0].shape), np.nan)
        values[[steps.index(step) for _, step in pairs]] = np.stack(pieces)
        measure, _, group = name.partition("/")
        tensors = [str(label) for label in dims.get("tensor") or ()]
        rows = rows_of(tensors) if tensors else layers(len(pieces[0]))
        change, error, *groups = map(str, dims["quantity"] or ())
        found[name] = Curve(measure, group, rows, (change, error, SINCE, *groups), values)
    return found


def _series(curve: str, since: int) -> str:
    return f"{curve}/from-{since}"


def _split(name: str) -> tuple[str, int]:
    found = _SERIES.fullmatch(name)
    assert found is not None
    return found[1], int(found[2])


class TimeLeft:
    """Counts steps, and says after each how much time is left."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self._worked, self._began = 0, monotonic()

    def after(self, worked: bool) -> str:
        """Words for the end of a line. worked: whether this step took any work; those that did tell the pace."""
        self.done += 1
        self._worked += worked
        ahead = self.total - self.done
        if not ahead or not self._worked:
            return ""
        return f"; {time_in_words((monotonic() - self._began) / self._worked * ahead)} left"


def time_in_words(seconds: float) -> str:
    """A time as people say it.

    >>> [time_in_words(seconds) for seconds in (0.2, 41.3, 200, 7500)]
    ['1 s', '41 s', '3 min', '2 h 5 min']
    """
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
