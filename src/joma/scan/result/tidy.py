"""The numbers of scans as a table: one row per number, for pandas, R, a spreadsheet or DuckDB."""

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from joma.host.errors import BadInput
from joma.host.extras import how_to_install
from joma.host.file_kinds import PARQUET, TABLE
from joma.host.files import atomically
from joma.scan.result.curves import Scan

COLUMNS = ("step", "epoch", "measure", "group", "layer", "expert", "head", "value")
"""Of a table; `expert` only where there are experts, and `source` first where there are several scans."""


def columns_of(scans: Sequence[Scan]) -> list[str]:
    """The columns that a table of these scans has."""
    experts = any(row.expert is not None for scan in scans for curve in scan.curves.values() for row in curve.rows)
    found = [name for name in COLUMNS if experts or name != "expert"]
    return ["source", *found] if len(scans) > 1 else found


def rows_of_table(scans: Sequence[Scan]) -> Iterator[dict[str, Any]]:
    """Every number with where it is; None where a place has no such thing (a matrix no head, a model no epoch)."""
    for scan in scans:
        for step, curve, row, column, value in scan.numbers():
            yield {
                "source": scan.source,
                "step": step,
                "epoch": scan.epochs.get(step),
                "measure": curve.quantity(column),
                "group": curve.group,
                "layer": row.layer,
                "expert": row.expert,
                "head": int(column) if curve.by_head else None,
                "value": value,
            }


def write_table(scans: Sequence[Scan], to: str, path: Path) -> Path:
    """Write the numbers of scans as "csv" or "parquet", all or nothing; returns the path."""
    with atomically(path, {"csv": TABLE, "parquet": PARQUET}[to]) as unfinished, unfinished.open("wb") as stream:
        {"csv": _csv, "parquet": _parquet}[to](scans, stream)
    return path


def must_be_writable(to: str) -> None:
    """Refuse parquet where nothing here can write it: said before the work."""
    if to == "parquet":
        _pyarrow()


def _csv(scans: Sequence[Scan], stream: BinaryIO) -> None:
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
    columns, rows = columns_of(scans), csv.writer(text, lineterminator="\n")
    rows.writerow(columns)
    for row in rows_of_table(scans):
        cells = [row[name] for name in columns]
        # A spreadsheet takes what begins like this for a formula and works it out; behind a quote it is a word.
        rows.writerow([f"'{cell}" if isinstance(cell, str) and cell[:1] in set("=+-@") else cell for cell in cells])
    text.detach()


def _parquet(scans: Sequence[Scan], stream: BinaryIO) -> None:
    pa = _pyarrow()
    import pyarrow.parquet as pq

    words, columns = ("source", "measure", "group"), columns_of(scans)
    types = {n: pa.string() if n in words else pa.float64() if n == "value" else pa.int64() for n in columns}
    schema = pa.schema(list(types.items()), metadata={"joma": "scan"})
    rows = list(rows_of_table(scans))
    pq.write_table(pa.table({name: [row[name] for row in rows] for name in columns}, schema=schema), stream)


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise BadInput(f"parquet needs pyarrow: {how_to_install('export')}") from None
    return pyarrow
