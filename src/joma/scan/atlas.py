"""An atlas: many training runs scanned by one list, and what runs of one series have in common.

A manifest is a TOML file with one `[[series]]` for each model: its `name`, and its `runs`, one source per seed, as
`joma.scan.scan` takes them. `steps` chooses revisions. `reads` has the sizes from which `gigabytes` is worked out.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from joma.host.errors import BadInput
from joma.host.words import brief_repr, counted, did_you_mean
from joma.measure.intervals import compare
from joma.scan.errors import CheckpointError
from joma.scan.result.curves import Curve, Scan, mean_of
from joma.scan.scanning import Progress, scan

SIZES = ("revisions", "layers", "width", "mlp", "bytes")
LEVEL = 0.95
"""Of the intervals over runs."""


@dataclass(frozen=True)
class ModelSeries:
    """Runs of one model that differ in their seed.

    - name: what the page calls it. runs: one source each. steps: the revisions, None: all
    - reads: of one run its number of revisions, layers, width, width of the MLP and bytes per number; {}: not known
    """

    name: str
    runs: tuple[str, ...]
    steps: str | None = None
    reads: Mapping[str, int] | None = None

    @property
    def gigabytes(self) -> float | None:
        """What a scan of the MLP's lower matrices reads of all runs and revisions; None where sizes are not known."""
        if self.reads is None:
            return None
        revisions, layers, width, mlp, size = (self.reads[name] for name in SIZES)
        return len(self.runs) * revisions * layers * width * mlp * size / 1e9


@brief_repr
@dataclass(frozen=True)
class Measured:
    """What became of a series: the scans of its runs that could be used, and why others could not, by source."""

    series: ModelSeries
    scans: tuple[Scan, ...]
    lost: Mapping[str, str]

    @property
    def complete(self) -> bool:
        return not self.lost and all(one.complete for one in self.scans)


@brief_repr
@dataclass(frozen=True)
class OverRuns:
    """One curve over the runs of a series: (steps, rows) each; the rows are the layers, then the mean over them.

    low and high are the ends of the interval over runs, NaN where fewer than two have a number.
    """

    curve: Curve
    steps: list[int]
    rows: tuple[str, ...]
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def shipped() -> list[str]:
    """The manifests that come with joma, by name."""
    folder = files("joma.scan") / "manifests"
    return sorted(path.name.removesuffix(".toml") for path in folder.iterdir() if path.name.endswith(".toml"))


def read_manifest(source: str) -> list[ModelSeries]:
    """The series of a manifest: one that comes with joma, by name, or a TOML file."""
    path = Path(source)
    if source in shipped():
        text = (files("joma.scan") / "manifests" / f"{source}.toml").read_text(encoding="utf-8")
    elif path.suffix == ".toml" and path.is_file():
        text = path.read_text(encoding="utf-8", errors="replace")
    else:
        hint = did_you_mean(source, shipped(), f"joma has {', '.join(shipped())}")
        raise BadInput(f"{source} is neither a manifest of joma nor a .toml file that is there; {hint}")
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{source} is no TOML: {error}") from None
    listed = content.get("series")
    if set(content) != {"series"} or not isinstance(listed, list) or not listed:
        raise BadInput(f"{source} must hold [[series]] tables and nothing else")
    series = [_series(entry, f"{source}, series {place}") for place, entry in enumerate(listed, start=1)]
    if len({one.name for one in series}) < len(series):
        raise BadInput(f"{source} has two series of one name")
    return series


def _series(entry: Any, where: str) -> ModelSeries:
    match entry:
        case {"name": str(name), "runs": [str(), *_] as runs} if name and all(isinstance(one, str) for one in runs):
            steps, reads = entry.get("steps"), entry.get("reads")
        case _:
            raise BadInput(f"{where} must have a name and runs, a list of sources")
    if unknown := sorted(set(entry) - {"name", "runs", "steps", "reads"}):
        raise BadInput(f"{where} has {unknown[0]}; a series has name, runs, steps and reads")
    if len(set(runs)) < len(runs):
        raise BadInput(f"{where} names a run twice")
    if steps is not None and not isinstance(steps, str):
        raise BadInput(f'{where}: steps must be text, such as "0:1000:100", got {steps!r}')
    if reads is not None and not (
        isinstance(reads, dict) and set(reads) == set(SIZES) and all(type(n) is int and n > 0 for n in reads.values())
    ):
        raise BadInput(f"{where}: reads must have {', '.join(SIZES)}, each an integer above 0")
    return ModelSeries(name, tuple(runs), steps, reads)


def scan_series(
    listed: Sequence[ModelSeries], *, out: str | Path, progress: Progress | None = None, **options: Any
) -> list[Measured]:
    """Scan every run of every series into `out`; a run that cannot be used does not keep others from it.

    What `out` has recorded is not measured again, so that a call that was broken off goes on. options: what
    `joma.scan.scan` takes; `steps` given here come before those of the manifest.

    Raises `BadInput` where an option cannot be used.
    """
    report: Callable[[str], None] = progress or (lambda line: None)
    measured, count, place = [], sum(len(one.runs) for one in listed), 0
    for series in listed:
        scans, lost = [], {}
        for source in series.runs:
            place += 1
            report(f"run {place} of {count}: {source}")
            given = options | {"steps": options.get("steps") or series.steps}
            try:
                scans.append(scan(source, out=out, progress=progress, **given))
            except CheckpointError as error:
                lost[source] = str(error)
                report(f"left out: {source}: {error}")
        measured.append(Measured(series, tuple(scans), lost))
    return measured


def over_runs(scans: Sequence[Scan]) -> dict[str, OverRuns]:
    """The curves that all scans have, over the steps that all have, with intervals over the scans.

    A row is a layer with the label that it has in the first scan; heads and experts are averaged.
    """
    steps = sorted(set.intersection(*(set(one.steps) for one in scans))) if scans else []
    found = {}
    for name, curve in scans[0].curves.items() if steps else ():
        theirs = [one.curves[name] for one in scans if name in one.curves]
        if len(theirs) == len(scans) and all(len(other.rows) == len(curve.rows) for other in theirs):
            values = np.stack([
                _with_mean(other.by_row[[one.steps.index(step) for step in steps]])
                for one, other in zip(scans, theirs, strict=True)
            ])  # fmt: skip
            rows = (*(row.label for row in curve.rows), "mean over layers")
            found[name] = OverRuns(curve, steps, rows, *_intervals(values))
    return found


def _with_mean(rows: np.ndarray) -> np.ndarray:
    return np.concatenate([rows, mean_of(rows, axis=1)[:, None]], axis=1)


def _intervals(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(runs, steps, rows) -> mean, low and high, (steps, rows); a mean of those runs alone that have a number."""
    cells = [compare(column, level=LEVEL) for column in values.reshape(len(values), -1).T]
    each = (np.array([getattr(cell, end) for cell in cells]) for end in ("value", "low", "high"))
    mean, low, high = (part.reshape(values.shape[1:]) for part in each)
    return mean, low, high


def left_out(one: Measured) -> list[str]:
    """Why something of a series is not in its curves, one line each."""
    lines = [f"{source}: {why}" for source, why in one.lost.items()]
    for found in one.scans:
        steps = {fault.step for fault in found.faults}
        lines += [f"{found.source}: {counted(len(steps), found.axis)} left out or incomplete"] if steps else []
        lines += [f"{found.source}: {measure} refused: {why}" for measure, why in found.refused.items()]
    return lines
