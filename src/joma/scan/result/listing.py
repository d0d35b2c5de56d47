"""What is in a checkpoint, and what each tensor was taken for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from joma.host.words import brief_repr, counted
from joma.scan.errors import UnknownNames
from joma.scan.formats.checkpoint import tensor_of
from joma.scan.names.architecture import Row, coverage, find_groups, located, not_taken, not_taken_notes, others
from joma.scan.names.roots import choose_root, root_notes, roots
from joma.scan.sources.series import Place, model_type

NOT_TAKEN = "not taken"
Role = tuple[str, Row]  # A group into which a tensor, or a part of it, goes, and where it lies


@dataclass(frozen=True)
class Line:
    """A tensor with its shape, its number format, and what it was taken for."""

    tensor: str
    shape: tuple[int, ...]
    dtype: str
    roles: tuple[Role, ...]
    known_as: str | None = None  # where it is in no group: norm, router, head, table, bias, state

    def cells(self) -> tuple[str, ...]:
        groups = list(dict.fromkeys(group for group, _ in self.roles))
        return (
            self.tensor,
            " x ".join(map(str, self.shape)) or "number",
            self.dtype,
            " and ".join(groups) or (f"({self.known_as})" if self.known_as else NOT_TAKEN),
            _range([row.layer for _, row in self.roles]),
            _range([row.expert for _, row in self.roles]),
        )

    def as_json(self) -> dict[str, Any]:
        taken = [{"group": of, "part": row.name, "layer": row.layer, "expert": row.expert} for of, row in self.roles]
        return {"tensor": self.tensor, "shape": list(self.shape), "dtype": self.dtype, "taken_for": taken,
                "known_as": self.known_as}  # fmt: skip


@brief_repr
@dataclass(frozen=True)
class Listing:
    """The tensors of one checkpoint.

    >>> line = Line("h.0.ln_1.weight", (8,), "float32", ())
    >>> print(Listing("step0", 0, None, None, ".", (".",), (line,), {}, ()).text())
    tensor           shape  dtype    taken for  layer  expert
    h.0.ln_1.weight  8      float32  not taken  -      -
    0 of 1 tensor taken
    """

    checkpoint: str
    step: int
    epoch: int | None
    model_type: str | None
    root: str | None
    roots: tuple[str, ...]
    lines: tuple[Line, ...] = field(repr=False)
    coverage: Mapping[str, tuple[int, int]]
    notes: tuple[str, ...]
    not_taken: tuple[str, ...] = ()

    def text(self) -> str:
        """A table, then how many layers each group covers, then what there is to say."""
        rows = [("tensor", "shape", "dtype", "taken for", "layer", "expert"), *(line.cells() for line in self.lines)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        taken = sum(bool(line.roles) for line in self.lines)
        covers = [f"{group} covers {k} of {counted(n, 'layer')}" for group, (k, n) in self.coverage.items()]
        return "\n".join([*table, f"{taken} of {counted(len(self.lines), 'tensor')} taken", *covers, *self.notes])

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": "joma-tensors",
            "schema_version": 1,
            "checkpoint": self.checkpoint,
            "step": self.step,
            "epoch": self.epoch,
            "model_type": self.model_type,
            "root": self.root,
            "roots": list(self.roots),
            "tensors": [line.as_json() for line in self.lines],
            "coverage": {group: {"covered": k, "layers": n} for group, (k, n) in self.coverage.items()},
            "notes": list(self.notes),
            "not_taken": list(self.not_taken),
        }


def list_tensors(
    place: Place, *, patterns: Mapping[str, str] | None = None, root: str | None = None,
    roles: Mapping[str, str] | None = None,
) -> Listing:  # fmt: skip
    """Every tensor of the checkpoint at a place. Nothing but descriptions is read."""
    kind = model_type(place)
    with place.open() as checkpoint:
        names = checkpoint.names()
        stored = {name: checkpoint.stored(name) for name in names}
        groups, chosen, aside = dict[str, tuple[str, ...]](), None, dict[str, tuple[str, ...]]()
        known: Mapping[str, str | None] = {}
        try:
            chosen, notes = choose_root(names, root), root_notes(names, root)
            shape = lambda name: checkpoint.stored(name).shape
            groups = find_groups(names, patterns or {}, root=chosen, shape=shape, model_type=kind, roles=roles)
            aside = not_taken(names, groups, stored.__getitem__, chosen, roles)
            known = others(names, groups, chosen, roles)
        except UnknownNames as error:  # nobody can say which root is meant: all tensors are listed all the same
            if root is not None or chosen is not None:
                raise
            notes = (str(error),)
        taken: dict[str, list[Role]] = {}
        for group, row in ((group, row) for group, tensors in groups.items() for row in located(tensors, names)):
            taken.setdefault(row.name if row.name in stored else tensor_of(row.name), []).append((group, row))
        notes = (*checkpoint.notes(), *notes, *not_taken_notes(aside, stored.__getitem__))
    lines = tuple(
        Line(name, tuple(one.shape), str(one.dtype).removeprefix("torch."), tuple(taken.get(name, ())), known.get(name))
        for name, one in stored.items()
    )
    covered = coverage(groups, names)
    found = roots(names)
    return Listing(place.name, place.step, place.epoch, kind, chosen, found, lines, covered, notes, tuple(aside))


def _range(numbers: Sequence[int | None]) -> str:
    there = sorted({number for number in numbers if number is not None})
    return "-" if not there else f"{there[0]}" if len(there) == 1 else f"{there[0]} to {there[-1]}"
