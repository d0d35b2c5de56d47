"""Runs for other tools: Parquet, CSV and npz. A file appears complete or not at all.

csv and parquet are tidy tables, one row per number: series, step, one column per dimension of any series, value. A cell
holds the place along the dimension, counted from 0, or its label; it is empty where a series does not have the
dimension. npz holds every series as an array (steps, ...) and its steps as NAME@steps. What the run knows about itself
travels along as JSON, but for csv. docs/reference/file-formats.md has the details.
"""

import csv
import io
import json
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from joma.host.extras import how_to_install
from joma.host.file_kinds import ARRAYS, PARQUET, TABLE
from joma.host.files import atomically
from joma.runs.dims import coordinates
from joma.runs.errors import RunError
from joma.runs.store import Run, StrPath

_ROWS_AT_ONCE = 200_000


def export(run_or_path: Run | StrPath, to: str, out: StrPath | None = None) -> Path:
    """Write a run as "parquet", "csv" or "npz" and return where; `out` is by default the run's path with that ending.

    An earlier export there is replaced, any other file is refused. csv and parquet refuse complex numbers; npz
    refuses steps of different shapes.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Run.create(f"{folder}/a", study="demo", config={}) as run:
    ...     run.append("loss", 0, 3.0)
    ...     run.append("rank", 0, [0.5, 1.5], dims=("layer",))
    ...     print(export(run, "csv").read_text().strip())
    series,step,layer,value
    loss,0,,3.0
    rank,0,0,0.5
    rank,0,1,1.5
    """
    if to not in _WRITERS:
        raise RunError(f"to must be one of {', '.join(_WRITERS)}, got {to!r}")
    if not isinstance(run_or_path, Run):
        with Run.open(run_or_path) as run:
            return export(run, to, out)
    run = run_or_path
    place = run.path.with_suffix(f".{to}") if out is None else Path(os.path.realpath(out))
    if place == run.path:
        raise RunError(f"{place} is the run itself; export it to another file")
    try:
        with atomically(place, _KINDS[to]) as unfinished, unfinished.open("wb") as stream:
            _WRITERS[to](run, stream)
    except OSError as error:
        raise RunError(f"{place} cannot be written: {error.strerror or error}") from error
    return place


def _meta(run: Run) -> str:
    keys = ("study", "config", "version", "seed", "versions", "machine", "created", "status", "reason")
    return json.dumps({key: getattr(run, key) for key in keys})


def _columns(run: Run) -> dict[str, set[type]]:
    columns: dict[str, set[type]] = {}
    for name in run.names():
        for dim, labels in run.dims(name).items():
            columns.setdefault(dim, set()).update(type(label) for label in labels or (0,))
    return columns


def _tidy(run: Run, to: str, columns: Iterable[str]) -> Iterator[tuple[str, int, list[list[Any]], np.ndarray]]:
    """Series, step, of every number its place along each column (None: none), the numbers. One step is held at once."""
    for name in run.names():
        dims = run.dims(name)
        places: dict[tuple[int, ...], list[list[Any]]] = {}
        for step in run.steps(name).tolist():
            array = run.at(name, step)
            if np.iscomplexobj(array):
                raise RunError(f"{name!r} is complex, and a row of {to} holds one real number; export to npz")
            if array.shape not in places:
                found = coordinates(dims, array.shape)
                nowhere = [None] * array.size
                places[array.shape] = [found[dim].tolist() if dim in found else nowhere for dim in columns]
            yield name, step, places[array.shape], array.reshape(-1)


def _write_csv(run: Run, stream: BinaryIO) -> None:
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
    rows = csv.writer(text, lineterminator="\n")
    columns = _columns(run)
    rows.writerow(["series", "step", *columns, "value"])
    for name, step, places, values in _tidy(run, "csv", columns):
        # str of a numpy scalar: the shortest digits that give the same number back in its own dtype
        rows.writerows(
            [_no_formula(name), step, *map(_no_formula, place), str(value)]
            for *place, value in zip(*places, values, strict=True)
        )
    text.detach()


def _no_formula(cell: Any) -> Any:
    """A spreadsheet takes what begins like this for a formula and works it out; behind a quote it is a word."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@")) else cell


def _write_parquet(run: Run, stream: BinaryIO) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise RunError(f"exporting to parquet needs pyarrow: {how_to_install('export')}") from None
    types = {str: pa.string(), float: pa.float64(), int: pa.int64()}
    # Places are whole numbers unless labels are something else.
    dims = {dim: next((kind for kind in types if kind in found), int) for dim, found in _columns(run).items()}
    columns = [("series", pa.string()), ("step", pa.int64()), *((dim, types[kind]) for dim, kind in dims.items())]
    columns += [("value", pa.float64()), ("integer", pa.decimal128(20, 0))]  # neither int64 nor uint64 holds both
    schema = pa.schema(columns, metadata={"joma": _meta(run)})
    with pq.ParquetWriter(stream, schema) as writer:
        batch: dict[str, list[Any]] = {name: [] for name, _ in columns}
        for name, step, places, values in _tidy(run, "parquet", dims):
            batch["series"] += [name] * len(values)
            batch["step"] += [step] * len(values)
            for (dim, kind), place in zip(dims.items(), places, strict=True):
                batch[dim] += [None if one is None else kind(one) for one in place]
            if values.dtype.kind in "iu":
                batch["value"] += [None if abs(number) >= 2**53 else float(number) for number in values.tolist()]
                batch["integer"] += values.tolist()
            else:
                batch["value"] += values.astype(np.float64).tolist()
                batch["integer"] += [None] * len(values)
            if len(batch["step"]) >= _ROWS_AT_ONCE:
                writer.write_table(pa.table(batch, schema=schema))
                batch = {name: [] for name, _ in columns}
        writer.write_table(pa.table(batch, schema=schema))


def _write_npz(run: Run, stream: BinaryIO) -> None:
    # Not numpy.savez: its keyword arguments would swallow series called "file" or "allow_pickle".
    names = run.names()
    arrays: dict[str, Callable[[], np.ndarray]] = {"__meta__": lambda: np.array(_meta(run))}
    for name in names:
        for key, read in ((name, run.array), (f"{name}@steps", run.steps)):
            if key.startswith("/") or ".." in key.split("/"):
                raise RunError(f"series {key!r} would leave the folder it is unpacked to; export to csv or parquet")
            if key in arrays or (key != name and key in names):
                raise RunError(f"series {key!r} needs a name that npz uses otherwise; export to csv or parquet")
            arrays[key] = lambda read=read, name=name: read(name)  # type: ignore[misc]
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{key}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array(), allow_pickle=False)


_KINDS = {"parquet": PARQUET, "csv": TABLE, "npz": ARRAYS}
_WRITERS: dict[str, Callable[[Run, BinaryIO], None]] = {"parquet": _write_parquet, "csv": _write_csv, "npz": _write_npz}
