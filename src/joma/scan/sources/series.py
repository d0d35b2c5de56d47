"""A series of checkpoints, ordered by step or by epoch, from whatever the user named."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from joma.host.words import brief
from joma.scan.checkpoint import Place
from joma.scan.errors import CheckpointError
from joma.scan.sources.cache import DiskCache
from joma.scan.sources.cached_hub import cached_folder, cached_places
from joma.scan.sources.hub import HubModel
from joma.scan.sources.places import STEP, Found, find_places

BUDGET = 20e9  # bytes of downloads to keep
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class Series:
    """Where the checkpoints of one training run are.

    - source: the user's word for it
    - places: one per step, in order
    - axis: what orders them, "step", or "epoch" where no step is known; the step of a place is then its epoch
    - notes: sentences on what was left aside, or taken for what

    >>> import tempfile
    >>> from safetensors.torch import save_file
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
        if unknown:
            raise CheckpointError(f"{self.source} has no {self.axis} {unknown[0]}; it has {_some(self.steps)}")
        if not chosen:
            raise CheckpointError(
                f"--steps {wanted} names none of the {self.axis}s of {self.source}: {_some(self.steps)}"
            )
        return replace(self, places=tuple(place for place in self.places if place.step in set(chosen)))


def open_series(source: str | Path, *, downloads: Path, budget: float = BUDGET) -> Series:
    """The series at `source`: a local file or folder if there is one of that name, else a model on the hub.

    With HF_HUB_OFFLINE=1 a model of the hub is read from the cache of huggingface_hub.

    downloads: where to make a folder `joma-downloads` for hub files that cannot be read in part, of at most `budget`
    bytes. It is made when it is needed, and only files that joma made in it are ever removed.

    >>> import tempfile
    >>> from safetensors.torch import save_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for step in (0, 10):
    ...         save_file({}, f"{folder}/step{step}.safetensors")
    ...     [place.name for place in open_series(folder, downloads=Path(folder)).places]
    ['step0.safetensors', 'step10.safetensors']
    """
    path = Path(source).expanduser()
    name = str(source)
    if path.exists():
        return _series(str(path.resolve()), find_places(path.resolve()))
    if not _REPOSITORY.fullmatch(name) or set(name) <= {".", "/"}:
        raise CheckpointError(
            f"{name} does not exist, and it is no model on the hub either (those are named owner/model)"
        )
    if offline():
        return _series(name, _cached(name))
    try:
        return _series(name, HubModel(name, DiskCache(downloads, int(budget))).found())
    except CheckpointError as error:
        if cached_folder(name) is None:
            raise
        raise CheckpointError(f"{error}; HF_HUB_OFFLINE=1 reads the copy in the cache") from None


def offline() -> bool:
    """Whether huggingface_hub was told not to ask the hub (HF_HUB_OFFLINE)."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def _series(source: str, found: Found) -> Series:
    return Series(source, found.places, found.axis, found.notes)


def _cached(name: str) -> Found:
    folder = cached_folder(name)
    if folder is None:
        raise CheckpointError(
            f"{name} is not in the cache of huggingface_hub, and HF_HUB_OFFLINE forbids to ask the hub for it"
        )
    return cached_places(folder)


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
            raise CheckpointError(f"--steps takes numbers and ranges like 0,1,1000:3000:1000, got {part!r}")
        bounds = part.strip().split(":")
        if len(bounds) == 1:
            found.add(int(part))
            continue
        first = int(bounds[0]) if bounds[0] else min(there)
        last = int(bounds[1]) if bounds[1] else max(there)
        stride = int(bounds[2]) if len(bounds) == 3 and bounds[2] else 1
        if stride == 0:
            raise CheckpointError(f"--steps {part} has a stride of 0; it must be at least 1")
        found |= {step for step in there if first <= step <= last and (step - first) % stride == 0}
    return sorted(found)


def _some(steps: Sequence[int]) -> str:
    shown = ", ".join(map(str, steps[:8]))
    return shown if len(steps) <= 8 else f"{shown}, ... {steps[-1]} ({len(steps)} in all)"
