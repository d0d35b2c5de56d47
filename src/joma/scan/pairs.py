"""Measures of two neighbouring checkpoints: taken one pair after the other, with two checkpoints in memory at a time.

What a pair gives is recorded at its later step, in a series that names the earlier one ("allocation/entropy/from-0"):
a checkpoint that appears between two others later makes new pairs, and those that were measured stay.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from joma.runs import Dims, Run
from joma.scan.allocation import Pair
from joma.scan.checkpoint import Place
from joma.scan.curves import Curve
from joma.scan.errors import CheckpointError, Fault
from joma.scan.looks import fault_of
from joma.scan.names.rows import layers, rows_of
from joma.scan.plan import Plan
from joma.scan.running import Between
from joma.scan.time_left import TimeLeft

Pairs = Sequence[tuple[int, int]]
"""Earlier and later steps, in order."""
SINCE = "since"
"""The column that holds the earlier step of a pair."""
_SERIES = re.compile(r"(.+)/from-(\d+)")


@dataclass
class Chain:
    """What became of the pairs of a series: those that have numbers, what is wrong, what is worth a note."""

    curves: tuple[str, ...]
    pairs: list[tuple[int, int]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def is_pair(name: str) -> bool:
    """Whether a series of a run holds pairs.

    >>> is_pair("allocation/entropy/from-0"), is_pair("entropy")
    (True, False)
    """
    return _SERIES.fullmatch(name) is not None


def sweep_pairs(
    plan: Plan, run: Run, name: str, places: Sequence[Place], report: Callable[[str], None], between: Between
) -> Chain:
    """Measure the neighbours among `places` that the run lacks. One that cannot be loaded is passed over.

    report gets a line for each pair, beginning with "[".
    """
    walk, left = _Walk(plan, run, name, places[0], between), TimeLeft(len(places) - 1)
    for place in places[1:]:
        moment = f"[{left.done + 1}/{left.total}] {plan.series.axis} {walk.last.step} to {place.step}"
        line, worked = walk.on(place)
        report(f"{moment}  {name}: {line}{left.after(worked)}")
    return walk.chain


class _Walk:
    """The way along a series: the last checkpoint that could be used, and what is held of it, if it was loaded."""

    def __init__(self, plan: Plan, run: Run, name: str, first: Place, between: Between) -> None:
        self.plan, self.run, self.name, self.between = plan, run, name, between
        self.measure = plan.pair_measures()[name]
        self.chain = Chain(self.measure.curves)
        self.known = set(_recorded(run, self.measure.curves[0]))
        self.last, self.held = first, None

    def on(self, place: Place) -> tuple[str, bool]:
        """Go on to `place`; what a line of progress says of the pair, and whether it took any work."""
        if (self.last.step, place.step) in self.known:
            self.chain.pairs.append((self.last.step, place.step))
            self.last, self.held = place, None
            return "recorded already", False
        return self._on(place), True

    def _on(self, place: Place) -> str:
        try:
            self.held = self._loaded(self.last) if self.held is None else self.held
        except CheckpointError as error:
            said = self._left_out(self.last, error)
            self.last = place
            return said
        try:
            loaded = self._loaded(place)
        except CheckpointError as error:  # the next pair begins where this one did
            return self._left_out(place, error)
        try:
            said = self._measured(place, loaded)
        except CheckpointError as error:
            said = self._left_out(place, error)
        self.last, self.held = place, loaded
        return said

    def _loaded(self, place: Place) -> Any:
        with place.folder() as folder:
            return self.measure.load(folder, self.plan.device, self.between)

    def _left_out(self, place: Place, error: CheckpointError) -> str:
        self.chain.faults.append(fault_of(place, error, self.name))
        return f"left out: {error}"

    def _measured(self, place: Place, loaded: Any) -> str:
        """Record one pair; returns what a line of progress says of it."""
        assert self.plan.tokens is not None  # without a text no such measure is planned
        since, step = self.last.step, place.step
        found = self.measure.call(self.held, loaded, self.plan.tokens, self.between, self.plan.seq_len)
        values = {_series(curve, since): rows for curve, rows in found.values.items()}
        dims = {_series(curve, since): _dims(curve, found) for curve in found.values}
        self.run.record(step, values, dims=dims)
        self.chain.pairs.append((since, step))
        self.chain.notes += [f"{self.name}, {self.plan.series.axis} {since} to {step}: {note}" for note in found.notes]
        return found.line


def _dims(curve: str, found: Pair) -> Dims:
    """Rows are layers, or what the curve is of."""
    where = {"layer": None} if curve in found.by_layer else {"tensor": (curve.partition("/")[2],)}
    return {**where, "quantity": found.columns}


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
    return {name: _curve(run, name, pairs, steps) for name in names} if pairs else {}


def _curve(run: Run, name: str, pairs: Pairs, steps: Sequence[int]) -> Curve:
    dims = run.dims(_series(name, pairs[0][0]))
    read = {step: _with(since, run.at(_series(name, since), step)) for since, step in pairs}
    some = next(iter(read.values()))
    values = np.full((len(steps), *some.shape), np.nan)
    values[[steps.index(step) for step in read]] = np.stack(list(read.values()))
    measure, _, group = name.partition("/")
    rows = rows_of([str(label) for label in dims["tensor"] or ()]) if "tensor" in dims else layers(len(some))
    change, error, *groups = map(str, dims["quantity"] or ())
    return Curve(measure, group, rows, (change, error, SINCE, *groups), values)


def _with(since: int, rows: np.ndarray) -> np.ndarray:
    """The rows of one pair, with the earlier step in a column behind those that are of the whole change."""
    return np.insert(np.asarray(rows, dtype=float), 2, since, axis=1)


def _series(curve: str, since: int) -> str:
    return f"{curve}/from-{since}"


def _recorded(run: Run, curve: str) -> Iterator[tuple[int, int]]:
    for name in filter(is_pair, run.names()):
        mine, since = _split(name)
        if mine == curve:
            yield from ((since, step) for step in run.steps(name).tolist())


def _split(name: str) -> tuple[str, int]:
    found = _SERIES.fullmatch(name)
    assert found is not None
    return found[1], int(found[2])
