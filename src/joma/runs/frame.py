"""Runs as tables of pandas: one row per number, one column per dimension."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from joma.runs.dims import coordinates
from joma.runs.errors import RunError

if TYPE_CHECKING:
    from pandas import DataFrame

    from joma.runs.store import Run


def frame_of(run: Run, name: str) -> DataFrame:
    """`step`, one column per dimension, `value`, in the order of the steps and in C order within one."""
    dims, steps = run.dims(name), run.steps(name).tolist()
    arrays = [run.at(name, step) for step in steps]
    blocks = {array.shape: coordinates(dims, array.shape) for array in arrays}
    columns: dict[str, Any] = {"step": np.repeat(np.array(steps), [array.size for array in arrays])}
    for dim in dims:
        columns[dim] = _joined([blocks[array.shape].get(dim, _nowhere(array)) for array in arrays])
    columns["value"] = np.concatenate([array.reshape(-1) for array in arrays])
    return _pandas().DataFrame(columns)


def frame_of_all(run: Run) -> DataFrame:
    """The frames of all series below one another; a dimension that a series does not have is missing in its rows."""
    pandas = _pandas()
    frames = {name: frame_of(run, name) for name in run.names()}
    dims = list(dict.fromkeys(column for frame in frames.values() for column in frame.columns[1:-1]))
    if not frames:
        return pandas.DataFrame({"series": [], "step": [], "value": []})
    kind = np.result_type(*(frame["value"].dtype for frame in frames.values()))
    parts = []
    for name, frame in frames.items():
        frame.insert(0, "series", name)
        frame["value"] = frame["value"].astype(kind)
        for dim in dims:
            frame[dim] = _nullable(pandas, frame[dim]) if dim in frame else pandas.array([None] * len(frame), "Int64")
        parts.append(frame[["series", "step", *dims, "value"]])
    return pandas.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)


def _nowhere(array: np.ndarray) -> np.ndarray:
    """Of a dimension that this step does not have."""
    return np.full(array.size, None, dtype=object)


def _joined(places: list[np.ndarray]) -> np.ndarray:
    """Objects only where they are needed: joined with them, whole numbers would stay objects."""
    return np.concatenate(places) if places else np.zeros(0, dtype=np.int64)


def _nullable(pandas: Any, column: Any) -> Any:
    """Whole numbers that may be missing; without this they would become floats beside rows without them."""
    return column.astype("Int64") if column.dtype.kind == "i" else column.astype(object)


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise RunError("Run.frame needs pandas: pip install pandas (Run.array gives arrays of numpy)") from None
    return pandas
