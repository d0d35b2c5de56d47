"""What a sweep will read, settled by a look at a few checkpoints before anything is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from joma.host.devices import lacking
from joma.host.errors import BadInput
from joma.host.words import brief, counted
from joma.scan.architecture import EMBEDDING, find_groups, pick_groups
from joma.scan.checkpoint import Place
from joma.scan.errors import CheckpointError, Fault, NoneUsable, UnknownNames
from joma.scan.folder import LocalFolder
from joma.scan.integrity import check_matrix
from joma.scan.measures import ModelMeasure, WeightMeasure, chosen
from joma.scan.series import Series

_LOOKS = 3  # checkpoints that must agree on what the series holds; two of three outvote a damaged one


@dataclass(frozen=True)
class Plan:
    """What is measured, and what every checkpoint of the series must therefore hold.

    - series: the checkpoints
    - measures: what is measured, by name
    - model_type: the architecture that config.json names; None without one
    - groups: the tensors of every group that is measured, by layer
    - known: the same for all groups that were found, measured or not
    - shapes: the shape of every tensor that is read
    - device: where it is measured
    - tokens: the text, for every measure that runs the model

    >>> import tempfile
    >>> from safetensors.torch import save_file
    >>> from joma.scan.series import open_series
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_file({"h.0.mlp.c_fc.weight": torch.eye(4)}, f"{folder}/step0.safetensors")
    ...     settled = plan(open_series(folder, downloads=Path(folder)))
    >>> list(settled.wanted())
    ['stable_rank/mlp', 'sketch/mlp', 'checksum/mlp']
    """

    series: Series
    measures: Mapping[str, WeightMeasure | ModelMeasure]
    model_type: str | None
    groups: Mapping[str, tuple[str, ...]]
    known: Mapping[str, tuple[str, ...]]
    shapes: Mapping[str, tuple[int, ...]]
    device: torch.device
    tokens: Mapping[str, Tensor]

    def __repr__(self) -> str:
        return brief(self)

    def config(self) -> dict[str, Any]:
        """What the columns of a run stand for; it does not change when more steps or measures are asked for."""
        known = {group: list(names) for group, names in self.known.items()}
        return {"source": self.series.source, "model_type": self.model_type, "groups": known}

    def wanted(self) -> dict[str, str]:
        """What a complete step has in the run: names, each with the group of tensors that it comes from."""
        names: dict[str, str] = {}
        for name, measure in self.measures.items():
            if isinstance(measure, ModelMeasure):
                names[name] = measure.group
                continue
            for group in self.groups:
                if (measure.group == EMBEDDING) == (group == EMBEDDING):
                    names[f"{name}/{group}"] = group
        for group in self.groups:
            names |= {f"sketch/{group}": group, f"checksum/{group}": group}
        return names


@dataclass(frozen=True)
class _Look:
    """What one checkpoint holds of what is wanted."""

    place: Place
    model_type: str | None
    groups: dict[str, tuple[str, ...]]
    known: dict[str, tuple[str, ...]]
    shapes: dict[str, tuple[int, ...]]


def plan(
    series: Series,
    *,
    measures: Iterable[str] = ("stable_rank",),
    patterns: Mapping[str, str] | None = None,
    text: Path | None = None,
    device: str = "cpu",
) -> Plan:
    """Settle what a sweep of `series` reads: the measures by name, patterns for groups of matrices, text and device.

    Raises CheckpointError where architectures are mixed or the matrices cannot be found, NoneUsable where no
    checkpoint can be opened.

    >>> import tempfile
    >>> from safetensors.torch import save_file
    >>> from joma.scan.series import open_series
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_file({"h.0.mlp.c_fc.weight": torch.eye(4)}, f"{folder}/step0.safetensors")
    ...     plan(open_series(folder, downloads=Path(folder))).groups
    {'mlp': ('h.0.mlp.c_fc.weight',)}
    """
    wanted = chosen(measures)
    worker = usable_device(device)
    running = {name: measure for name, measure in wanted.items() if isinstance(measure, ModelMeasure)}
    if running and text is None:
        raise BadInput(f"{next(iter(running))} runs the model on a text: give one as text")
    if text is not None and not running:
        raise BadInput(f"text is for entropy, but measures {','.join(wanted)} does not read a text")
    groups = list(dict.fromkeys([*(measure.group for measure in wanted.values()), *(patterns or {})]))
    _one_model_type(series)
    look = _agreed(series, _looks(series, groups, patterns or {}))
    tokens = {} if text is None else {name: measure.tokens(look.place, text) for name, measure in running.items()}
    return Plan(series, wanted, look.model_type, look.groups, look.known, look.shapes, worker, tokens)


def usable_device(name: str) -> torch.device:
    """The device of that name, or one sentence."""
    if missing := lacking(name):
        raise BadInput(str(missing))
    return torch.device(name)


def _one_model_type(series: Series) -> None:
    """Local configs are cheap to read, so a folder of different models is refused before any of them is measured."""
    first: dict[str, str] = {}
    for place in series.places:
        if not isinstance(place, LocalFolder):
            continue
        try:
            kind = place.model_type()
        except CheckpointError:
            continue  # the sweep will report it with its step
        if kind is not None:
            first.setdefault(kind, place.name)
    if len(first) > 1:
        (one, at), (other, there) = list(first.items())[:2]
        raise CheckpointError(f"{series.source} mixes architectures: {at} is {one}, {there} is {other}")


def _looks(series: Series, groups: Sequence[str], patterns: Mapping[str, str]) -> list[_Look]:
    """The first, last and middle checkpoints, or others in place of those that cannot be opened."""
    places = list(series.places)
    ends = [places[0], places[-1], places[len(places) // 2]]
    order = list({place.step: place for place in [*ends, *places]}.values())
    looks: list[_Look] = []
    faults: list[Fault] = []
    unknown: list[UnknownNames] = []
    for place in order:
        if len(looks) == _LOOKS:
            break
        try:
            looks.append(_look(place, groups, patterns))
        except CheckpointError as error:
            faults.append(fault_of(place, error))
            unknown += [error] if isinstance(error, UnknownNames) else []
            if len(unknown) == _LOOKS:
                break
    if not looks and unknown:
        raise unknown[0]
    if not looks:
        raise NoneUsable(series.source, sorted(faults, key=lambda fault: fault.step))
    return looks


def _look(place: Place, groups: Sequence[str], patterns: Mapping[str, str]) -> _Look:
    kind = place.model_type()
    with place.open() as checkpoint:
        known = find_groups(checkpoint.names(), patterns)
        found = pick_groups(known, groups, checkpoint.names(), kind)
        for group, name in [(group, name) for group, names in found.items() for name in names]:
            stored = checkpoint.stored(name)
            try:
                check_matrix(stored, name, checkpoint.file_of(name))
            except CheckpointError as error:
                raise UnknownNames(f"--pattern {group}: {error}" if group in patterns else str(error)) from None
        shapes = {name: checkpoint.stored(name).shape for names in found.values() for name in names}
    return _Look(place, kind, found, known, shapes)


def _agreed(series: Series, looks: list[_Look]) -> _Look:
    """The look that most agree with; without a majority nobody can say which checkpoint is the odd one."""
    kinds = Counter(look.model_type for look in looks if look.model_type is not None)
    kind = kinds.most_common(1)[0][0] if kinds else None  # a checkpoint without config.json is of no other kind
    votes = Counter(_signature(look, kind) for look in looks)
    signature, count = votes.most_common(1)[0]
    if len(votes) > 1 and count < 2:
        one, other = looks[0], looks[1]
        raise CheckpointError(
            f"{series.source} mixes architectures: {_described(one)}, but {_described(other)}; scan them apart"
        )
    agreeing = [look for look in looks if _signature(look, kind) == signature]
    return min(agreeing, key=lambda look: look.model_type is None)  # one with a config can also be run


def _signature(look: _Look, kind: str | None) -> str:
    return repr((look.model_type or kind, look.groups, look.shapes))


def _described(look: _Look) -> str:
    names = [name for group in look.groups.values() for name in group]
    return (
        f"{look.place.name} has {counted(len(names), 'matrix', 'matrices')} such as {names[0]} {look.shapes[names[0]]}"
    )


def fault_of(place: Place, error: CheckpointError) -> Fault:
    """An error as what a report lists."""
    return Fault(place.step, place.name, error.file, error.tensor, str(error))
