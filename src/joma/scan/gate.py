"""What the fingerprints of a series give away: steps that are copies of others, tensors that are not trained yet."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

import numpy as np

from joma.runs import Run
from joma.scan.errors import Fault
from joma.scan.integrity import not_yet_trained, suspicions
from joma.scan.plan import Plan


class Prints(NamedTuple):
    """The fingerprints of groups that were read at the same steps: per tensor one row per step."""

    steps: tuple[int, ...]
    sketches: dict[str, np.ndarray]
    checksums: dict[str, np.ndarray]


def prints(plan: Plan, run: Run, left_out: Collection[int]) -> list[Prints]:
    """All fingerprints of the steps that are used.

    A group that lacks a step (NaN in it, say) is judged by the steps that it has.
    """
    used = [place.step for place in plan.series.places if place.step not in left_out]
    alike: dict[tuple[int, ...], list[str]] = {}
    for group in plan.groups:
        if f"sketch/{group}" in run:
            read = set(run.steps(f"sketch/{group}").tolist())
            alike.setdefault(tuple(step for step in used if step in read), []).append(group)
    return [_of(plan, run, steps, groups) for steps, groups in alike.items() if steps]


def suspected(plan: Plan, compared: Iterable[Prints]) -> list[Fault]:
    """Steps whose weights seem to be those of another step, tensor by tensor."""
    places = {place.step: place for place in plan.series.places}
    found = [one for each in compared for one in suspicions(list(each.steps), each.sketches, each.checksums)]
    weights = {step: places[step].weights() for step, _, _ in found}
    return [Fault(step, places[step].name, weights[step].file_of(tensor), tensor, what) for step, tensor, what in found]


def untrained(plan: Plan, compared: Iterable[Prints]) -> list[str]:
    """Sentences on tensors that keep their first value for some steps, as with gradual unfreezing."""
    until: dict[int, list[str]] = {}
    for each in compared:
        for name, step in not_yet_trained(list(each.steps), each.sketches, each.checksums).items():
            until.setdefault(step, []).append(name)
    return [_sentence(plan.series.axis, step, names) for step, names in sorted(until.items())]


def _sentence(axis: str, step: int, names: list[str]) -> str:
    more = f" and {len(names) - 1} more tensors" if len(names) > 1 else ""
    return f"not yet trained: {names[0]}{more} stay as they began up to {axis} {step}"


def _of(plan: Plan, run: Run, steps: tuple[int, ...], groups: list[str]) -> Prints:
    sketches: dict[str, np.ndarray] = {}
    checksums: dict[str, np.ndarray] = {}
    for group in groups:
        sketched, summed = (at_steps(run, f"{kind}/{group}", steps) for kind in ("sketch", "checksum"))
        for at, name in enumerate(plan.gated(group)):
            sketches[name], checksums[name] = sketched[:, at], summed[:, at]
    return Prints(steps, sketches, checksums)


def at_steps(run: Run, name: str, steps: Iterable[int]) -> np.ndarray:
    """Those steps of a series, in one reading; they must be there."""
    place = {step: at for at, step in enumerate(run.steps(name).tolist())}
    return run.array(name)[[place[step] for step in steps]]
