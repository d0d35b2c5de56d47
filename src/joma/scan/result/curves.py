"""What a scan found: curves over the usable steps, and what was left out of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from joma import __version__
from joma.host.showing import Shown
from joma.host.words import brief_repr
from joma.scan.errors import Fault
from joma.scan.names.architecture import Row

SCHEMA, SCHEMA_VERSION = "joma-scan", 2
"""Of `Scan.as_json`; the version is raised when a key changes its meaning. Version 1 had no name."""


@brief_repr
@dataclass(frozen=True)
class Curve:
    """One measure of one group of tensors over the usable steps.

    measure, group: what was measured of what; of a measure of the running model the group is None, or says which of its
    numbers this is.
    rows: layers, or experts of layers. columns: what a row has a number for, such as its heads. heads: whether the
    columns are heads; they always are without a group.
    values: (steps, rows), or (steps, rows, columns) where there are several; NaN where a step has no such number.

    >>> row = Row(0, None, "h.0.mlp.c_fc.weight")
    >>> curve = Curve("stable_rank", "mlp", (row,), ("stable rank",), np.array([[4.0], [3.5]]))
    >>> curve.name, curve.values[:, 0].tolist(), curve.cells.shape
    ('stable_rank/mlp', [4.0, 3.5], (2, 1, 1))
    """

    measure: str
    group: str | None
    rows: tuple[Row, ...]
    columns: tuple[str, ...]
    values: np.ndarray
    heads: bool = False

    @property
    def name(self) -> str:
        """Measure and group, as in the run."""
        return self.measure if self.group is None else f"{self.measure}/{self.group}"

    @property
    def by_head(self) -> bool:
        """Whether the columns are attention heads."""
        return self.heads or self.group is None

    @property
    def tensors(self) -> tuple[str, ...]:
        """The tensors of the rows; none of a measure of the running model."""
        return () if self.by_head else tuple(row.name for row in self.rows)

    @property
    def cells(self) -> np.ndarray:
        """(steps, rows, columns), also where there is one column."""
        return self.values.reshape(len(self.values), len(self.rows), len(self.columns))

    @property
    def by_row(self) -> np.ndarray:
        """(steps, rows): the mean over the heads that a layer has, else the first column."""
        return mean_of(self.cells, axis=2) if self.by_head else self.cells[:, :, 0]

    def quantity(self, column: str) -> str:
        """What a column is called in a table and in a threshold.

        >>> curve = Curve("coherence", "embedding", (Row(None, None, "wte"),), ("mean", "q0.5"), np.ones((1, 1, 2)))
        >>> curve.quantity("mean"), curve.quantity("q0.5")
        ('coherence_mean', 'coherence_q0.5')
        """
        several = len(self.columns) > 1 and not self.by_head
        return f"{self.measure}_{column.replace(' ', '_')}" if several else self.measure

    def as_json(self) -> dict[str, Any]:
        return {
            "measure": self.measure,
            "group": self.group,
            "rows": [row.as_json() for row in self.rows],
            "columns": list(self.columns),
            "columns_are": "heads" if self.by_head else "quantities",
            "values": _plain(self.cells),
        }


@brief_repr
@dataclass(frozen=True)
class Scan(Shown):
    """What a sweep of `source` found.

    steps: the usable ones. faults: what was left out, and why. curves: by name. epochs: of the steps that have one.
    refused: measures that this architecture cannot give, with the reason. notes: what was done to read the checkpoints.
    coverage: of each group, how many layers it covers and how many the model has. model_type: as config.json says.
    warnings: why numbers may not describe the trained model. seq_len: tokens per window of the text; None without one.
    not_taken: matrices whose names are not known, so that nothing was measured of them; a star stands for
    each number. looked_at: how many checkpoints were looked at. run: the file in which all of it is recorded; None
    without one. counted_in: what the steps are, where it is not "step" or "epoch".

    >>> found = Scan("out/trainer", [0, 20], [Fault(10, "step10", None, None, "is cut off")], {})
    >>> found.as_json()["left_out"][0]["what"]
    'is cut off'
    """

    source: str
    steps: list[int]
    faults: list[Fault]
    curves: dict[str, Curve]
    epochs: Mapping[int, int] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    coverage: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    model_type: str | None = None
    warnings: tuple[str, ...] = ()
    seq_len: int | None = None
    looked_at: int = 0
    run: Path | None = None
    not_taken: tuple[str, ...] = ()
    counted_in: str | None = None

    @property
    def axis(self) -> str:
        """What its steps are: "step", or "epoch" where the checkpoints tell nothing else.

        It is "milliepoch" where epochs have fractions, "tokens" and "date" where these were asked for.
        """
        if self.counted_in is not None:
            return self.counted_in
        return "epoch" if self.steps and all(self.epochs.get(step) == step for step in self.steps) else "step"

    @property
    def complete(self) -> bool:
        """Whether everything that was asked for is there."""
        return not self.faults and not self.refused

    def as_json(self) -> dict[str, Any]:
        """Numbers that JSON has no word for (a head that a layer does not have) become null."""
        return {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "joma": __version__,
            "source": self.source,
            "model_type": self.model_type,
            "axis": self.axis,
            "steps": self.steps,
            "epochs": [self.epochs.get(step) for step in self.steps],
            "curves": {name: curve.as_json() for name, curve in self.curves.items()},
            "left_out": [fault.as_json() for fault in self.faults],
            "refused": dict(self.refused),
            "seq_len": self.seq_len,
            "warnings": list(self.warnings),
            "notes": list(self.notes),
            "not_taken": list(self.not_taken),
            "coverage": {group: {"layers": k, "of": n} for group, (k, n) in self.coverage.items()},
        }

    def numbers(self) -> Iterator[tuple[int, Curve, Row, str, float]]:
        """(step, curve, row, column, value) of every number that there is, in the order of curves and steps."""
        for curve in self.curves.values():
            for step, rows in zip(self.steps, curve.cells, strict=True):
                for row, cells in zip(curve.rows, rows, strict=True):
                    for column, value in zip(curve.columns, cells.tolist(), strict=True):
                        if np.isfinite(value):
                            yield step, curve, row, column, value


def mean_of(values: np.ndarray, axis: int) -> np.ndarray:
    """The mean over those that are numbers; NaN where none is.

    >>> mean_of(np.array([[1.0, 3.0], [2.0, np.nan], [np.nan, np.nan]]), axis=1)
    array([ 2.,  2., nan])
    """
    there = np.isfinite(values).sum(axis=axis)
    mean = np.nansum(values, axis=axis) / np.maximum(there, 1)
    return np.where(there > 0, mean, np.nan)


def _plain(values: np.ndarray) -> Any:
    if values.ndim == 0:
        return float(values) if np.isfinite(values) else None
    return [_plain(value) for value in values]
