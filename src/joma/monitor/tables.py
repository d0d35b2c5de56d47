"""Numbers of one measuring: as they leave the device, as tables by layer and head, and what is sent of them.

They leave the device once, in one piece, and are read at a later step, when they have arrived.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from joma.host.words import brief_repr
from joma.monitor.errors import MonitorError
from joma.monitor.graphs import Arrival
from joma.monitor.measures import MONITORED, Taken
from joma.monitor.names import layer_of


@brief_repr
@dataclass(frozen=True)
class Rows:
    """What the rows of a table are.

    - names: of attention modules, routers, layers or matrices
    - heads: how many each attention module has, or how many experts a router; None for layers and matrices
    - keys: how many tokens each attention module reads at a time; None for others
    - kinds: what a row and each of its numbers are; (): there is one number of the whole model
    """

    names: tuple[str, ...]
    heads: tuple[int, ...] | None = None
    keys: tuple[int, ...] | None = None
    kinds: tuple[str, ...] | None = None

    @property
    def dims(self) -> dict[str, list[str] | None]:
        usual = ("matrix",) if self.heads is None else ("layer", "head")
        kinds = usual if self.kinds is None else self.kinds
        return {kind: None if at else list(self.names) for at, kind in enumerate(kinds)}


LOSS = Rows(("the model",), kinds=())
"""Of the loss."""


@brief_repr
@dataclass(frozen=True)
class Table:
    """One series at one step.

    - values: (layers, heads), NaN where a layer has fewer heads, (matrices,), or ()
    - rows: what they belong to
    """

    values: np.ndarray
    rows: Rows

    @property
    def real(self) -> np.ndarray:
        """Where there is a number: False for heads that a layer does not have."""
        if self.rows.heads is None:
            return np.ones(self.values.shape, bool)
        return np.arange(self.values.shape[1]) < np.array(self.rows.heads)[:, None]

    def place(self, at: tuple[int, ...]) -> tuple[str, int | None]:
        """The name of the layer or matrix of one number, and the head where there is one."""
        return self.rows.names[at[0] if at else 0], at[1] if len(at) > 1 else None


Tables = Mapping[str, Table]


class Packet:
    """All numbers of one step on their way from the device, in one tensor."""

    def __init__(self, step: int, taken: Taken, rows: Mapping[str, Rows]) -> None:
        """step: of the measuring. taken: what was measured. rows: of each series, what its rows are."""
        self.step, self.rows = step, rows
        for name, each in rows.items():
            if tuple(taken[name]) != each.names:
                raise MonitorError(f"{name} has other layers than at first: {', '.join(taken[name])}")
        self._numbers = Arrival(_in_one([list(taken[name].values()) for name in rows]))

    def arrived(self) -> bool:
        return self._numbers.is_there()

    def tables(self) -> dict[str, Table]:
        numbers, found = self._numbers.numbers().double().numpy(), {}
        for name, rows in self.rows.items():
            sizes = rows.heads or (1,) * len(rows.names)
            mine, numbers = numbers[: sum(sizes)], numbers[sum(sizes) :]
            values = mine.copy() if rows.heads is None else _padded(mine, rows.heads)
            found[name] = Table(values if rows.dims else values.reshape(()), rows)
        return found


def _in_one(series: list[list[Tensor]]) -> Tensor:
    """All numbers in float64, where there is one. What lies together is converted together: each tensor takes time."""
    at = series[0][0].device
    wide = torch.float32 if at.type == "mps" else torch.float64
    flat = (each if each.ndim == 1 else each.reshape(-1) for one in series for each in one)
    runs = groupby(flat, lambda part: (part.device, part.dtype))
    return torch.cat([torch.cat(list(run)).to(at, wide) for _, run in runs])


def _padded(numbers: np.ndarray, heads: tuple[int, ...]) -> np.ndarray:
    table = np.full((len(heads), max(heads)), np.nan)
    table[np.arange(max(heads)) < np.array(heads)[:, None]] = numbers
    return table


Per = Literal["model", "layer", "head"]
"""What a sink gets a number for; head: every head, expert and matrix, beside its layer."""


def summary(tables: Tables, per: Per) -> dict[str, float]:
    """What sinks get: one number per series unless asked otherwise, since many layers would flood a dashboard."""
    found = {name: _of_model(name, table) for name, table in tables.items() if per == "model" or not table.rows.dims}
    if per != "model":
        found |= _by_layer({name: table for name, table in tables.items() if table.rows.dims})
    return found | (_every_number(tables) if per == "head" else {})


def _of_model(name: str, table: Table) -> float:
    """The mean of all numbers, the largest, or the norm of all, as the measure has it."""
    measure = MONITORED.get(name.partition("/")[0])
    numbers = table.values[table.real]
    whole = measure.whole if measure is not None else "mean"
    if whole == "norm":
        return float(np.linalg.norm(numbers))
    return float(numbers.max() if whole == "largest" else numbers.mean())


def _by_layer(tables: Tables) -> dict[str, float]:
    """Smallest, mean and largest number of every layer."""
    found: dict[str, float] = {}
    for name, table in tables.items():
        layers, numbers = _of_heads(table) if table.rows.heads is not None else _of_matrices(table)
        for layer, three in zip(layers, numbers.T.tolist(), strict=True):
            found |= {
                f"{name}/{layer}/{what}": value for what, value in zip(("min", "mean", "max"), three, strict=True)
            }
    return found


def _of_heads(table: Table) -> tuple[Sequence[str], np.ndarray]:
    """Attention modules, and (3, modules): smallest, mean and largest over the heads that each has."""
    real, values = table.real, table.values
    mean = np.where(real, values, 0.0).sum(1) / real.sum(1)
    return table.rows.names, np.stack(
        [np.where(real, values, np.inf).min(1), mean, np.where(real, values, -np.inf).max(1)]
    )


def _of_matrices(table: Table) -> tuple[Sequence[str], np.ndarray]:
    layers: dict[str, list[float]] = {}
    for name, value in zip(table.rows.names, table.values.tolist(), strict=True):
        layers.setdefault(layer_of(name), []).append(value)
    return list(layers), np.array([(np.min(each), np.mean(each), np.max(each)) for each in layers.values()]).T


def _every_number(tables: Tables) -> dict[str, float]:
    """The number of every head and matrix. No name is a folder of another: MLflow keeps files by these names."""
    found: dict[str, float] = {}
    for name, table in tables.items():
        for at in map(tuple, np.argwhere(table.real).tolist() if table.rows.dims else ()):
            layer, column = table.place(at)
            last = "value" if column is None else f"{list(table.rows.dims)[1]}{column}"
            found[f"{name}/{layer}/{last}"] = float(table.values[at])
    return found
