"""The checkpoints that a user names: a file, a model folder, a run, a folder above one run, or a model on the hub.

A model in the cache of huggingface_hub is read where it lies: in `models--owner--name`, refs/NAME holds the commit of a
revision, snapshots/COMMIT its files, as far as they were downloaded.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from joma.host.errors import BadInput
from joma.host.stores import is_address
from joma.host.words import brief_repr, counted
from joma.scan.errors import CheckpointError
from joma.scan.formats.checkpoint import ENDINGS, ends_in
from joma.scan.formats.opening import ALONE
from joma.scan.formats.tensor_file import small_file
from joma.scan.sources import folder as local
from joma.scan.sources import series as moments
from joma.scan.sources.downloads import DiskCache
from joma.scan.sources.folder import LocalFile, LocalFolder, is_one_model, moment_of_file, stem_of
from joma.scan.sources.hub import HubModel
from joma.scan.sources.series import Candidate, Moment, Place, Series, arrange, moment_in, some, with_moments
from joma.scan.sources.store import open_store

BUDGET = 20.0  # gigabytes of downloads to keep
_HUB = "hf://"
_NO_BASE = "none"
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_MOST_REFS = 50_000
_TORCHTUNE = re.compile(
    r"(?P<kind>(?:hf|meta|torchtune)_model)(?P<shard>_\d{4})?_(?P<epoch>\d{1,9})\.(?:pt|safetensors)"
)
_DEEPEST = 4  # folders between a path and the checkpoints of its one run: lightning_logs/version_0/checkpoints
_MOST_FOLDERS = 10_000
_COUNTED = "the number in {} was taken for the step: neither its name nor the file says what it counts"


@brief_repr
@dataclass(frozen=True, kw_only=True)
class Which:
    """Which checkpoints of a source a scan takes.

    - steps: as numbers or as text ("0,1,1000:3000:1000"); None: all.
    - axis: what orders the checkpoints: "tokens" or "date" as their names say; None: steps, or epochs where no step is
      known.
    - base: the folder of the model that adapters are merged with; "none": adapters are measured alone.
    - budget: gigabytes of disk for files elsewhere that cannot be read in part.
    """

    steps: str | Sequence[int] | None = None
    axis: str | None = None
    base: str | Path | None = None
    budget: float = BUDGET


def find_series(source: str | Path, which: Which, out: Path) -> Series:
    """The checkpoints that a scan into the folder `out` would measure."""
    if not 0 < which.budget < 1e9:
        raise BadInput(f"budget must be a positive number of gigabytes, got {which.budget}", argument="budget")
    series = open_series(source, downloads=out, budget=which.budget * 1e9, axis=which.axis).select(which.steps)
    return series if which.base is None else on_base(series, which.base)


def open_series(
    source: str | Path, *, downloads: Path, budget: float = BUDGET * 1e9, axis: str | None = None
) -> Series:  # fmt: skip
    """The series at `source`: a local file or folder if there is one of that name, an address, or a model on the hub.

    Addresses are those of object stores (s3://, gs://, az://) and of files on the web (https://); hf://owner/model is
    a model on the hub too. With HF_HUB_OFFLINE=1 a model of the hub is read from the cache of huggingface_hub.

    downloads: where to make a folder `joma-downloads` for files elsewhere that cannot be read in part, of at most
    `budget` bytes. It is made when it is needed, and only files that joma made in it are ever removed.
    axis: "tokens" or "date" orders the entries of a local folder by what their names say of that; None, "step" and
    "epoch": by step, or by epoch where no step is known.

    >>> import tempfile
    >>> from safetensors.torch import save_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for step in (0, 10):
    ...         save_file({}, f"{folder}/step{step}.safetensors")
    ...     [place.name for place in open_series(folder, downloads=Path(folder)).places]
    ['step0.safetensors', 'step10.safetensors']
    """
    if axis not in (None, *moments.AXES):
        raise BadInput(f"axis must be one of {', '.join(moments.AXES)}, got {axis!r}", argument="axis")
    name = str(source).removeprefix(_HUB)
    path = Path(os.path.expanduser(name))
    marked = axis in (moments.TOKENS, moments.DATE)
    if is_address(name):
        if marked:
            raise BadInput(f"axis {axis} is for folders on this machine, and an address is none", argument="axis")
        return open_store(name, DiskCache(downloads, int(budget)))
    if name == str(source) and path.exists():
        found = _by_mark(_real(path), str(axis)) if marked else find_places(_real(path))
        if axis is not None and found.axis.removeprefix("milli") != axis:
            raise BadInput(f"{path} is ordered by {found.axis}, and not by {axis}", argument="axis")
        return replace(found, source=str(_real(path)))
    if marked:
        raise BadInput(f"axis {axis} is for folders on this machine, and {name} is none", argument="axis")
    if not _REPOSITORY.fullmatch(name) or set(name) <= {".", "/"}:
        what = "does not exist, and it is not a model on the hub (those are named owner/model)"
        raise CheckpointError(f"{name} {what}")
    cached = cached_folder(name)
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        if cached is None:
            what = "is not in the cache of huggingface_hub, and HF_HUB_OFFLINE forbids to ask the hub for it"
            raise CheckpointError(f"{name} {what}")
        return replace(_in_cache(cached), source=name)
    try:
        return HubModel(name, DiskCache(downloads, int(budget))).series()
    except CheckpointError as error:
        if cached is None:
            raise
        raise CheckpointError(f"{error}; HF_HUB_OFFLINE=1 reads the copy in the cache") from None


def _real(path: str | Path) -> Path:
    """Where links lead, and `~`. Not by `Path`: of a loop of links, and of an unknown `~name`, that makes an error."""
    return Path(os.path.realpath(os.path.expanduser(path)))


def on_base(series: Series, base: str | Path) -> Series:
    """The series with its adapters merged into the model in the folder `base`; "none": each is measured alone."""
    chosen = ALONE if str(base) == _NO_BASE else _real(base)
    if chosen != ALONE and not chosen.is_dir():
        what = f"base must be the folder of a model, or {_NO_BASE!r} for none, got {str(base)!r}"
        raise BadInput(what, argument="base")
    folders = [place for place in series.places if isinstance(place, LocalFolder)]
    if other := next((place for place in series.places if place not in folders), None):
        what = f"base is for folders of adapters on this machine, and {other.name} is none"
        raise BadInput(what, argument="base")
    return replace(series, places=tuple(replace(place, base=chosen) for place in folders))


def find_places(path: Path) -> Series:
    """The checkpoints at `path`. What is ambiguous is refused in a sentence that says what to do."""
    if local.is_plain_file(path):
        if not ends_in(path.name):
            raise CheckpointError(f"{path} is not a checkpoint: its name must end in {', '.join(ENDINGS)}")
        return _one(path)
    if is_cached(path):
        return _in_cache(path)
    return _of_snapshot(path) or _in_folder(path)


def _by_mark(path: Path, axis: str) -> Series:
    entries = [each for each in local.entries_of(path) if local.is_weights(each) or _is_checkpoint_folder(each)]
    marked = {entry: mark for entry in entries if (mark := moments.mark_in(_stem(entry), axis)) is not None}
    if not marked:
        like = {moments.TOKENS: "tokens4B or 500M_tokens", moments.DATE: "2026-05-01 or 20260501_120000"}[axis]
        raise BadInput(f"{path} holds no checkpoint that is named by {axis}, as in {like}", argument="axis")
    aside = [entry.name for entry in entries if entry not in marked]
    candidates = [_candidate(entry, Moment(mark)) for entry, mark in marked.items()]
    found = arrange([replace(one, name=moments.without_dates(one.name)) for one in candidates], str(path), aside)
    first = found.places[0]
    known = {
        moments.TOKENS: [],
        moments.DATE: [f"dates are counted in seconds since 1970: {first.name} is {first.step}"],
    }
    return replace(found, axis=axis, notes=(*found.notes, *known[axis]))


def _is_checkpoint_folder(path: Path) -> bool:
    return os.path.isdir(path) and (local.holds_weights(path) or local.leads_to_weights(path) is not None)


def _of_torchtune(path: Path, files: Sequence[Path]) -> Series | None:
    """`hf_model_0001_0.pt`, `hf_model_0002_0.pt`: shards of epoch 0, as torchtune wrote them before it had folders."""
    found = {file: match for file in files if (match := _TORCHTUNE.fullmatch(file.name))}
    kinds = {match["kind"] for match in found.values()}
    if len(kinds) != 1:
        return None
    shards = sorted({match["shard"] or "" for match in found.values()})
    if shards != [""]:
        shards = [f"_{at:04d}" for at in range(1, int(shards[-1][1:]) + 1)]
    (kind,), ending = kinds, next(iter(found)).suffix

    def candidate(epoch: int) -> Candidate:
        names = tuple(f"{kind}{shard}_{epoch}{ending}" for shard in shards)
        called = f"{kind}_{epoch}" if len(names) > 1 else Path(names[0]).stem
        make = lambda step, epoch: LocalFolder(path, step, epoch, called, files=names)
        return Candidate(called, Moment(None, epoch), make)

    epochs = sorted({int(match["epoch"]) for match in found.values()})
    return arrange(
        [candidate(epoch) for epoch in epochs], str(path), [file.name for file in files if file not in found]
    )


def _in_folder(path: Path) -> Series:
    entries = local.entries_of(path)
    files, folders = (list(filter(kind, entries)) for kind in (local.is_weights, local.is_folder))
    if tuned := _of_torchtune(path, files):
        return tuned
    one_model = is_one_model([entry.name for entry in entries])
    if one_model and moment_in(path.name):  # what lies in folders below, an optimizer's state say, is part of it
        return _one(path)
    stepped = [folder for folder in folders if moment_in(folder.name)]
    if stepped and (not one_model or any(map(local.holds_weights, stepped))):
        return _of_folders(path, folders, files)
    if one_model:
        return _one(path)
    if named := [file for file in files if _moment(file)]:
        aside = [file.name for file in files if file not in named]
        return arrange([_candidate(file, _moment(file)) for file in named], str(path), aside)
    if found := _by_number(path, files) or _by_number(path, list(filter(local.holds_weights, folders))):
        return found
    if not local.holds_weights(path):
        return _one(path) if _holds_one_inside(path) else _below(path, folders)
    LocalFolder(path, 0).weights()  # or a sentence that says which files to choose from
    return _one(path)


def _holds_one_inside(path: Path) -> bool:
    """Whether a folder is one checkpoint whose weights lie in a folder of it, and that is no series of its own."""
    inside = local.leads_to_weights(path)
    return inside is not None and not any(map(_has_moment, local.visible_in(inside)))


def _of_folders(path: Path, folders: list[Path], files: list[Path]) -> Series:
    """One folder per step; files beside them belong to the final model."""
    stepped = {folder: moment_in(folder.name) for folder in folders if moment_in(folder.name)}
    nested = [folder for folder, moment in stepped.items() if moment.step is None and _is_series(folder)]
    aside = [folder.name for folder in folders if folder not in stepped and local.holds_weights(folder)]
    aside += [file.name for file in files if not _moment(file)]
    stepped |= {file: _moment(file) for file in files if _moment(file)}
    if nested and len(nested) == len(stepped):
        return _of_epochs(path, nested, aside)
    return arrange([_candidate(folder, moment) for folder, moment in stepped.items()], str(path), aside)


def _is_series(folder: Path) -> bool:
    entries = local.visible_in(folder)
    return not is_one_model([entry.name for entry in entries]) and any(map(_has_moment, entries))


def _of_epochs(path: Path, folders: list[Path], aside: list[str]) -> Series:
    inside = {folder: _in_folder(folder) for folder in folders}
    notes = [f"{folder.name}: {note}" for folder, found in inside.items() for note in found.notes]
    candidates = [_candidate(folder / place.name, Moment(place.step, moment_in(folder.name).epoch))
                  for folder, found in inside.items() for place in found.places]  # fmt: skip
    steps = [candidate.moment.step for candidate in candidates]
    if len(set(steps)) < len(steps):
        order = f"({folders[0].name}, ...), so they have no common order; name one epoch, as in {folders[0]}"
        raise CheckpointError(f"{path} counts its steps anew in every epoch {order}")
    arranged = arrange(candidates, str(path), aside)
    return replace(arranged, notes=(*arranged.notes, *notes))


def _by_number(path: Path, entries: list[Path]) -> Series | None:
    """A series whose names tell no step: by what the files say themselves, or by a number that all names share."""
    plain = [entry for entry in entries if not moments.is_aside(_stem(entry))]
    numbers = {entry: number for entry in plain if (number := moments.numbered(_stem(entry)))}
    if not plain or (len(plain) == 1 and not numbers):
        return None
    # Folders that tell their step, and have no number, are more likely the ends of several runs.
    inside = {entry: moments.moment_inside(entry) for entry in plain if entry in numbers or not local.is_folder(entry)}
    aside = [entry.name for entry in entries if entry not in plain]
    if len(inside) == len(plain) and all(inside.values()) and len({*inside.values()}) == len(plain):
        found = arrange([_candidate(entry, moment) for entry, moment in inside.items()], str(path), aside)
        note = f"the {found.axis} of each checkpoint is the one that it holds: its name has none"
        return replace(found, notes=(*found.notes, note))
    if len(numbers) < len(plain) or len({stem for stem, _ in numbers.values()}) > 1:
        return None
    found = arrange([_candidate(entry, Moment(number)) for entry, (_, number) in numbers.items()], str(path), aside)
    return replace(found, notes=(*found.notes, _COUNTED.format(plain[0].name)))


def _one(path: Path, called: str | None = None) -> Series:
    """One checkpoint, which messages name `called`; without a moment in its name or inside it stands at step 0."""
    if local.is_folder(path):
        local.must_hold_weights(path)
    moment, notes = _moment(path) or moments.moment_inside(path), list[str]()
    if not moment and local.is_folder(path):
        files = [entry for entry in local.entries_of(path) if local.is_weights(entry)]
        moment = moments.moment_inside(files[0]) or _moment(files[0]) if len(files) == 1 else moment
    if not moment and not local.is_folder(path) and (number := moments.numbered(_stem(path))):
        moment, notes = Moment(number[1]), [_COUNTED.format(path.name)]
    if not moment:
        moment, notes = Moment(0), [f"the step of {called or path.name} is not known: it stands at 0"]
    return replace(arrange([_candidate(path, moment, called)], str(path)), notes=tuple(notes))


def _below(path: Path, folders: list[Path]) -> Series:
    runs = _runs_in(folders)
    if not runs:
        local.must_hold_weights(path)
    if len(runs) > 1:
        names = [str(run.relative_to(path)) for run in runs]
        raise CheckpointError(f"{path} holds {counted(len(runs), 'run')}: {some(names)}; name one, as in {runs[0]}")
    found = find_places(runs[0])
    return replace(found, notes=(f"the checkpoints are in {runs[0].relative_to(path)}", *found.notes))


def _runs_in(folders: list[Path]) -> list[Path]:
    found: list[Path] = []
    seen = 0
    for _ in range(_DEEPEST):
        deeper: list[Path] = []
        for folder in folders:
            seen += 1
            if seen > _MOST_FOLDERS:
                raise CheckpointError(f"more than {_MOST_FOLDERS:,} folders hold no checkpoint; name the run itself")
            entries = local.visible_in(folder)
            holds = is_cached(folder) or local.holds_weights(folder) or any(map(_has_moment, entries))
            if holds or _holds_one_inside(folder):
                found.append(folder)
            else:
                deeper += [entry for entry in entries if local.is_folder(entry)]
        folders = deeper
    return found


def _has_moment(entry: Path) -> bool:
    is_checkpoint = _is_checkpoint_folder if local.is_folder(entry) else local.is_weights
    return bool(_moment(entry)) and is_checkpoint(entry)


def _candidate(path: Path, moment: Moment, called: str | None = None) -> Candidate:
    def make(step: int, epoch: int | None) -> Place:
        return LocalFolder(path, step, epoch, called) if local.is_folder(path) else LocalFile(path, step, epoch)

    return Candidate(called or _stem(path), moment, make)


def _stem(path: Path) -> str:
    return path.name if local.is_folder(path) else stem_of(path.name)


def _moment(path: Path) -> Moment:
    return moment_in(path.name) if local.is_folder(path) else moment_of_file(path.name)


def is_cached(path: Path) -> bool:
    """Whether a folder is that of a model in the cache of huggingface_hub."""
    return path.name.startswith("models--") and (path / "snapshots").is_dir()


def cached_folder(repository: str) -> Path | None:
    """Where the cache of this machine has a model; None where it has none."""
    try:
        from huggingface_hub.constants import HF_HUB_CACHE
    except ImportError:
        return None
    home = os.environ.get("HF_HOME")
    cache = os.environ.get("HF_HUB_CACHE") or (os.path.join(home, "hub") if home else HF_HUB_CACHE)
    path = Path(cache).expanduser() / f"models--{repository.replace('/', '--')}"
    return path if is_cached(path) else None


def _in_cache(path: Path) -> Series:
    """The revisions that are named by their step, if there are any, else the one of main, or the only one."""
    snapshots = {folder.name: folder for folder in local.entries_of(path / "snapshots") if folder.is_dir()}
    named = _refs(path / "refs")
    there = {name: snapshots[commit] for name, commit in named.items() if _usable(snapshots.get(commit))}
    absent = [name for name in named if name not in there]
    notes = (f"not in the cache, so left out: {', '.join(sorted(absent)[:5])}",) if absent else ()
    if timed := with_moments(there):
        candidates = [_candidate(there[name], moment_in(name), name) for name in timed]
        found = arrange(candidates, str(path), [name for name in there if name not in timed])
        return replace(found, notes=(*found.notes, *notes))
    usable = [folder for folder in snapshots.values() if _usable(folder)]
    if not usable:
        raise CheckpointError(f"{path} holds no revision with weights; download one first")
    if "main" not in there and len(usable) > 1:
        none = f"none of them main or named by a step; name one, as in {usable[0]}"
        raise CheckpointError(f"{path} holds {len(usable)} revisions, {none}")
    chosen = there.get("main") or usable[0]
    left = [folder.name for folder in usable if folder != chosen]
    aside = (f"revisions left aside: {', '.join(left[:5])}",) if left else ()
    called = "main" if chosen == there.get("main") else chosen.name
    found = _one(chosen, called) if local.holds_weights(chosen) else find_places(chosen)
    return replace(found, notes=(*found.notes, *aside, *notes))


def _of_snapshot(path: Path) -> Series | None:
    """A snapshot that was named itself: it stands at the step that a revision of its commit is named by, if any."""
    if path.parent.name != "snapshots" or not is_cached(path.parent.parent):
        return None
    names = [name for name, commit in _refs(path.parent.parent / "refs").items() if commit == path.name]
    stepped = [name for name in names if moment_in(name)]
    return arrange([_candidate(path, moment_in(stepped[0]), stepped[0])], str(path)) if len(stepped) == 1 else None


def _usable(folder: Path | None) -> bool:
    return folder is not None and any(map(local.holds_weights, [folder, *local.visible_in(folder)]))


def _refs(folder: Path) -> dict[str, str]:
    """The commits of the revisions, by name; a name may have slashes in it."""
    found: dict[str, str] = {}
    for where, _, files in os.walk(folder):  # it does not follow symbolic links
        for file in files:
            path = Path(where, file)
            try:
                commit = small_file(path).decode("ascii", "replace").strip()
            except CheckpointError:
                continue
            if _COMMIT.fullmatch(commit):
                found[path.relative_to(folder).as_posix()] = commit
        if len(found) > _MOST_REFS:
            raise CheckpointError(f"{folder} holds more than {_MOST_REFS:,} revisions")
    return dict(sorted(found.items()))
