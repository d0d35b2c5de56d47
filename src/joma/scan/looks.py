"""A look at a few checkpoints of a series: what they hold of what is wanted, and whether they agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from joma.host.errors import BadInput
from joma.host.words import counted
from joma.measure.registry import WeightMeasure
from joma.scan.checkpoint import Checkpoint, Place
from joma.scan.errors import CheckpointError, Fault, NoneUsable, UnknownNames
from joma.scan.integrity import check_matrix
from joma.scan.measures import Measure
from joma.scan.names.architecture import EMBEDDING, MLP, coverage, find_groups, matrix_groups, pick_groups
from joma.scan.names.roots import root_notes
from joma.scan.sources.folder import LocalFolder
from joma.scan.sources.series import Series

_LOOKS = 3  # checkpoints that must agree on what the series holds; two of three outvote a damaged one


@dataclass(frozen=True)
class Wanted:
    """What a user asked for: measures by name, patterns, the groups to keep to (None: all), and the root."""

    measures: Mapping[str, Measure]
    patterns: Mapping[str, str]
    groups: tuple[str, ...] | None = None
    root: str | None = None

    @property
    def of_matrices(self) -> list[str]:
        return [n for n, m in self.measures.items() if isinstance(m, WeightMeasure) and m.group == MLP]

    @property
    def of_embedding(self) -> list[str]:
        return [n for n, m in self.measures.items() if isinstance(m, WeightMeasure) and m.group == EMBEDDING]


@dataclass(frozen=True)
class Look:
    """What one checkpoint holds of what is wanted. refused: measures whose tensors it does not have, and why."""

    place: Place
    model_type: str | None
    groups: dict[str, tuple[str, ...]]
    known: dict[str, tuple[str, ...]]
    shapes: dict[str, tuple[int, ...]]
    refused: dict[str, str]
    coverage: dict[str, tuple[int, int]]
    notes: tuple[str, ...]


def agreed(series: Series, wanted: Wanted) -> Look:
    """What most of a few checkpoints hold. CheckpointError where architectures are mixed or nothing can be found."""
    _one_model_type(series)
    return _majority(series, _looks(series, wanted))


def fault_of(place: Place, error: CheckpointError, measure: str | None = None) -> Fault:
    """An error as what a report lists."""
    return Fault(place.step, place.name, error.file, error.tensor, str(error), measure)


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


def _looks(series: Series, wanted: Wanted) -> list[Look]:
    """The first, last and middle checkpoints, or others in place of those that cannot be opened."""
    places = list(series.places)
    ends = [places[0], places[-1], places[len(places) // 2]]
    order = list({place.step: place for place in [*ends, *places]}.values())
    looks: list[Look] = []
    faults: list[Fault] = []
    unknown: list[UnknownNames] = []
    for place in order:
        if len(looks) == _LOOKS:
            break
        try:
            looks.append(_look(place, wanted))
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


def _look(place: Place, wanted: Wanted) -> Look:
    kind = place.model_type()
    with place.open() as checkpoint:
        names = checkpoint.names()

        def shape(name: str) -> tuple[int, ...]:
            return checkpoint.stored(name).shape

        known = find_groups(names, wanted.patterns, root=wanted.root, shape=shape, model_type=kind)
        refused: dict[str, str] = {}
        groups = _chosen(known, wanted, names, kind, refused)
        for group, name in [(group, name) for group, tensors in groups.items() for name in tensors]:
            _must_be_matrix(checkpoint, name, group, wanted)
        shapes = {name: shape(name) for tensors in groups.values() for name in tensors}
        notes = (*root_notes(names, wanted.root), *checkpoint.notes())
        return Look(place, kind, groups, known, shapes, refused, coverage(groups, names), notes)


def _chosen(
    known: dict[str, tuple[str, ...]], wanted: Wanted, names: list[str], kind: str | None, refused: dict[str, str]
) -> dict[str, tuple[str, ...]]:
    """The groups to read. A measure whose tensors are not there is refused; only if none is left that is an error."""
    groups: dict[str, tuple[str, ...]] = {}
    failed: UnknownNames | None = None
    for measures, find in ((wanted.of_matrices, _matrices), (wanted.of_embedding, _embedding)):
        try:
            groups |= find(known, wanted, names, kind) if measures else {}
        except UnknownNames as error:
            failed = failed or error
            refused |= dict.fromkeys(measures, str(error))
    if failed and len(refused) == len(wanted.measures):
        raise failed
    return groups or _for_the_gate(known)


def _matrices(
    known: dict[str, tuple[str, ...]], wanted: Wanted, names: list[str], kind: str | None
) -> dict[str, tuple[str, ...]]:
    """All groups of matrices, or those that were named: "attention" and "mlp" stand for several where there is none."""
    if wanted.groups is None:
        must = [*([] if matrix_groups(known) else [MLP]), *(each for each in wanted.patterns if each != EMBEDDING)]
        picked = pick_groups(known, must, names, kind)
        return {**{group: known[group] for group in matrix_groups(known)}, **picked}
    found: dict[str, tuple[str, ...]] = {}
    for group in wanted.groups:
        if group not in {*known, MLP, "attention"}:
            raise BadInput(f"--groups {group} is none of the groups found here: {', '.join(known)}")
        found |= {group: known[group]} if group in known else pick_groups(known, [group], names, kind)
    return found


def _embedding(
    known: dict[str, tuple[str, ...]], wanted: Wanted, names: list[str], kind: str | None
) -> dict[str, tuple[str, ...]]:
    return pick_groups(known, [EMBEDDING], names, kind)


def _for_the_gate(known: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """What the integrity gate looks at where only the running model is measured: one group, whichever there is."""
    for group in (MLP, *known):
        if group in known:
            return {group: known[group]}
    return {}


def _must_be_matrix(checkpoint: Checkpoint, name: str, group: str, wanted: Wanted) -> None:
    try:
        check_matrix(checkpoint.stored(name), name, checkpoint.file_of(name))
    except CheckpointError as error:
        raise UnknownNames(f"--pattern {group}: {error}" if group in wanted.patterns else str(error)) from None


def _majority(series: Series, looks: list[Look]) -> Look:
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


def _signature(look: Look, kind: str | None) -> str:
    return repr((look.model_type or kind, look.groups, look.shapes))


def _described(look: Look) -> str:
    names = [name for group in look.groups.values() for name in group]
    such = f" such as {names[0]} {look.shapes[names[0]]}" if names else ""
    return f"{look.place.name} has {counted(len(names), 'matrix', 'matrices')}{such}"
