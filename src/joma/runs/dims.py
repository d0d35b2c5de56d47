"""The dimensions of a series: names, labels for the places along them where there are any, and tables of pandas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from joma.host.words import counted
from joma.runs.errors import RunError

if TYPE_CHECKING:
    from pandas import DataFrame

Label = str | int | float
Dims = Sequence[str] | Mapping[str, Sequence[Label] | None]
"""Names, or a mapping from names to labels: ("layer", "head") or {"tensor": ["h.0.up", "h.1.up"], "head": None}."""
Named = dict[str, tuple[Label, ...] | None]
"""Dims as a run gives them back."""

RESERVED = ("series", "step", "value", "integer")
"""Columns that every table of a run has."""


def named(dims: Dims, series: str) -> Named:
    """Checked, as a mapping.

    >>> named(("layer", "head"), "entropy")
    {'layer': None, 'head': None}
    """
    if isinstance(dims, str) or not isinstance(dims, Sequence | Mapping):
        raise RunError(f"dims of {series!r} must be names such as ('layer', 'head'), got {dims!r}")
    pairs = list(dims.items()) if isinstance(dims, Mapping) else [(name, None) for name in dims]
    checked: Named = {}
    for name, labels in pairs:
        if not isinstance(name, str) or not name.isidentifier() or name in RESERVED:
            taken = f"; {', '.join(RESERVED)} are taken" if name in RESERVED else ""
            raise RunError(f"a dimension of {series!r} needs a name like 'layer' or 'head', got {name!r}{taken}")
        if name in checked:
            raise RunError(f"the dimensions of {series!r} must have different names, got {[name for name, _ in pairs]}")
        given = () if labels is None else labels
        plain = [label.item() if isinstance(label, np.generic) else label for label in given]
        if isinstance(labels, str) or not all(isinstance(label, str | int | float) for label in plain):
            raise RunError(f"labels along {name} of {series!r} must be a list of words or numbers, got {labels!r}")
        checked[name] = None if labels is None else tuple(plain)
    return checked


def unnamed(count: int) -> Named:
    """What dimensions are called where nobody gave them a name."""
    return {f"dim_{i}": None for i in range(count)}


def must_fit(dims: Named, shape: tuple[int, ...], series: str) -> None:
    """Refuse an array that does not have these dimensions."""
    if len(dims) != len(shape):
        listed = f"({', '.join(dims)})" if dims else "no dimensions"
        raise RunError(f"{series!r} has {listed}, got an array of shape {shape}")
    for (name, labels), size in zip(dims.items(), shape, strict=True):
        if labels is not None and len(labels) != size:
            raise RunError(f"{series!r} has {counted(len(labels), 'label')} along {name}, got an array {shape}")


def coordinates(dims: Named, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """For every number of an array, in C order, its place along each dimension: one flat array per dimension."""
    places = np.indices(shape).reshape(len(shape), prod(shape))
    return {
        name: place if labels is None else _as_column(labels)[place]
        for (name, labels), place in zip(dims.items(), places, strict=False)
    }


def _as_column(labels: tuple[Label, ...]) -> np.ndarray:
    return np.array(labels, dtype=object if any(isinstance(label, str) for label in labels) else None)


def frame_of(dims: Named, steps: list[int], arrays: list[np.ndarray]) -> DataFrame:
    """`step`, one column per dimension, `value`, in the order of the steps and in C order within one."""
    blocks = {array.shape: coordinates(dims, array.shape) for array in arrays}
    columns: dict[str, Any] = {"step": np.repeat(np.array(steps), [array.size for array in arrays])}
    for dim in dims:
        # a step that does not have the dimension is nowhere along it
        places = [blocks[array.shape].get(dim, np.full(array.size, None, dtype=object)) for array in arrays]
        columns[dim] = np.concatenate(places) if places else np.zeros(0, dtype=np.int64)
    columns["value"] = np.concatenate([array.reshape(-1) for array in arrays])
    return _pandas().DataFrame(columns)


def joined(frames: dict[str, DataFrame]) -> DataFrame:
    """The frames of all series below one another; a dimension that a series does not have is missing in its rows."""
    pandas = _pandas()
    dims = list(dict.fromkeys(column for frame in frames.values() for column in frame.columns[1:-1]))
    if not frames:
        return pandas.DataFrame({"series": [], "step": [], "value": []})
    kind = np.result_type(*(frame["value"].dtype for frame in frames.values()))
    parts = []
    for name, frame in frames.items():
        frame.insert(0, "series", name)
        frame["value"] = frame["value"].astype(kind)
        for dim in dims:
            # Nullable whole numbers: they would become floats beside rows without them.
            missing = [None] * len(frame)
            column: Any = frame[dim] if dim in frame else pandas.Series(missing, frame.index, "Int64")
            frame[dim] = column.astype("Int64" if column.dtype.kind == "i" else object)
        parts.append(frame[["series", "step", *dims, "value"]])
    return pandas.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise RunError("Run.frame needs pandas: pip install pandas (Run.array gives arrays of numpy)") from None
    return pandas
