"""Which checkpoints a path holds, and in which order: a file, a model folder, a run, a folder above one run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from joma.host.words import counted
from joma.scan.checkpoint import ENDINGS, Place, parts_of_one
from joma.scan.errors import CheckpointError
from joma.scan.sources.folder import (
    LocalFile,
    LocalFolder,
    entries_of,
    holds_weights,
    in_order,
    is_folder,
    is_plain_file,
    is_weights,
    must_hold_weights,
    visible_in,
)
from joma.scan.sources.steps import Moment, is_aside, moment_in, moment_inside, numbered, run_in

STEP, EPOCH = "step", "epoch"
_DEEPEST = 4  # folders between a path and the checkpoints of its one run: lightning_logs/version_0/checkpoints
_MOST_FOLDERS = 10_000
_NAMES = 5


@dataclass(frozen=True)
class Found:
    """Checkpoints in their order, what orders them ("step" or "epoch"), and sentences on what was left aside."""

    places: tuple[Place, ...]
    axis: str = STEP
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Candidate:
    """Something that may be a checkpoint of a series: its name, its moment, and how it becomes a place."""

    name: str
    moment: Moment
    make: Callable[[int, int | None], Any]


def find_places(path: Path) -> Found:
    """The checkpoints at `path`. What is ambiguous is refused in a sentence that says what to do."""
    from joma.scan.sources.cached_hub import cached_places, is_cached, of_snapshot  # which asks this file in turn

    if is_plain_file(path):
        if not path.name.endswith(ENDINGS):
            raise CheckpointError(f"{path} is no checkpoint: its name must end in {', '.join(ENDINGS)}")
        return alone(path)
    if is_cached(path):
        return cached_places(path)
    return of_snapshot(path) or _in_folder(path)


def local_places(path: Path) -> list[Place]:
    """The checkpoints of `find_places` alone."""
    return list(find_places(path).places)


def arrange(candidates: Sequence[Candidate], where: str, aside: Iterable[str] = ()) -> Found:
    """Candidates with a moment, by step or, where no step is known, by epoch. aside: names that have none.

    where: what messages call the series.
    """
    plain = [each for each in candidates if not is_aside(each.name)]
    chosen = plain or list(candidates)
    _must_be_one_run(chosen, where)
    left = [*(each.name for each in candidates if each not in chosen), *aside]
    notes = (f"left aside, because a series has one checkpoint per step: {_some(left)}",) if left else ()
    stepped = [each for each in chosen if each.moment.step is not None]
    if stepped and len(stepped) < len(chosen):
        other = next(each for each in chosen if each not in stepped)
        raise CheckpointError(
            f"{where} mixes steps ({stepped[0].name}) and epochs ({other.name}), which have no common order; move one "
            "kind to a folder of its own"
        )
    if stepped:
        steps = [each.make(each.moment.step or 0, each.moment.epoch) for each in stepped]
        return Found(tuple(in_order(steps)), STEP, notes)
    epochs = [each.make(each.moment.epoch or 0, each.moment.epoch) for each in chosen]
    return Found(tuple(in_order(epochs)), EPOCH, notes)


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


def _must_be_one_run(candidates: Sequence[Candidate], where: str) -> None:
    runs = list(dict.fromkeys(run_in(each.name) or "others" for each in candidates))
    if len(runs) > 1:
        raise CheckpointError(f"{where} mixes {_some(runs)}, which are no one series; move each to a folder of its own")


def _in_folder(path: Path) -> Found:
    entries = entries_of(path)
    files = [entry for entry in entries if is_weights(entry)]
    folders = [entry for entry in entries if is_folder(entry)]
    one_model = _is_one_model(entries, files)
    if one_model and moment_in(path.name):  # what lies in folders below, an optimizer's state say, is part of it
        return alone(path)
    stepped = [folder for folder in folders if moment_in(folder.name)]
    if stepped and (not one_model or any(holds_weights(folder) for folder in stepped)):
        return _of_folders(path, folders, files)
    if one_model:
        return alone(path)
    named = [file for file in files if moment_in(file.stem)]
    if named:
        aside = [file.name for file in files if file not in named]
        return arrange([_candidate(file, moment_in(file.stem)) for file in named], str(path), aside)
    if found := _by_number(path, files) or _by_number(path, [folder for folder in folders if holds_weights(folder)]):
        return found
    if not holds_weights(path):
        return _below(path, folders)
    LocalFolder(path, 0).weights()  # or a sentence that says which files to choose from
    return alone(path)


def _of_folders(path: Path, folders: list[Path], files: list[Path]) -> Found:
    """One folder per step; files beside them belong to the final model."""
    stepped = {folder: moment_in(folder.name) for folder in folders if moment_in(folder.name)}
    nested = [folder for folder, moment in stepped.items() if moment.step is None and _is_series(folder)]
    aside = [folder.name for folder in folders if folder not in stepped and holds_weights(folder)]
    aside += [file.name for file in files if not moment_in(file.stem)]
    stepped |= {file: moment_in(file.stem) for file in files if moment_in(file.stem)}
    if nested and len(nested) == len(stepped):
        return _of_epochs(path, nested, aside)
    return arrange([_candidate(folder, moment) for folder, moment in stepped.items()], str(path), aside)


def _is_series(folder: Path) -> bool:
    """Whether a folder holds several checkpoints, not one."""
    entries = visible_in(folder)
    files = [entry for entry in entries if is_weights(entry)]
    return not _is_one_model(entries, files) and any(map(_has_moment, entries))


def _of_epochs(path: Path, folders: list[Path], aside: list[str]) -> Found:
    """Folders of epochs that hold one checkpoint per step."""
    candidates: list[Candidate] = []
    notes: list[str] = []
    for folder in folders:
        found = _in_folder(folder)
        notes += [f"{folder.name}: {note}" for note in found.notes]
        for place in found.places:
            moment = Moment(place.step, moment_in(folder.name).epoch)
            candidates.append(_candidate(folder / place.name, moment))
    steps = [candidate.moment.step for candidate in candidates]
    if len(set(steps)) < len(steps):
        raise CheckpointError(
            f"{path} counts its steps anew in every epoch ({folders[0].name}, ...), so they have no common order; name "
            f"one epoch, as in {folders[0]}"
        )
    arranged = arrange(candidates, str(path), aside)
    return replace(arranged, notes=(*arranged.notes, *notes))


def _by_number(path: Path, entries: list[Path]) -> Found | None:
    """A series whose names tell no step: by what the files say themselves, or by a number that all names share."""
    plain = [entry for entry in entries if not is_aside(_stem(entry))]
    numbers = {entry: number for entry in plain if (number := numbered(_stem(entry)))}
    if not plain or (len(plain) == 1 and not numbers):
        return None
    # Folders that tell their step, and have no number, are more likely the ends of several runs.
    inside = {entry: moment_inside(entry) for entry in plain if entry in numbers or not is_folder(entry)}
    aside = [entry.name for entry in entries if entry not in plain]
    if len(inside) == len(plain) and all(inside.values()) and len({*inside.values()}) == len(plain):
        found = arrange([_candidate(entry, moment) for entry, moment in inside.items()], str(path), aside)
        said = f"the {found.axis} of each checkpoint is the one that it holds: its name has none"
        return replace(found, notes=(*found.notes, said))
    if len(numbers) < len(plain) or len({stem for stem, _ in numbers.values()}) > 1:
        return None
    found = arrange([_candidate(entry, Moment(number)) for entry, (_, number) in numbers.items()], str(path), aside)
    return replace(found, notes=(*found.notes, _taken_for_step(plain[0])))


def alone(path: Path, called: str | None = None) -> Found:
    """One checkpoint, which messages name `called`; without a moment in its name or inside it stands at step 0."""
    if is_folder(path):
        must_hold_weights(path)
    moment, notes = moment_in(_stem(path)) or moment_inside(path), list[str]()
    if not moment and is_folder(path):
        files = [entry for entry in entries_of(path) if is_weights(entry)]
        moment = moment_inside(files[0]) or moment_in(files[0].stem) if len(files) == 1 else moment
    if not moment and not is_folder(path) and (number := numbered(_stem(path))):
        moment, notes = Moment(number[1]), [_taken_for_step(path)]
    if not moment:
        moment, notes = Moment(0), [f"the step of {called or path.name} is not known: it stands at 0"]
    return replace(arrange([_candidate(path, moment, called)], str(path)), notes=tuple(notes))


def _below(path: Path, folders: list[Path]) -> Found:
    """The one run in the folders below, or a sentence that names the several."""
    runs = _runs_in(folders)
    if not runs:
        must_hold_weights(path)
    if len(runs) > 1:
        names = [str(run.relative_to(path)) for run in runs]
        raise CheckpointError(f"{path} holds {counted(len(runs), 'run')}: {_some(names)}; name one, as in {runs[0]}")
    found = find_places(runs[0])
    return replace(found, notes=(f"the checkpoints are in {runs[0].relative_to(path)}", *found.notes))


def _runs_in(folders: list[Path]) -> list[Path]:
    from joma.scan.sources.cached_hub import is_cached

    found: list[Path] = []
    seen = 0
    for _ in range(_DEEPEST):
        deeper: list[Path] = []
        for folder in folders:
            seen += 1
            if seen > _MOST_FOLDERS:
                raise CheckpointError(f"more than {_MOST_FOLDERS:,} folders hold no checkpoint; name the run itself")
            entries = visible_in(folder)
            if is_cached(folder) or holds_weights(folder) or any(_has_moment(entry) for entry in entries):
                found.append(folder)
            else:
                deeper += [entry for entry in entries if is_folder(entry)]
        folders = deeper
    return found


def _has_moment(entry: Path) -> bool:
    """Whether an entry is a checkpoint of a series by its name."""
    return bool(moment_in(_stem(entry))) and (holds_weights(entry) if is_folder(entry) else is_weights(entry))


def _is_one_model(entries: Sequence[Path], files: Sequence[Path]) -> bool:
    """Whether the files of a folder are one model: as transformers names them, or one file beside its config."""
    names = {entry.name for entry in entries}
    if names & {"model.safetensors", "pytorch_model.bin"} or any(name.endswith(".index.json") for name in names):
        return True
    if parts_of_one(names):  # of DeepSpeed, of torch's distributed checkpoints
        return True
    return "config.json" in names and sum(bool(moment_in(file.stem)) for file in files) < 2


def _candidate(path: Path, moment: Moment, called: str | None = None) -> Candidate:
    def make(step: int, epoch: int | None) -> Place:
        return LocalFolder(path, step, epoch, called) if is_folder(path) else LocalFile(path, step, epoch)

    return Candidate(_stem(path), moment, make)


def _stem(path: Path) -> str:
    return path.name if is_folder(path) else path.stem


def _taken_for_step(path: Path) -> str:
    return f"the number in {path.name} was taken for the step: neither its name nor the file says what it counts"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(names[:_NAMES]) + more
