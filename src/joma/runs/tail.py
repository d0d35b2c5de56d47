"""What a run holds, series by series, and its new rows behind a cursor: for a viewer that looks again and again.

SQLite numbers the rows of a run in the order in which they are written, and joma takes none away. So the number of the
last row that was seen is a cursor: what has a higher one is new, whatever its step is. The history is read once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from joma.host.words import brief_repr
from joma.runs.dims import Named, unnamed
from joma.runs.errors import RunError
from joma.runs.store import Run
from joma.runs.values import DTYPES, Packed, shape_of, unpack

# All rows are counted in the index alone, which has no numbers of arrays in it. New ones are found by their number:
# they are few, while the index of a long series is not (NOT INDEXED keeps SQLite from walking through it).
_ALL = "SELECT series, count(*), min(step), max(step), max(rowid) FROM entries GROUP BY series"
_SINCE = """SELECT series, count(*), min(step), max(step), max(rowid), dtype, shape FROM entries NOT INDEXED
    WHERE rowid > ? GROUP BY series, dtype, shape"""
_LAST = "SELECT dtype, shape FROM entries WHERE series = (SELECT id FROM series WHERE name = ?) AND step = ?"
_NEW = """SELECT rowid, step, dtype, shape, checksum, data FROM entries NOT INDEXED
    WHERE rowid > ? AND series = (SELECT id FROM series WHERE name = ?) ORDER BY rowid"""


@brief_repr
@dataclass(frozen=True)
class Held:
    """What a run holds of one series.

    - steps: how many; first, last: the smallest and the largest
    - row: the number of the row that was written last, a cursor for `rows_after`
    - dtype, shape: of its last step
    - dims: names of the dimensions, with labels where there are any
    """

    steps: int
    first: int
    last: int
    row: int
    dtype: str = ""
    shape: tuple[int, ...] = ()
    dims: Named | None = None


def held(run: Run, known: Mapping[str, Held] | None = None) -> dict[str, Held]:
    """All series of a run. known: what an earlier call gave for the same run; only newer rows are counted then."""
    found = dict(known or {})
    since = max((each.row for each in found.values()), default=0)
    counts = run._rows(_SINCE, since) if since else run._rows(_ALL)
    names = dict(run._rows("SELECT id, name FROM series"))
    for series, steps, first, last, row, *kind in counts:
        name = names.get(series)
        if not isinstance(name, str) or not all(type(one) is int for one in (steps, first, last, row)):
            raise RunError(f"{run.path} is damaged: its series cannot be counted")
        before = found.get(name, Held(0, first, last, row))
        first, last, row = min(before.first, first), max(before.last, last), max(before.row, row)
        found[name] = replace(before, steps=before.steps + steps, first=first, last=last, row=row)
        if not _is_described(run, before, kind):
            found[name] = _described(run, name, found[name])
    return found


def _is_described(run: Run, before: Held, kind: list[Any]) -> bool:
    """Whether new rows are as those before. Names of dimensions never change, but may be given late."""
    if not before.dtype or not kind or kind[0] != before.dtype:
        return False
    sizes = run._readable("shape", shape_of, kind[1])
    return bool(sizes == before.shape and (not sizes or before.dims != unnamed(len(sizes))))


def _described(run: Run, name: str, each: Held) -> Held:
    (dtype, shape), *_ = run._rows(_LAST, name, each.last) or [(None, None)]
    sizes: tuple[int, ...] = run._readable(f"shape of {name!r}", shape_of, shape)
    if dtype not in DTYPES:
        raise RunError(f"{run.path} is damaged: the kind of {name!r} cannot be read")
    known = run._dims_of(name)
    dims = known if known is not None and len(known) == len(sizes) else unnamed(len(sizes))
    return replace(each, dtype=dtype, shape=sizes, dims=dims)


def rows_after(run: Run, name: str, row: int) -> tuple[list[int], list[np.ndarray], int]:
    """What was written of a series behind row number `row`: steps, their arrays, and the cursor for the next call."""
    steps, arrays, last = [], [], row
    for at, step, *packed in run._rows(_NEW, row, name):
        with run._naming_the_file():
            arrays.append(unpack(Packed(*packed), name, step))
        steps.append(int(step))
        last = int(at)
    return steps, arrays, last
