"""`joma export`: runs for other tools, as tables or as an RO-Crate."""

import argparse
import sys
from pathlib import Path
from typing import Any

from joma.cli.options import add_study, load_named
from joma.cli.outputs import add_file
from joma.host import file_kinds as kinds
from joma.host.errors import BadInput, FileError, JomaError
from joma.host.exit_status import OK
from joma.host.files import named_file, write_text
from joma.host.printing import say

CRATE, SEEDS = "ro-crate", "seeds"
TABLES = ("csv", "parquet")
KINDS = {"parquet": kinds.PARQUET, "csv": kinds.TABLE, "npz": kinds.ARRAYS, CRATE: kinds.CRATE,
         SEEDS: kinds.TABLE}  # fmt: skip


def add_parser(commands: Any) -> None:
    """Add `export` to the subcommands of `joma`."""
    words = "write runs as parquet, csv, npz, as an RO-Crate with figures, or the numbers per seed of every claim"
    export = commands.add_parser("export", help=words, description=f"{words[0].upper()}{words[1:]}.")
    export.add_argument("run", type=Path, nargs="+", metavar="RUN", help="a run's .sqlite file")
    export.add_argument("--to", choices=tuple(KINDS), required=True, help="the format")
    out = "file to write, for a single run (default: next to the run)"
    add_file(export, "--out", out, kinds=KINDS, by="to")
    add_study(export)
    export.set_defaults(call=_export)


def _export(options: argparse.Namespace, _: list[str]) -> int:
    from joma.runs import RunError

    runs, failed = options.run, list[JomaError]()
    if options.out and len(runs) > 1:
        there = f"there are {len(runs)} runs; without --out each file goes beside its run"
        raise BadInput(f"--out names one file, but {there}")
    load_named(options)
    for run in runs:
        try:
            say(_exported(run, options.to, options.out))
        except (RunError, FileError) as error:  # one that cannot be exported does not stop the others
            failed.append(error)
    for fault in failed[:-1]:
        say(f"joma: {fault}", sys.stderr)
    if failed:
        raise failed[-1]
    return OK


def _exported(path: Path, to: str, out: Path | None) -> Path:
    from joma.runs import Run

    if to in TABLES:
        with Run.open(path) as run:
            is_scan = run.study == "scan"
        if is_scan:
            return _tidy(path, to, out)
    if to == SEEDS:
        return _numbers_per_seed(path, out)
    if to != CRATE:
        from joma.runs import export

        return export(path, to, out)
    from joma.report.crate import write_crate
    from joma.studies.stored import result_of

    return write_crate(result_of(path), out)


def _numbers_per_seed(path: Path, out: Path | None) -> Path:
    """What `joma judge` reads: the empirical claims of a run, with their numbers as they were compared."""
    from joma.claims.judging import COLUMNS, table_of
    from joma.claims.ledger import as_csv
    from joma.studies.stored import result_of

    rows = table_of(result_of(path, pictures=False).findings)
    if not rows:
        raise BadInput(f"{path} has no numbers over seeds: none of its claims is empirical")
    place = named_file(out) if out else path.with_suffix(".seeds.csv")
    write_text(place, as_csv(rows, COLUMNS), kinds.TABLE)
    return place


def _tidy(path: Path, to: str, out: Path | None) -> Path:
    """A scan: its measures alone, with step, epoch, layer and head in columns of their own."""
    from joma.runs import Run, RunError
    from joma.scan.result.tidy import write_table
    from joma.scan.sweep.record import stored_scan

    place = named_file(out) if out else path.with_suffix(f".{to}")
    if place == named_file(path):
        raise RunError(f"{place} is the run itself; export it to another file")
    try:
        with Run.open(path) as run:
            return write_table([stored_scan(run)], to, place)
    except (KeyError, TypeError, AttributeError, IndexError):
        raise RunError(f"{path.name} is not a run as joma scan writes it") from None
    except OSError as error:
        raise RunError(f"{place} cannot be written: {error.strerror or error}") from error
