"""What the page says of `joma scan`: the curves of one run over its checkpoints, read from the run alone."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from joma.claims.execute import Picture
from joma.report.scan_figure import scan_picture
from joma.runs import Run, RunError

_NOT_SHOWN = ("sketch", "checksum", "identity")
"""Series by which damaged checkpoints are found; they measure nothing."""


@dataclass(frozen=True)
class ScanCurve:
    """One measure of one group of matrices: values (steps, rows), and a name for every row."""

    name: str
    steps: Sequence[int]
    rows: Sequence[str]
    values: np.ndarray


@dataclass(frozen=True)
class Scan:
    """All that a report says about one scan.

    >>> Scan("pythia-70m", "scan-pythia-70m-1f2e3d4c5b.sqlite", error="is damaged").curves
    ()
    """

    source: str
    record: str
    curves: tuple[ScanCurve, ...] = ()
    pictures: tuple[Picture, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    """Where its numbers come from, for people."""
    command: str = ""
    error: str | None = None
    """What is wrong with the run, in one line; it then has no curves."""

    @property
    def steps(self) -> list[int]:
        """Every step that was measured."""
        return sorted({step for curve in self.curves for step in curve.steps})


def scan_runs(folder: Path) -> list[Path]:
    """The runs of `joma scan --out FOLDER`, by name.

    >>> scan_runs(Path("nothing was scanned here"))
    []
    """
    return sorted((folder / "runs").glob("scan-*.sqlite"))


def read_scan(path: Path) -> Scan:
    """Read and draw a scan. A run that cannot be read gives a scan that says so.

    >>> read_scan(Path("nothing.sqlite")).error is None
    False
    """
    try:
        with Run.open(path) as run:
            return _read(run)
    except RunError as error:
        return Scan(path.stem, path.name, error=str(error))
    except (KeyError, ValueError, TypeError, IndexError, AttributeError):
        return Scan(path.stem, path.name, error=f"{path.name} is not a run as joma scan writes it")


def _read(run: Run) -> Scan:
    if run.study != "scan":
        raise RunError(f"{run.path.name} is a run of {run.study!r} and no scan")
    config: dict[str, Any] = run.config
    names = [name for name in run.names() if name.partition("/")[0] not in _NOT_SHOWN]
    curves = tuple(_curve(run, name, config["groups"]) for name in names)
    if not curves:
        raise RunError(f"{run.path.name} holds no measured step")
    source = str(config["source"])
    measures = ",".join(dict.fromkeys(name.partition("/")[0] for name in names))
    pictures = (scan_picture(source, curves),) if find_spec("matplotlib") else ()
    command = f"joma scan {shlex.quote(source)} --measures {measures}"
    return Scan(source, run.path.name, curves, pictures, _facts(run, config), command)


def _curve(run: Run, name: str, groups: Mapping[str, Sequence[str]]) -> ScanCurve:
    """A head is no row of its own: of (layers, heads) the mean over heads is shown, of several columns the first."""
    measure, _, group = name.partition("/")
    values = np.asarray(run.array(name), dtype=float)
    if values.ndim == 3:
        values = _mean_of_heads(values) if measure == "entropy" else values[:, :, 0]
    values = values.reshape(len(values), -1)
    tensors = groups.get(group, ())
    rows = [f"layer {at + 1}" for at in range(values.shape[1])] if len(tensors) != 1 else [group]
    return ScanCurve(name, [int(step) for step in run.steps(name)], rows, values)


def _mean_of_heads(values: np.ndarray) -> np.ndarray:
    """Over the heads that a layer has; unknown for a layer without any."""
    heads = np.isfinite(values).sum(axis=2)
    mean = np.nansum(values, axis=2) / np.maximum(heads, 1)
    return np.where(heads > 0, mean, np.nan)


def _facts(run: Run, config: Mapping[str, Any]) -> dict[str, str]:
    machine = run.machine.get("gpu") or run.machine.get("cpu")
    given = {
        "model type": config.get("model_type"),
        "made": run.created,
        "machine": machine,
        "joma": run.versions.get("joma"),
        "record": run.path.name,
    }
    return {name: str(what) for name, what in given.items() if what}
