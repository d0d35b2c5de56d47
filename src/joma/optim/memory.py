"""How many bytes training takes: weights, gradients, states and projections, measured and by formula."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from joma.host.words import counted
from joma.optim._matrix import Matrix
from joma.optim._state import Forms
from joma.optim._step import share_of_all
from joma.optim.galore import GaLore
from joma.optim.muon import Muon

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
    - projected: how many numbers are in projected matrices, and in all parameters of the optimizer; None if it is not
      one of GaLore's family
    """

    rows: tuple[Row, ...]
    projected: tuple[int, int] | None = None

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
        lines = [head]
        for row in (*self.rows, self.total):
            name, tensors, unknown = row.name, str(row.tensors), ["not known", *[""] * 4]
            for first, found in (([name, tensors, "measured"], row.measured), (["", "", "formula"], row.formula)):
                cells = [_readable(getattr(found, part)) for part in (*PARTS, "total")] if found else unknown
                lines.append([*first, *cells])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        sides = "<><" + ">" * (len(head) - 3)  # numbers stand on the right
        padded = (map("{:{}{}}".format, line, sides, widths) for line in lines)
        table = ["  ".join(line).rstrip() for line in padded]
        return "\n".join([*table, *([] if self.projected is None else [share_of_all(*self.projected)])])


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
    65,536 of 65,536 parameters are projected (100.0%)
    """
    galore = optimizer if isinstance(optimizer, GaLore) else None
    matrices: dict[int, list[Matrix]] = {}
    for matrix in galore.matrices if galore else ():
        matrices.setdefault(id(matrix.owner), []).append(matrix)
    compact = {id(pack.compact) for pack in (galore.packs if galore else ())}
    rows = []
    for number, group in enumerate(optimizer.param_groups):
        given = [each for each in group["params"] if id(each) not in compact]
        projected = [matrix for each in given for matrix in matrices.get(id(each), ())]
        passing = [each for each in given if id(each) not in matrices]
        if galore is not None and projected:
            rows.append(_projected_row(f"group {number}, projected", projected, galore, group))
        if galore is None:
            inner = optimizer.optimizer_of(group) if isinstance(optimizer, Muon) else optimizer
            rows.append(_row(f"group {number}", passing, optimizer, inner, group))
        elif passing:
            rows.append(_row(f"group {number}, passing", passing, galore, galore.inner, group))
    known = {id(each) for group in optimizer.param_groups for each in group["params"]}
    if others := [each for each in model.parameters() if id(each) not in known]:
        measured = Bytes(_held(others), _held(each.grad for each in others if each.grad is not None))
        entries = sum(each.numel() for each in others)
        rows.append(Row("not in the optimizer", len(others), entries, measured, Bytes(_full(others))))
    return Memory(tuple(rows), galore._members.projected_entries if galore else None)


def state_entries(optimizer: torch.optim.Optimizer, group: dict[str, Any], shape: tuple[int, ...]) -> int | None:
    """How many numbers an optimizer keeps for a parameter of a shape, step counts aside; None if it is not known."""
    plain = {key: value for key, value in group.items() if not isinstance(value, Tensor)}
    forms = Forms(optimizer).of({**plain, "fused": False, "capturable": False}, torch.empty((0,) * len(shape)))
    kept = None if forms is None else [form.shape_for(shape) for form in forms.values() if form.sides]
    return None if kept is None else sum(torch.Size(one).numel() for one in kept)


def _row(name: str, parameters: list[Any], optimizer: Any, inner: torch.optim.Optimizer, group: Any) -> Row:
    """Of parameters that the inner optimizer trains as they are."""
    entries = [state_entries(inner, group, tuple(each.shape)) for each in parameters]
    states = sum((e or 0) * each.element_size() for e, each in zip(entries, parameters, strict=True))
    formula = None if None in entries else Bytes(_full(parameters), _gradients(parameters, optimizer), states)
    gradients = [each.grad for each in parameters if each.grad is not None]
    tensors = [value for each in parameters for value in _tensors(inner.state.get(each, {}))]
    measured = Bytes(_held(parameters), _held(gradients), _held(tensors))
    return Row(name, len(parameters), sum(each.numel() for each in parameters), measured, formula)


def _projected_row(name: str, matrices: list[Matrix], optimizer: GaLore, group: Any) -> Row:
    """By formula: m n weights and gradients, m r projections, and for Adam 2 n r states; m is the shorter side."""
    parameters = list({id(matrix.owner): matrix.owner for matrix in matrices}.values())
    packs = {id(matrix.pack): matrix.pack for matrix in matrices}.values()
    gradients = [each.grad for each in (*parameters, *(pack.compact for pack in packs)) if each.grad is not None]
    states = [value for pack in packs for value in _tensors(optimizer.inner.state.get(pack.compact, {}))]
    bases = [each for pack in packs for each in (pack.basis, pack.energies) if each is not None]
    measured = Bytes(_held(parameters), _held(gradients), _held(states), _held(bases))
    entries = [state_entries(optimizer.inner, group, matrix.compact_shape) for matrix in matrices]
    formula = None
    if None not in entries:
        kept = zip(matrices, entries, strict=True)
        held = _gradients(parameters, optimizer)
        if optimizer.project_in_backward:
            held = sum(matrix.rank * matrix.longer * matrix.state_dtype.itemsize for matrix in matrices)
        formula = Bytes(
            weights=_full(parameters),
            gradients=held,
            states=sum((each or 0) * matrix.state_dtype.itemsize for matrix, each in kept),
            projections=sum(one.shorter * one.rank * one.basis_dtype.itemsize for one in matrices),
        )
    return Row(name, len(parameters), sum(each.numel() for each in parameters), measured, formula)


def _tensors(state: dict[str, Any]) -> list[Tensor]:
    return [value for value in state.values() if isinstance(value, Tensor)]


def _gradients(parameters: list[Any], optimizer: Any) -> int:
    """With per_layer gradients are there one at a time, or few that are smaller together: the largest counts."""
    if getattr(optimizer, "per_layer", False):
        return max((_full([each]) for each in parameters), default=0)
    return _full(parameters)


def _full(parameters: Iterable[Tensor]) -> int:
    return sum(each.numel() * each.element_size() for each in parameters)


def _held(tensors: Iterable[Any]) -> int:
    """Bytes that tensors hold on this machine; views of one number hold one number."""
    total = 0
    for each in tensors:
        here = each.to_local() if hasattr(each, "to_local") else each
        if type(here) not in (Tensor, nn.Parameter) and hasattr(here, "__tensor_flatten__"):  # quantised: its parts
            total += _held(getattr(here, name) for name in here.__tensor_flatten__()[0])
        else:
            total += min(here.numel() * here.element_size(), here.untyped_storage().nbytes())
    return total


def _readable(count: int) -> str:
    place = sum(count >= 1000 * 1024**power for power in range(3))
    return f"{count / 1024**place:.3g} {('B', 'KiB', 'MiB', 'GiB')[place]}"
