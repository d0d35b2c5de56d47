"""Models in the cache of huggingface_hub, read where they lie: `models--owner--name` with refs and snapshots.

refs/NAME holds the commit of a revision, snapshots/COMMIT its files, as far as they were downloaded.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from joma.scan.errors import CheckpointError
from joma.scan.formats.tensor_file import small_file
from joma.scan.sources.folder import LocalFolder, entries_of, holds_weights, visible_in
from joma.scan.sources.places import Candidate, Found, alone, arrange, find_places, with_moments
from joma.scan.sources.steps import moment_in

_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_MOST_REFS = 50_000


def is_cached(path: Path) -> bool:
    """Whether a folder is that of a model in the cache."""
    return path.name.startswith("models--") and (path / "snapshots").is_dir()


def cached_folder(repository: str) -> Path | None:
    """Where the cache of this machine has a model; None where it has none."""
    try:
        from huggingface_hub.constants import HF_HUB_CACHE
    except ImportError:
        return None
    cache = os.environ.get("HF_HUB_CACHE") or (
        os.path.join(os.environ["HF_HOME"], "hub") if os.environ.get("HF_HOME") else HF_HUB_CACHE
    )
    path = Path(cache).expanduser() / f"models--{repository.replace('/', '--')}"
    return path if is_cached(path) else None


def cached_places(path: Path) -> Found:
    """The revisions that are named by their step, if there are any, else the one of main, or the only one."""
    snapshots = {folder.name: folder for folder in entries_of(path / "snapshots") if folder.is_dir()}
    named = _refs(path / "refs")
    there = {name: snapshots[commit] for name, commit in named.items() if _usable(snapshots.get(commit))}
    absent = [name for name in named if name not in there]
    notes = (f"not in the cache, so left out: {', '.join(sorted(absent)[:5])}",) if absent else ()
    if timed := with_moments(there):
        candidates = [_candidate(name, there[name]) for name in timed]
        found = arrange(candidates, str(path), [name for name in there if name not in timed])
        return replace(found, notes=(*found.notes, *notes))
    usable = [folder for folder in snapshots.values() if _usable(folder)]
    if not usable:
        raise CheckpointError(f"{path} holds no revision with weights; download one first")
    if "main" not in there and len(usable) > 1:
        raise CheckpointError(
            f"{path} holds {len(usable)} revisions, none of them main or named by a step; name one, as in {usable[0]}"
        )
    chosen = there.get("main") or usable[0]
    left = [folder.name for folder in usable if folder != chosen]
    aside = (f"revisions left aside: {', '.join(left[:5])}",) if left else ()
    called = "main" if chosen == there.get("main") else chosen.name
    found = alone(chosen, called) if holds_weights(chosen) else find_places(chosen)
    return replace(found, notes=(*found.notes, *aside, *notes))


def of_snapshot(path: Path) -> Found | None:
    """A snapshot that was named itself: it stands at the step that a revision of its commit is named by, if any."""
    if path.parent.name != "snapshots" or not is_cached(path.parent.parent):
        return None
    names = [name for name, commit in _refs(path.parent.parent / "refs").items() if commit == path.name]
    stepped = [name for name in names if moment_in(name)]
    return arrange([_candidate(stepped[0], path)], str(path)) if len(stepped) == 1 else None


def _candidate(name: str, folder: Path) -> Candidate:
    return Candidate(name, moment_in(name), lambda step, epoch: LocalFolder(folder, step, epoch, name))


def _usable(folder: Path | None) -> bool:
    """Whether it has weights, at the top or in folders by step."""
    return folder is not None and (holds_weights(folder) or any(holds_weights(entry) for entry in visible_in(folder)))


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
