"""Runs for other tools: Parquet, CSV and npz. A file appears complete or not at all.

csv and parquet are long: one row a number, with the columns

    series, step, index ("3,2" inside a matrix, "" for a single number), value

In parquet, value is a float64 and a fifth column, integer, has the values of integer series exactly; beyond 2^53,
where a float64 would round them, value is null.

npz holds every series as an array (steps, ...) and its steps as NAME@steps. What the run knows about itself
(study, config, seed, versions, machine, status) travels as JSON under `joma` in the Parquet schema's metadata and
as `__meta__` in the npz; a CSV has no place for it and stays a plain table that every tool reads.
"""

from __future__ import annotations

import csv
import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from joma.host.files import whole
from joma.runs.errors import RunError
from joma.runs.store import Run

_ROWS_AT_ONCE = 200_000


def export(run_or_path: Run | str | os.PathLike[str], to: str, out: str | os.PathLike[str] | None = None) -> Path:
    """Write a run as "parquet", "csv" or "npz" and return where; `out` is by default the run's path with that ending.

    An existing `out` is replaced, a missing folder is made. csv and parquet refuse complex numbers; npz
    refuses steps of different shapes.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Run.create(f"{folder}/a", study="demo", config={}) as run:
    ...     run.append("v", 0, [0.5, 1.5])
    ...     print(export(run, "csv").read_text().strip())
    series,step,index,value
    v,0,0,0.5
    v,0,1,1.5
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
        _check_replaceable(place)
        place.parent.mkdir(parents=True, exist_ok=True)
        with whole(place) as unfinished, unfinished.open("wb") as stream:
            _WRITERS[to](run, stream)
    except OSError as error:
        raise RunError(f"{place} cannot be written: {error.strerror or error}") from error
    return place


def _check_replaceable(place: Path) -> None:
    """Refuse what is not a plain file: /dev/null would become one, for every program on the machine."""
    if place.is_dir():
        raise RunError(f"{place} is a folder; name a file in it")
    if place.exists() and not place.is_file():
        raise RunError(f"{place} is no plain file but a device, a pipe or the like; name a file of your own")


def _meta(run: Run) -> str:
    """What the run knows about itself, as JSON."""
    keys = ("study", "config", "version", "seed", "versions", "machine", "created", "status", "reason")
    return json.dumps({key: getattr(run, key) for key in keys})


def _long_form(run: Run, to: str) -> Iterator[tuple[str, int, list[str], np.ndarray]]:
    """(series, step, index of each number, the numbers) step by step."""
    indices: dict[tuple[int, ...], list[str]] = {}
    for name in run.names():
        for step in run.steps(name).tolist():
            array = run.at(name, step)
            if np.iscomplexobj(array):
                raise RunError(f"{name!r} is complex, and a row of {to} holds one real number; export to npz")
            if array.shape not in indices:
                indices[array.shape] = [",".join(map(str, index)) for index in np.ndindex(array.shape)]
            yield name, step, indices[array.shape], array.reshape(-1)


def _write_csv(run: Run, stream: BinaryIO) -> None:
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["series", "step", "index", "value"])
    for name, step, index, values in _long_form(run, "csv"):
        # str of a numpy scalar: the shortest digits that give the same number back in its own dtype
        rows.writerows([name, step, i, str(value)] for i, value in zip(index, values, strict=True))
    text.detach()


def _write_parquet(run: Run, stream: BinaryIO) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise RunError("exporting to parquet needs pyarrow: pip install 'joma[export]'") from None
    columns = [("series", pa.string()), ("step", pa.int64()), ("index", pa.string()), ("value", pa.float64())]
    columns.append(("integer", pa.decimal128(20, 0)))  # neither int64 nor uint64 holds both
    schema = pa.schema(columns, metadata={"joma": _meta(run)})
    with pq.ParquetWriter(stream, schema) as writer:
        batch: dict[str, list[Any]] = {name: [] for name, _ in columns}
        for name, step, index, values in _long_form(run, "parquet"):
            batch["series"] += [name] * len(index)
            batch["step"] += [step] * len(index)
            batch["index"] += index
            batch["value"] += _floats(values)
            batch["integer"] += values.tolist() if values.dtype.kind in "iu" else [None] * len(index)
            if len(batch["step"]) >= _ROWS_AT_ONCE:
                writer.write_table(pa.table(batch, schema=schema))
                batch = {name: [] for name, _ in columns}
        writer.write_table(pa.table(batch, schema=schema))


def _floats(values: np.ndarray) -> list[float | None]:
    if values.dtype.kind in "iu":
        return [None if abs(number) >= 2**53 else float(number) for number in values.tolist()]
    floats: list[float | None] = values.astype(np.float64).tolist()
    return floats


def _write_npz(run: Run, stream: BinaryIO) -> None:
    # Not numpy.savez: its keyword arguments would swallow series called "file" or "allow_pickle".
    names = run.names()
    arrays: dict[str, Callable[[], np.ndarray]] = {"__meta__": lambda: np.array(_meta(run))}
    for name in names:
        for key, read in ((name, run.array), (f"{name}@steps", run.steps)):
            if key in arrays or (key != name and key in names):
                raise RunError(
                    f"series {key!r} needs a name that npz uses for something else; export to csv or parquet"
                )
            arrays[key] = lambda read=read, name=name: read(name)  # type: ignore[misc]
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{key}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array(), allow_pickle=False)


_WRITERS: dict[str, Callable[[Run, BinaryIO], None]] = {
    "parquet": _write_parquet,
    "csv": _write_csv,
    "npz": _write_npz,
}
