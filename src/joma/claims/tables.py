"""Tables of numbers that others measured: one value for each arm and seed, at one step or at several.

Files are CSV, JSON (a list of rows, or columns) and parquet. Five layouts are known by the names of their columns:

    arm, seed, value [, claim, case, step]      long
    seed, ARM, ARM, ...                         wide: each further column is an arm
    run, METRIC, ... [, step]                   one row per run, or per step of it: Trackio, a table of runs of W&B
    Step, RUN - METRIC, ...                     a chart of W&B; its columns __MIN and __MAX are left out
    Wall time, Step, Value                      TensorBoard: one file per run, named after it

The name of a run ends with its seed, and its arm is what stands before: `adam-seed3`, unless columns say them.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from joma.host import limits
from joma.host.errors import BadInput
from joma.host.extras import how_to_install
from joma.host.words import did_you_mean, short

Row = Mapping[str, Any]
Curves = dict[str, dict[str, dict[float, float]]]
"""By arm and seed the values by step; of a table without steps, at step 0."""
_KNOWN = {
    "arm": ("arm",), "seed": ("seed",), "step": ("step", "_step", "global_step"), "claim": ("claim",),
    "case": ("case",), "run": ("run", "run_name", "name"),
}  # fmt: skip
"""What a column is called; upper and lower case do not matter."""
SETTINGS = ("says", "source", "matters", "unit", "ceiling", "lower", "paired", "level")
"""Columns that say what is claimed, and are no numbers; see `joma.claims.judging.Wanted`."""
_CHART, _ENDS = " - ", ("__MIN", "__MAX")
_RUN = re.compile(r"(.+?)(?:[\W_]+s|[\W_]*seed)?[\W_]*(\d+)", re.IGNORECASE)
_BOARD = re.compile(r"run-(.*)-tag-.*", re.DOTALL)


@dataclass(frozen=True)
class Table:
    """The rows of a file, as they are written there."""

    path: Path
    rows: Sequence[Row]

    @property
    def columns(self) -> list[str]:
        """In their order; of rows of JSON, all that one of them has."""
        return list(dict.fromkeys(name for row in self.rows for name in row))


@dataclass(frozen=True)
class Value:
    """One number of a table, and what it is of."""

    claim: str
    case: str
    arm: str
    seed: str
    step: float
    value: float
    row: Row


def read_table(path: Path) -> Table:
    r"""The rows of a table; what is no table is refused in one sentence.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "results.csv"
    ...     _ = file.write_text("arm,seed,value\nadam,1,0.5\n")
    ...     read_table(file).rows
    [{'arm': 'adam', 'seed': '1', 'value': '0.5'}]
    """
    readers = {".csv": _csv, ".tsv": _csv, ".json": _json, ".jsonl": _lines, ".parquet": _parquet}
    if not path.is_file():
        raise BadInput(f"there is no file {path}")
    if path.suffix.lower() not in readers:
        raise BadInput(f"{path} must be a table that ends with {', '.join(readers)}")
    if (size := path.stat().st_size) > limits.TABLE_BYTES:
        raise BadInput(
            f"{path} has {size:,} bytes, more than {limits.TABLE_BYTES:,}; JOMA_LIMITS=TABLE_BYTES=... allows more"
        )
    try:
        rows = readers[path.suffix.lower()](path)
    except (ValueError, LookupError, TypeError, RecursionError, csv.Error) as error:
        raise BadInput(f"{path} cannot be read as a table: {short(' '.join(str(error).split()), 160)}") from error
    if not rows:
        raise BadInput(f"{path} has no rows")
    return Table(path, rows)


def _csv(path: Path) -> list[Row]:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.DictReader(stream, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
        rows = list(reader)
    names = [name.strip() for name in reader.fieldnames or ()]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"two columns are called {twice!r}")
    if any(None in row for row in rows):
        raise ValueError("a row has more cells than there are columns")
    return [dict(zip(names, row.values(), strict=True)) for row in rows]


def _json(path: Path) -> list[Row]:
    found = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(found, dict):
        found = [dict(zip(found, cells, strict=True)) for cells in zip(*found.values(), strict=True)]
    return _rows(found)


def _lines(path: Path) -> list[Row]:
    return _rows([json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()])


def _rows(found: Any) -> list[Row]:
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise ValueError("it is neither a list of rows nor columns of equal length")
    return found


def _parquet(path: Path) -> list[Row]:
    try:
        import pyarrow.parquet as pq
    except ImportError:
        raise BadInput(f"{path} needs pyarrow: {how_to_install('export')}; or write the table as CSV") from None
    rows: list[Row] = pq.read_table(path).to_pylist()
    return rows


def values_of(tables: Iterable[Table], value: str = "", columns: Mapping[str, str] | None = None) -> list[Value]:
    """All numbers of some tables. Empty cells are left out; a seed that failed has the value nan.

    - value: the column of the numbers, or the metric of a chart; needed where there are several
    - columns: which columns hold arm, seed, step, claim, case or run, where they are called otherwise

    >>> rows = [{"seed": 1, "adam": 0.5, "sgd": 0.7}]
    >>> [(one.arm, one.seed, one.value) for one in values_of([Table(Path("results.csv"), rows)])]
    [('adam', '1', 0.5), ('sgd', '1', 0.7)]
    """
    return [one for table in tables for one in _values(table, value, columns or {})]


def _values(table: Table, value: str, columns: Mapping[str, str]) -> Iterator[Value]:
    at = {name: _column(table, name, columns.get(name, "")) for name in _KNOWN}
    taken = {name for name in at.values() if name}
    small = {name.lower(): name for name in table.columns}
    if {"wall time", "step", "value"} <= {*small}:
        name = _BOARD.fullmatch(table.path.stem)
        cells = {small["value"]: name[1] if name else table.path.stem}
        yield from _of_runs(table, at, cells)
    elif at["step"] and not at["arm"] and any(_CHART in name for name in table.columns):
        charts = [name for name in table.columns if _CHART in name and not name.endswith(_ENDS)]
        metrics = list(dict.fromkeys(name.rpartition(_CHART)[2] for name in charts))
        metric = _one_of(table, metrics, value, "metric")
        cells = {name: name.rpartition(_CHART)[0] for name in charts if name.rpartition(_CHART)[2] == metric}
        yield from _of_runs(table, at, cells)
    elif at["arm"] or at["run"]:
        metric = _one_of(table, [name for name in table.columns if name not in taken], value, "value")
        for number, row in enumerate(table.rows, start=1):
            arm, seed = _arm_and_seed(table, number, row, at)
            yield from _value(table, number, row, at, metric, arm, seed)
    elif at["seed"]:
        arms = [name for name in table.columns if name not in taken and name not in SETTINGS]
        for number, row in enumerate(table.rows, start=1):
            seed = _seed(table, number, row[at["seed"]])
            for arm in arms:
                yield from _value(table, number, row, at, arm, arm, seed)
    else:
        raise BadInput(f"{table.path} has no column of arms, seeds or runs; it has {', '.join(table.columns[:8])}")


def _column(table: Table, name: str, given: str) -> str:
    if given and given not in table.columns:
        hint = did_you_mean(given, table.columns, f"there are {', '.join(table.columns[:8])}")
        raise BadInput(f"{table.path} has no column {given!r}; {hint}")
    return given or next((one for one in table.columns if one.lower() in _KNOWN[name]), "")


def _one_of(table: Table, names: list[str], wanted: str, what: str) -> str:
    names = [name for name in names if name not in SETTINGS]
    if wanted:
        if wanted not in names:
            raise BadInput(f"{table.path} has no {what} {wanted!r}; {did_you_mean(wanted, names, _listed(names))}")
        return wanted
    usual = [name for name in names if name.lower() == "value"] or names
    if len(usual) != 1:
        raise BadInput(f"name the column of {table.path} that holds the numbers: {_listed(names)}", argument="value")
    return usual[0]


def _listed(names: Sequence[str]) -> str:
    return f"there are {', '.join(names[:8])}" if names else "there is none"


def _of_runs(table: Table, at: Mapping[str, str], cells: Mapping[str, str]) -> Iterator[Value]:
    """Of a table whose columns are runs. cells: the run of each column."""
    split = {column: _run(table, run) for column, run in cells.items()}
    for number, row in enumerate(table.rows, start=1):
        for column, (arm, seed) in split.items():
            yield from _value(table, number, row, at, column, arm, seed)


def _arm_and_seed(table: Table, number: int, row: Row, at: Mapping[str, str]) -> tuple[str, str]:
    if at["seed"] and at["arm"]:
        return str(row[at["arm"]]).strip(), _seed(table, number, row[at["seed"]])
    if not at["run"]:
        raise BadInput(f"{table.path} has no column of seeds; it has {', '.join(table.columns[:8])}", argument="seed")
    run = str(row[at["run"]])
    if at["seed"]:  # then the name of the run need not tell it
        found = _RUN.fullmatch(run)
        return (found[1] if found else run), _seed(table, number, row[at["seed"]])
    arm, seed = _run(table, run)
    return (str(row[at["arm"]]).strip() if at["arm"] else arm), seed


def _run(table: Table, name: str) -> tuple[str, str]:
    if not (found := _RUN.fullmatch(name.strip())):
        raise BadInput(f"{table.path}: the run {short(name)} must end with its seed, as adam-seed3 does")
    return found[1], str(int(found[2]))


def _seed(table: Table, number: int, cell: Any) -> str:
    text = "" if cell is None else str(cell).strip()
    if not text:
        raise BadInput(f"{table.path}, row {number}: the seed is missing")
    try:
        return str(int(float(text))) if float(text) == int(float(text)) else text
    except (ValueError, OverflowError):
        return text


def _value(
    table: Table, number: int, row: Row, at: Mapping[str, str], column: str, arm: str, seed: str
) -> Iterator[Value]:
    cell = row.get(column)
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return
    step = _number(table, number, at["step"], row[at["step"]]) if at["step"] else 0.0
    if not isfinite(step):
        raise BadInput(f"{table.path}, row {number}: the step must be finite, got {step}")
    claim, case = (str(row[at[name]]).strip() if at[name] else "" for name in ("claim", "case"))
    yield Value(claim, case, arm, seed, step, _number(table, number, column, cell), row)


def _number(table: Table, number: int, column: str, cell: Any) -> float:
    try:
        if isinstance(cell, bool):
            raise TypeError
        return float(cell)
    except (TypeError, ValueError):
        raise BadInput(f"{table.path}, row {number}: {column} must be a number, got {short(cell)}") from None


def curves_of(values: Iterable[Value], about: str) -> dict[str, Curves]:
    """By case the curves of every arm and seed; two numbers of one seed at one step are refused.

    about: the claim, as a sentence begins with it.
    """
    cases: dict[str, Curves] = {}
    for one in values:
        curve = cases.setdefault(one.case, {}).setdefault(one.arm, {}).setdefault(one.seed, {})
        if one.step in curve:
            step = f" at step {one.step:g}" if one.step else ""
            raise BadInput(f"{about}: arm {one.arm!r} has two values for seed {one.seed}{step}; keep one of them")
        curve[one.step] = one.value
    return cases
