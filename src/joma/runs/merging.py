"""One run from several that recorded parts of the same: what each measured stays bit for bit."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from joma.host.file_kinds import RUN
from joma.host.files import atomically
from joma.runs.dims import Dims
from joma.runs.errors import RunError
from joma.runs.session import meta_row
from joma.runs.store import Run, StrPath


def merge_runs(path: StrPath, parts: Sequence[Run], steps: Iterable[tuple[int, int]]) -> Run:
    """A new run, open to write, that holds steps of several runs of one study, config and version.

    - path: the new file; one that exists is refused
    - parts: runs to take from, open to read
    - steps: which step of which part (counted from 0), in the order in which one process would have recorded them

    It is as old as the oldest part. Where the parts were made on several machines, it names all of them.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name, step in (("a", 0), ("b", 1)):
    ...         with Run.create(f"{folder}/{name}", study="demo", config={}) as run:
    ...             run.append("loss", step, 1.0 / (1 + step))
    ...     with Run.open(f"{folder}/a") as a, Run.open(f"{folder}/b") as b:
    ...         with merge_runs(f"{folder}/both", [a, b], [(0, 0), (1, 1)]) as both:
    ...             both.array("loss").tolist()
    [1.0, 0.5]
    """
    first = parts[0]
    for other in parts[1:]:
        for name in ("study", "config", "version", "seed"):
            if getattr(other, name) != getattr(first, name):
                raise RunError(f"{first.path} and {other.path} are parts of different runs: their {name} differs")
    merged = Run.create(path, study=first.study, config=first.config, version=first.version, seed=first.seed)
    try:
        _take_over(merged, first.versions, _machines([part.machine for part in parts]), min(p.created for p in parts))
        names = [_names_by_step(part) for part in parts]
        for at, step in steps:
            _copy_step(parts[at], merged, step, names[at].get(step, ()))
    except BaseException:
        merged.close()
        raise
    return merged


def forget_steps(path: StrPath, drop: Callable[[str, int], bool]) -> None:
    """Make a run anew without some steps of some series: a step is final, and what it was measured from may not be."""
    with atomically(Path(path), RUN) as unfinished, Run.open(path) as old:
        new = Run.create(unfinished, study=old.study, config=old.config, version=old.version, seed=old.seed)
        with new:
            _take_over(new, old.versions, old.machine, old.created)
            for step, names in sorted(_names_by_step(old).items()):
                _copy_step(old, new, step, [name for name in names if not drop(name, step)])


def _copy_step(part: Run, to: Run, step: int, names: Sequence[str]) -> None:
    known = {name: part._dims_of(name) for name in names}
    dims: dict[str, Dims] = {name: found for name, found in known.items() if found is not None}
    if names:
        to.record(step, {name: part.at(name, step) for name in names}, dims=dims)


def _names_by_step(run: Run) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for name in run.names():
        for step in run.steps(name).tolist():
            found.setdefault(step, []).append(name)
    return found


def _machines(machines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all parts say of their machine; where they differ, what each says."""
    merged: dict[str, Any] = {}
    for key in dict.fromkeys(key for machine in machines for key in machine):
        said = list(dict.fromkeys(machine.get(key) for machine in machines))
        merged[key] = said[0] if len(said) == 1 else " and ".join(map(str, said))
    return merged


def _take_over(run: Run, versions: dict[str, str], machine: dict[str, Any], created: str) -> None:
    run.versions, run.machine, run.created = versions, machine, created
    rows = [meta_row(key, value) for key, value in (("versions", versions), ("machine", machine), ("created", created))]
    with run._transaction() as connection:
        connection.executemany("REPLACE INTO meta VALUES (?, ?, ?)", rows)
