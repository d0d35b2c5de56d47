"""Numbers of one measuring: as they leave the device, as tables by layer and head, and what is sent of them.

They leave the device once, in one piece, and are read at a later step, when they have arrived.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from joma.host.words import brief_repr
from joma.monitor.errors import MonitorError
from joma.monitor.graphs import Arrival
from joma.monitor.measures import Taken
from joma.monitor.names import layer_of


@brief_repr
@dataclass(frozen=True)
class Rows:
    """What the rows of a table are.

    - names: of attention modules, or of matrices
    - heads: how many each attention module has; None for matrices
    - keys: how many tokens each attention module reads at a time; None for matrices
    """

    names: tuple[str, ...]
    heads: tuple[int, ...] | None = None
    keys: tuple[int, ...] | None = None

    @property
    def dims(self) -> dict[str, list[str] | None]:
        """As a run describes them."""
        return {"matrix": list(self.names)} if self.heads is None else {"layer": list(self.names), "head": None}


@brief_repr
@dataclass(frozen=True)
class Table:
    """One series at one step.

    - values: (layers, heads), NaN where a layer has fewer heads, or (matrices,)
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
        return self.rows.names[at[0]], at[1] if len(at) > 1 else None


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
        """Whether the numbers can be read without waiting."""
        return self._numbers.is_there()

    def tables(self) -> dict[str, Table]:
        """The numbers, waited for if need be."""
        numbers, found = self._numbers.numbers().double().numpy(), {}
        for name, rows in self.rows.items():
            sizes = rows.heads or (1,) * len(rows.names)
            mine, numbers = numbers[: sum(sizes)], numbers[sum(sizes) :]
            found[name] = Table(mine.copy() if rows.heads is None else _padded(mine, rows.heads), rows)
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


def summary(tables: Tables) -> dict[str, float]:
    """Smallest, mean and largest number per layer: a model of 100 layers must not flood a dashboard."""
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
    """The same for the matrices of each layer."""
    layers: dict[str, list[float]] = {}
    for name, value in zip(table.rows.names, table.values.tolist(), strict=True):
        layers.setdefault(layer_of(name), []).append(value)
    return list(layers), np.array([(np.min(each), np.mean(each), np.max(each)) for each in layers.values()]).T


def every_number(tables: Tables) -> dict[str, float]:
    """The number of every head and matrix. No name is a folder of another: MLflow keeps files by these names."""
    found: dict[str, float] = {}
    for name, table in tables.items():
        for at in map(tuple, np.argwhere(table.real).tolist()):
            layer, head = table.place(at)
            found[f"{name}/{layer}/{'value' if head is None else f'head{head}'}"] = float(table.values[at])
    return found
