"""A scan as a page shows it: its curves by layer and head, and the checkpoints that were left out."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from joma.runs import Run
from joma.runs.dims import Named
from joma.view.entries import entry_of, one_series

if TYPE_CHECKING:
    from joma.scan.result.curves import Curve, Scan


def scan_of(run: Run) -> Scan:
    """The scan that a run holds."""
    from joma.scan.sweep.record import stored_scan  # torch loads here

    return stored_scan(run)


def scan_entry(id: str, path: Path, run: Run, writer: int | None, scan: Scan) -> dict[str, Any]:
    """A scan in the index."""
    listed = partial(_listed, scan)
    left_out = [{"step": fault.step, "measure": fault.measure, "says": str(fault)} for fault in scan.faults]
    found = entry_of(id, path, run, writer, list(map(listed, scan.curves.values())))
    return {**found, "source": scan.source, "left_out": left_out, "warnings": list(scan.warnings)}


def scan_numbers(scan: Scan, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of one curve; steps at which it was not measured are left out."""
    curve = scan.curves[name]
    values = curve.cells if _has_columns(curve) else curve.cells[:, :, 0]
    there = np.isfinite(values.reshape(len(values), -1)).any(1)
    return np.array(scan.steps)[there], values[there]


def _listed(scan: Scan, curve: Curve) -> dict[str, Any]:
    steps, values = scan_numbers(scan, curve.name)
    first, last = (int(steps[0]), int(steps[-1])) if len(steps) else (0, 0)
    return one_series(curve.name, _dims(curve), values.shape[1:], len(steps), first, last, cursor=len(steps))


def _has_columns(curve: Curve) -> bool:
    return len(curve.columns) > 1 or curve.by_head


def _dims(curve: Curve) -> Named:
    rows = tuple(row.label for row in curve.rows)
    if not _has_columns(curve):
        return {"layer": rows}
    return {"layer": rows, "head" if curve.by_head else "quantity": curve.columns}
