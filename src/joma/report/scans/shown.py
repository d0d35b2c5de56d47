"""What a page says of `joma scan`: the curves of a run over its checkpoints, with figures where they can be drawn."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from joma.claims.execute import Picture
from joma.report.figures import can_draw
from joma.runs import Run, RunError
from joma.runs.following import must_stay_in
from joma.scan.result.curves import Scan
from joma.scan.sweep.record import stored_scan
from joma.studies import names


@dataclass(frozen=True)
class ShownScan:
    """All that a page says about one scan."""

    source: str
    record: str
    found: Scan | None = None
    pictures: Mapping[str, tuple[Picture, ...]] = field(default_factory=dict)
    """Of each measure; none where matplotlib is missing."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Where its numbers come from, for people."""
    command: str = ""
    violations: tuple[str, ...] = ()
    """Numbers beyond a threshold, one line each."""
    error: str | None = None
    """What is wrong with the run, in one line; it then has no curves."""

    @property
    def measures(self) -> list[str]:
        return list(dict.fromkeys(curve.measure for curve in self.found.curves.values())) if self.found else []


def scan_runs(folder: Path) -> list[Path]:
    """The runs of `joma scan --out FOLDER`, by name.

    The record decides, since a study may have a name like a scan's: scan-snap. A file that cannot be read is taken for
    what its name says: a study's, where there is one of that name, which then says so itself.
    """
    found = []
    for path in sorted((folder / "runs").glob("scan-*.sqlite")):
        try:
            with Run.open(path) as run:
                is_scan = run.study == "scan"
        except RunError:
            is_scan = path.stem.rpartition("-")[0] not in names()
        found += [path] if is_scan else []
    return found


def read_scan(path: Path, folder: Path | None = None) -> ShownScan:
    """Read and draw a scan. A run that cannot be read gives one that says so.

    folder: that it must be in; None: it was named itself.
    """
    try:
        if folder is not None:
            must_stay_in(path, folder)
        with Run.open(path) as run:
            found = stored_scan(run)
            if not found.curves and not found.faults:
                raise RunError(f"{run.path.name} holds no measured step")
            return show_scan(found, run)
    except RunError as error:
        return ShownScan(path.stem, path.name, error=str(error))
    except (KeyError, ValueError, TypeError, IndexError, AttributeError):
        return ShownScan(path.stem, path.name, error=f"{path.name} is not a run as joma scan writes it")


def show_scan(
    found: Scan, run: Run, *, command: str = "", violations: tuple[str, ...] = (), draw: bool = True
) -> ShownScan:
    """Draw what a scan found.

    run: where it is recorded. command: the one that made it, else one that would. violations: one line per number
    beyond a threshold. draw: whether figures are wanted.
    """
    measures = ",".join(dict.fromkeys(curve.measure for curve in found.curves.values()))
    again = f"joma scan {shlex.quote(found.source)}" + (f" --measures {measures}" if measures else "")
    facts = {
        "model type": found.model_type,
        "made": run.created,
        "machine": run.machine.get("gpu") or run.machine.get("cpu"),
        "joma": run.versions.get("joma"),
        "record": run.path.name,
    }
    known = {name: str(fact) for name, fact in facts.items() if fact}
    shown = ShownScan(found.source, run.path.name, found, {}, known, command or again, violations)
    if not draw or not can_draw():
        return shown
    from joma.report.scans.figures import pictures_of

    return replace(shown, pictures={measure: pictures_of(found, measure) for measure in shown.measures})
