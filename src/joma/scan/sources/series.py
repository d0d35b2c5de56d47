"""A series of checkpoints, ordered by step or by epoch: where each is, and which of them are one series."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, Protocol

from joma.host.words import brief
from joma.scan.errors import CheckpointError
from joma.scan.formats.checkpoint import Checkpoint, Weights
from joma.scan.sources.steps import Moment, is_aside, moment_in, run_in

STEP, EPOCH = "step", "epoch"
_NAMES = 5


class Place(Protocol):
    """Where a checkpoint of a series is. Nothing is read before `open`."""

    @property
    def step(self) -> int: ...

    @property
    def epoch(self) -> int | None: ...

    @property
    def name(self) -> str: ...

    def config(self) -> dict[str, Any] | None:
        """What config.json holds; None without one."""
        ...

    def identity(self) -> str:
        """Words that change when the files do."""
        ...

    def weights(self) -> Weights:
        """The files with the tensors, without opening them."""
        ...

    def open(self) -> Checkpoint: ...

    def folder(self) -> AbstractContextManager[Path]:
        """All of the checkpoint as a local folder, for measures that run the model."""
        ...


@dataclass(frozen=True)
class Disputed:
    """Checkpoints that claim the same step: they cannot all be right, so none of them is used."""

    name: str
    step: int
    epoch: int | None = None

    def _refuse(self) -> NoReturn:
        raise CheckpointError(f"{self.name} claim the same step; keep one of them")

    config = identity = weights = open = folder = _refuse


@dataclass(frozen=True)
class Series:
    """Where the checkpoints of one training run are.

    - source: the user's word for it
    - places: one per step, in order
    - axis: what orders them, "step", or "epoch" where no step is known; the step of a place is then its epoch
    - notes: sentences on what was left aside, or taken for what

    >>> import tempfile
    >>> from safetensors.torch import save_file
    >>> from joma.scan import open_series
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for step in (0, 10, 20):
    ...         save_file({}, f"{folder}/step{step}.safetensors")
    ...     series = open_series(folder, downloads=Path(folder))
    >>> series.select("10:").steps
    [10, 20]
    """

    source: str
    places: tuple[Place, ...]
    axis: str = STEP
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return brief(self)

    @property
    def steps(self) -> list[int]:
        return [place.step for place in self.places]

    @property
    def epochs(self) -> list[int | None]:
        """The epoch of each checkpoint, as far as it is known."""
        return [place.epoch for place in self.places]

    def select(self, wanted: str | Sequence[int] | None) -> Series:
        """The steps that `wanted` names; see `steps_of` for how text names them. None: all."""
        if wanted is None:
            return self
        chosen = steps_of(wanted, self.steps) if isinstance(wanted, str) else list(wanted)
        unknown = sorted(set(chosen) - set(self.steps))
        shown = ", ".join(map(str, self.steps[:8]))
        there = shown if len(self.steps) <= 8 else f"{shown}, ... {self.steps[-1]} ({len(self.steps)} in all)"
        if unknown:
            raise CheckpointError(f"{self.source} has no {self.axis} {unknown[0]}; it has {there}", argument="steps")
        if not chosen:
            what = f"{wanted} names none of the {self.axis}s of {self.source}: {there}"
            raise CheckpointError(what, argument="steps")
        return replace(self, places=tuple(place for place in self.places if place.step in set(chosen)))


def model_type(place: Place) -> str | None:
    """What config.json calls the architecture of a checkpoint; None without a config."""
    name = (place.config() or {}).get("model_type")
    return name if isinstance(name, str) else None


def steps_of(text: str, there: Sequence[int]) -> list[int]:
    """The steps that a text names: numbers and ranges A:B:C, separated by commas.

    A:B:C are the steps of the series from A to B, B included, whose distance from A is a multiple of C; an empty
    A or B is the first or last step, C may be left out. Single numbers are taken as they are.

    >>> steps_of("0,1,1000:3000:1000", [0, 1, 2, 1000, 1500, 2000, 3000, 4000])
    [0, 1, 1000, 2000, 3000]
    >>> steps_of("1500:", [0, 1000, 1500, 2000])
    [1500, 2000]
    """
    found: set[int] = set()
    for part in text.split(","):
        if not re.fullmatch(r"\s*(\d+|\d*:\d*(:\d*)?)\s*", part):
            what = f"steps takes numbers and ranges like 0,1,1000:3000:1000, got {part!r}"
            raise CheckpointError(what, argument="steps")
        bounds = part.strip().split(":")
        if len(bounds) == 1:
            found.add(int(part))
            continue
        first = int(bounds[0]) if bounds[0] else min(there)
        last = int(bounds[1]) if bounds[1] else max(there)
        stride = int(bounds[2]) if len(bounds) == 3 and bounds[2] else 1
        if stride == 0:
            raise CheckpointError(f"steps {part} has a stride of 0; it must be at least 1", argument="steps")
        found |= {step for step in there if first <= step <= last and (step - first) % stride == 0}
    return sorted(found)


@dataclass(frozen=True)
class Candidate:
    """Something that may be a checkpoint of a series: its name, its moment, and how it becomes a place."""

    name: str
    moment: Moment
    make: Callable[[int, int | None], Place]


def arrange(candidates: Sequence[Candidate], where: str, aside: Iterable[str] = ()) -> Series:
    """Candidates with a moment, by step or, where no step is known, by epoch. aside: names that have none.

    where: what the series is called.
    """
    chosen = [each for each in candidates if not is_aside(each.name)] or list(candidates)
    runs = list(dict.fromkeys(run_in(each.name) or "others" for each in chosen))
    if len(runs) > 1:
        raise CheckpointError(f"{where} mixes {some(runs)}, which are no one series; move each to a folder of its own")
    left = [*(each.name for each in candidates if each not in chosen), *aside]
    notes = (f"left aside, because a series has one checkpoint per step: {some(left)}",) if left else ()
    stepped = [each for each in chosen if each.moment.step is not None]
    if stepped and len(stepped) < len(chosen):
        other = next(each for each in chosen if each not in stepped)
        both = f"steps ({stepped[0].name}) and epochs ({other.name}), which have no common order"
        raise CheckpointError(f"{where} mixes {both}; move one kind to a folder of its own")
    moments = [(each.moment.step if stepped else each.moment.epoch) or 0 for each in chosen]
    places = [each.make(at, each.moment.epoch) for each, at in zip(chosen, moments, strict=True)]
    return Series(where, tuple(_in_order(places)), STEP if stepped else EPOCH, notes)


def _in_order(places: Sequence[Place]) -> list[Place]:
    """Places by step; several that claim the same step become one that cannot be used."""
    by_step: dict[int, list[Any]] = {}
    for place in sorted(places, key=lambda place: place.step):
        by_step.setdefault(place.step, []).append(place)
    return [
        one if not more else Disputed(" and ".join(place.name for place in (one, *more)), step, one.epoch)
        for step, (one, *more) in by_step.items()
    ]


def with_moments(revisions: Iterable[str]) -> list[str]:
    """The revisions of a model that are named by their step, or where there are none, by their epoch.

    Of several runs or stages it is the one with most revisions: nobody can move those of a hub apart.

    >>> with_moments(["main", "step10", "epoch1", "step20"])
    ['step10', 'step20']
    >>> with_moments(["stage1-step10", "stage1-step20", "stage2-step10"])
    ['stage1-step10', 'stage1-step20']
    """
    moments = {name: moment_in(name) for name in revisions}
    stepped = [name for name, moment in moments.items() if moment.step is not None]
    timed = stepped or [name for name, moment in moments.items() if moment]
    runs = Counter(map(run_in, timed))
    return [name for name in timed if run_in(name) == max(runs, key=runs.__getitem__)]


def some(names: Sequence[str]) -> str:
    """A few of many names, and how many more there are."""
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(names[:_NAMES]) + more
