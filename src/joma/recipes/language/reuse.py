"""A variant that another study has trained already is copied from its record instead of being trained again.

Ablations share their base: from the same recipe, text, versions and machine come the same numbers, so a finished run
beside this one has them. Nothing is taken from a run that goes on, from a branch, or of a state that branches need.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress

import numpy as np

from joma.runs import Run
from joma.runs.errors import RunError

RECIPE = "recipe"  # the series of a variant that holds the digest of its recipe
LAST = "diverged_at"
"""The series that training records at every measuring point; where it has the last step, training is over."""


def reuse(recipes: Mapping[str, str], run: Run) -> list[str]:
    """Record what finished runs of the same folder have of these variants; returns the names of those found.

    recipes: by the name of a variant, all that decides its numbers. The text must be recorded already.
    """
    wanted = {}
    for name, recipe in recipes.items():
        own = hashlib.sha256(recipe.encode()).digest()
        run.keep(f"{name}/{RECIPE}", lambda own=own: np.frombuffer(own, np.uint8))  # type: ignore[misc]
        if run.last_step(f"{name}/{LAST}") is None:
            wanted[name] = own
    found = []
    for other in _finished(run) if wanted else ():
        theirs = {
            other.value(series).tobytes(): series.removesuffix(f"/{RECIPE}")
            for series in other.names()
            if series.endswith(f"/{RECIPE}")
        }
        for name in [name for name, own in wanted.items() if own in theirs]:
            _copy(other, theirs[wanted.pop(name)], run, name)
            found.append(name)
    return found


def _finished(run: Run) -> Iterator[Run]:
    """Finished runs of other studies beside this one that read the same text, with the same versions and machine."""
    for path in sorted(run.path.parent.glob(f"*{run.path.suffix}")):
        with suppress(RunError):  # who cannot be read has nothing to give
            if path != run.path:
                with Run.open(path) as other:
                    if other.study != run.study and other.status == "finished" and _origin(other) == _origin(run):
                        yield other


def _origin(run: Run) -> tuple[object, ...]:
    machine = {name: value for name, value in run.machine.items() if name in ("platform", "cpu")}
    text = run.value("corpus/sha256").tobytes() if "corpus/sha256" in run else b""
    return run.versions, machine, text


def _copy(other: Run, theirs: str, run: Run, name: str) -> None:
    """Curves, a measuring point at once, as training records them: a copy that was cut short is trained to its end."""
    curves = [one for one in other.names() if one.startswith(f"{theirs}/") and other.last_step(one)]
    named = {one: f"{name}{one[len(theirs) :]}" for one in curves}
    dims = {named[one]: other.dims(one) for one in curves}
    for step in other.steps(f"{theirs}/{LAST}").tolist():
        there = {named[one]: other.at(one, step) for one in curves if step in other.steps(one)}
        run.record(step, there, dims={one: dims[one] for one in there})
