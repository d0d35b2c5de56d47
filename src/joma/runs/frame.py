"""Runs as tables of pandas: one row per number, one column per dimension."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from joma.runs.dims import Named, coordinates
from joma.runs.errors import RunError

if TYPE_CHECKING:
    from pandas import DataFrame


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
