"""How many bytes training takes: weights, gradients, states and projections, measured and by formula."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from joma.host.words import counted
from joma.optim._inner import state_entries
from joma.optim._matrix import Matrix
from joma.optim.galore import GaLore

PARTS = ("weights", "gradients", "states", "projections")


@dataclass(frozen=True)
class Bytes:
    """Bytes of the four parts.

    - weights: the parameters
    - gradients: what backward leaves; None of them is there before the first backward and after zero_grad
    - states: of the (inner) optimizer
    - projections: the bases of the subspaces
    """

    weights: int = 0
    gradients: int = 0
    states: int = 0
    projections: int = 0

    @property
    def total(self) -> int:
        """All four."""
        return self.weights + self.gradients + self.states + self.projections

    def __add__(self, other: Bytes) -> Bytes:
        return Bytes(*(getattr(self, part) + getattr(other, part) for part in PARTS))


@dataclass(frozen=True)
class Row:
    """One group of parameters.

    - name: which group, and whether its parameters are projected
    - tensors: how many parameters
    - entries: how many numbers they have
    - measured: from the tensors that are there now
    - formula: what they come to, with a gradient for each parameter and after the first step; None if not known
    """

    name: str
    tensors: int
    entries: int
    measured: Bytes
    formula: Bytes | None


@dataclass(frozen=True)
class Memory:
    """The table: `str` prints it, `json()` and `rows` give the numbers.

    - rows: one per group
    """

    rows: tuple[Row, ...]

    @property
    def total(self) -> Row:
        """All groups together."""
        known = [row.formula for row in self.rows if row.formula is not None]
        formula = sum(known, Bytes()) if len(known) == len(self.rows) else None
        measured = sum((row.measured for row in self.rows), Bytes())
        tensors, entries = sum(row.tensors for row in self.rows), sum(row.entries for row in self.rows)
        return Row("total", tensors, entries, measured, formula)

    def json(self) -> str:
        """Rows and total as JSON."""
        return json.dumps([asdict(row) for row in (*self.rows, self.total)])

    def __repr__(self) -> str:
        return f"Memory({counted(len(self.rows), 'group')}, {_readable(self.total.measured.total)} measured)"

    def __str__(self) -> str:
        head = ["group", "tensors", "by", *PARTS, "total"]
        lines = [head, *(line for row in (*self.rows, self.total) for line in _lines(row))]
        widths = [max(len(line[place]) for line in lines) for place in range(len(head))]
        left = (0, 2)  # words; numbers stand on the right
        padded = [
            [text.ljust(width) if place in left else text.rjust(width) for place, (text, width) in enumerate(cells)]
            for cells in (zip(line, widths, strict=True) for line in lines)
        ]
        return "\n".join("  ".join(line).rstrip() for line in padded)


def memory(model: nn.Module, optimizer: torch.optim.Optimizer) -> Memory:
    """Bytes of weights, gradients, optimizer states and projections, per group and in total.

    - model: whose parameters are counted; those that the optimizer does not have are a row of their own
    - optimizer: GaLore or any other; the formula is known for torch's own

    >>> model = nn.Linear(256, 256, bias=False)
    >>> print(memory(model, GaLore(model, rank=32)))
    group               tensors  by        weights  gradients  states  projections    total
    group 0, projected        1  measured  256 KiB        0 B     0 B          0 B  256 KiB
                                 formula   256 KiB    256 KiB  64 KiB       32 KiB  608 KiB
    total                     1  measured  256 KiB        0 B     0 B          0 B  256 KiB
                                 formula   256 KiB    256 KiB  64 KiB       32 KiB  608 KiB
    """
    rows = []
    projected: dict[int, Matrix] = {}
    compact: set[int] = set()
    inner = optimizer
    if isinstance(optimizer, GaLore):
        inner, projected = optimizer.inner, {id(matrix.parameter): matrix for matrix in optimizer.matrices}
        compact = {id(matrix.compact) for matrix in optimizer.matrices}
    for number, group in enumerate(optimizer.param_groups):
        matrices = [projected[id(each)] for each in group["params"] if id(each) in projected]
        passing = [each for each in group["params"] if id(each) not in projected and id(each) not in compact]
        if isinstance(optimizer, GaLore) and matrices:
            rows.append(_projected_row(f"group {number}, projected", matrices, optimizer, group))
        if passing or inner is optimizer:
            name = f"group {number}" if inner is optimizer else f"group {number}, passing"
            rows.append(_passing_row(name, passing, inner, group))
    known = {id(each) for group in optimizer.param_groups for each in group["params"]}
    others = [each for each in model.parameters() if id(each) not in known]
    if others:
        rows.append(_row("not in the optimizer", others, (), Bytes(_full(others), 0, 0, 0)))
    return Memory(tuple(rows))


def _passing_row(name: str, parameters: list[Tensor], inner: torch.optim.Optimizer, group: dict[str, Any]) -> Row:
    entries = [state_entries(inner, group, tuple(each.shape)) for each in parameters]
    formula = None
    if all(each is not None for each in entries):
        states = sum((e or 0) * p.element_size() for e, p in zip(entries, parameters, strict=True))
        formula = Bytes(_full(parameters), _full(parameters), states, 0)
    return _row(name, parameters, (inner.state.get(each, {}) for each in parameters), formula)


def _projected_row(name: str, matrices: list[Matrix], optimizer: GaLore, group: dict[str, Any]) -> Row:
    """By formula: m n weights and gradients, m r projections, and for Adam 2 n r states; m is the shorter side."""
    parameters = [matrix.parameter for matrix in matrices]
    sized = [(matrix, matrix.zero.element_size()) for matrix in matrices]
    entries = [state_entries(optimizer.inner, group, matrix.shape) for matrix in matrices]
    formula = None
    if all(each is not None for each in entries):
        compact = sum(matrix.rank * matrix.longer * size for matrix, size in sized)
        states = sum((e or 0) * size for e, (_, size) in zip(entries, sized, strict=True))
        projections = sum(matrix.shorter * matrix.rank * size for matrix, size in sized)
        gradients = compact if optimizer.per_layer else _full(parameters)
        formula = Bytes(_full(parameters), gradients, states, projections)
    row = _row(name, parameters, (optimizer.inner.state.get(m.compact, {}) for m in matrices), formula)
    bases = [each for matrix in matrices for each in (matrix.basis, matrix.energies) if each is not None]
    compact_gradients = [matrix.compact.grad for matrix in matrices if matrix.compact.grad is not None]
    return replace(row, measured=row.measured + Bytes(0, _held(compact_gradients), 0, _held(bases)))


def _row(name: str, parameters: list[Any], states: Iterable[dict[str, Any]], formula: Bytes | None) -> Row:
    gradients = [each.grad for each in parameters if each.grad is not None]
    tensors = [value for state in states for value in state.values() if isinstance(value, Tensor)]
    measured = Bytes(_held(parameters), _held(gradients), _held(tensors), 0)
    return Row(name, len(parameters), sum(each.numel() for each in parameters), measured, formula)


def _full(parameters: Iterable[Tensor]) -> int:
    return sum(each.numel() * each.element_size() for each in parameters)


def _held(tensors: Iterable[Tensor]) -> int:
    """Bytes that tensors hold on this machine; views of one number hold one number."""
    return sum(_bytes(each) for each in tensors)


def _bytes(tensor: Tensor) -> int:
    if hasattr(tensor, "to_local"):
        return _bytes(tensor.to_local())
    if type(tensor) not in (Tensor, nn.Parameter) and hasattr(tensor, "__tensor_flatten__"):  # quantised: its parts
        return sum(_bytes(getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0])
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def _lines(row: Row) -> Iterator[list[str]]:
    for first, by, found in (
        ([row.name, str(row.tensors)], "measured", row.measured),
        (["", ""], "formula", row.formula),
    ):
        cells = [_readable(getattr(found, part)) for part in (*PARTS, "total")] if found else ["not known", *[""] * 4]
        yield [*first, by, *cells]


def _readable(count: int) -> str:
    """In the largest unit in which it is at least 1, with three digits."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1000 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.3g} {unit}"
