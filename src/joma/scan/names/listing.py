"""What is in a checkpoint, and what each tensor was taken for: `joma scan PATH --list`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from joma.host.words import brief, counted
from joma.scan.checkpoint import Checkpoint, Place
from joma.scan.errors import UnknownNames
from joma.scan.names.architecture import Spot, coverage, find_groups, spots
from joma.scan.names.parts import whole_of
from joma.scan.names.roots import choose_root, root_notes, roots

NOT_TAKEN = "not taken"


@dataclass(frozen=True)
class Role:
    """One group into which a tensor, or a part of it, goes."""

    group: str
    name: str
    spot: Spot

    def as_json(self) -> dict[str, Any]:
        spot = self.spot
        return {"group": self.group, "part": self.name, "layer": spot.number, "expert": spot.expert}


@dataclass(frozen=True)
class Line:
    """A tensor with its shape, its number format, and what it was taken for."""

    tensor: str
    shape: tuple[int, ...]
    dtype: str
    roles: tuple[Role, ...]

    def cells(self) -> tuple[str, ...]:
        groups = list(dict.fromkeys(role.group for role in self.roles))
        return (
            self.tensor,
            " x ".join(map(str, self.shape)) or "number",
            self.dtype,
            " and ".join(groups) or NOT_TAKEN,
            _range([role.spot.number for role in self.roles]),
            _range([role.spot.expert for role in self.roles]),
        )

    def as_json(self) -> dict[str, Any]:
        taken = [role.as_json() for role in self.roles]
        return {"tensor": self.tensor, "shape": list(self.shape), "dtype": self.dtype, "taken_for": taken}


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

    def __repr__(self) -> str:
        return brief(self)

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
            "checkpoint": self.checkpoint,
            "step": self.step,
            "epoch": self.epoch,
            "model_type": self.model_type,
            "root": self.root,
            "roots": list(self.roots),
            "tensors": [line.as_json() for line in self.lines],
            "coverage": {group: {"covered": k, "layers": n} for group, (k, n) in self.coverage.items()},
            "notes": list(self.notes),
        }


def list_tensors(place: Place, *, patterns: Mapping[str, str] | None = None, root: str | None = None) -> Listing:
    """Every tensor of the checkpoint at a place. Nothing but descriptions is read.

    >>> import tempfile, torch
    >>> from pathlib import Path
    >>> from safetensors.torch import save_file
    >>> from joma.scan.sources.series import open_series
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_file({"h.0.mlp.c_fc.weight": torch.eye(4)}, f"{folder}/step0.safetensors")
    ...     listing = list_tensors(open_series(folder, downloads=Path(folder)).places[0])
    >>> listing.lines[0].cells()
    ('h.0.mlp.c_fc.weight', '4 x 4', 'float32', 'mlp', '0', '-')
    """
    kind = place.model_type()
    with place.open() as checkpoint:
        names = checkpoint.names()
        chosen, notes = _root(names, root)
        groups: dict[str, tuple[str, ...]] = {}
        if chosen is not None:
            groups = find_groups(names, patterns or {}, root=chosen, shape=_shape(checkpoint), model_type=kind)
        roles = _roles(groups, names)
        lines = tuple(_line(checkpoint, name, roles.get(name, ())) for name in names)
        notes = (*getattr(checkpoint, "notes", tuple)(), *notes)
    covered = coverage(groups, names)
    epoch = getattr(place, "epoch", None)
    return Listing(place.name, place.step, epoch, kind, chosen, roots(names), lines, covered, notes)


def _root(names: list[str], wanted: str | None) -> tuple[str | None, tuple[str, ...]]:
    """The root whose tensors are grouped; where nobody can say which, all tensors are listed all the same."""
    try:
        return choose_root(names, wanted), root_notes(names, wanted)
    except UnknownNames as error:
        if wanted is not None:
            raise
        return None, (str(error),)


def _shape(checkpoint: Checkpoint) -> Any:
    return lambda name: checkpoint.stored(name).shape


def _roles(groups: Mapping[str, Sequence[str]], names: Sequence[str]) -> dict[str, list[Role]]:
    found: dict[str, list[Role]] = {}
    whole = set(names)
    for group, tensors in groups.items():
        for name, spot in zip(tensors, spots(tensors, names), strict=True):
            found.setdefault(name if name in whole else whole_of(name), []).append(Role(group, name, spot))
    return found


def _line(checkpoint: Checkpoint, name: str, roles: Sequence[Role]) -> Line:
    stored = checkpoint.stored(name)
    return Line(name, tuple(stored.shape), str(stored.dtype).removeprefix("torch."), tuple(roles))


def _range(numbers: Sequence[int | None]) -> str:
    there = sorted({number for number in numbers if number is not None})
    return "-" if not there else f"{there[0]}" if len(there) == 1 else f"{there[0]} to {there[-1]}"
