"""`joma export`: runs and findings for other tools, as tables, an RO-Crate, Croissant metadata or FORRT's chain."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joma.cli.options import add_study, load_named
from joma.cli.outputs import add_file
from joma.host import file_kinds as kinds
from joma.host.errors import BadInput, FileError, JomaError
from joma.host.exit_status import OK
from joma.host.extras import needs_torch
from joma.host.files import named_file, write_json, write_text
from joma.host.printing import say
from joma.host.words import did_you_mean

if TYPE_CHECKING:
    from joma.claims.finding import Finding

CRATE, SEEDS = "ro-crate", "seeds"
TABLES = ("csv", "parquet")
OF_FINDINGS = {"claims": "claims.csv", "croissant": "croissant.json", "forrt": "chain-draft.json"}
"""What is made of a file of findings, and how it is called."""
KINDS = {"parquet": kinds.PARQUET, "csv": kinds.TABLE, "npz": kinds.ARRAYS, CRATE: kinds.CRATE, SEEDS: kinds.TABLE,
         "claims": kinds.TABLE, "croissant": kinds.CROISSANT, "forrt": kinds.CHAIN}  # fmt: skip
_EPILOG = """\
Of findings.json: `claims` is a table with one row per claim, `croissant` says in the words of MLCommons what its
columns are, and `forrt` is a draft of FORRT's chain of nanopublications for one claim."""


def add_parser(commands: Any) -> None:
    """Add `export` to the subcommands of `joma`."""
    words = "write runs as parquet, csv, npz, as an RO-Crate with figures, or the numbers per seed of every claim"
    words += "; findings as a table, with Croissant metadata, or as a draft of FORRT's chain"
    export = commands.add_parser("export", help=words, description=f"{words[0].upper()}{words[1:]}.", epilog=_EPILOG)
    export.add_argument("run", type=Path, nargs="+", metavar="RUN", help="a run's .sqlite file, or findings.json")
    export.add_argument("--to", choices=tuple(KINDS), required=True, help="the format")
    out = "file to write, for a single run (default: next to the run)"
    add_file(export, "--out", out, kinds=KINDS, by="to")
    export.add_argument("--claim", metavar="ID", help="of findings with several: the claim, for --to forrt")
    add_study(export)
    export.set_defaults(call=_export)


def _export(options: argparse.Namespace, _: list[str]) -> int:
    from joma.runs import RunError

    runs, failed = options.run, list[JomaError]()
    if options.claim and options.to != "forrt":
        raise BadInput("--claim is for --to forrt")
    if options.out and len(runs) > 1:
        there = f"there are {len(runs)} runs; without --out each file goes beside its run"
        raise BadInput(f"--out names one file, but {there}")
    load_named(options)
    for run in runs:
        try:
            of_findings = options.to in OF_FINDINGS
            say(_of_findings(run, options) if of_findings else _exported(run, options.to, options.out))
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
            needs_torch("joma export of a scan", "other runs are exported without it")
            return _tidy(path, to, out)
    if to in (SEEDS, CRATE):
        needs_torch(f"joma export --to {to}", "the other formats work without it")
    if to == SEEDS:
        return _numbers_per_seed(path, out)
    if to != CRATE:
        from joma.runs import export

        return export(path, to, out)
    from joma.report.crate import write_crate
    from joma.studies.stored import result_of

    return write_crate(result_of(path), out)


def _of_findings(path: Path, options: argparse.Namespace) -> Path:
    """A table of claims, its metadata, or the draft of one claim's chain; nothing here needs torch."""
    from joma.claims.exports import chain_draft, croissant
    from joma.claims.ledger import claims_csv, read_findings

    findings, to = read_findings(path), options.to
    place = named_file(options.out) if options.out else path.with_name(OF_FINDINGS[to])
    if to == "claims":
        write_text(place, claims_csv(findings), KINDS[to])
    elif to == "croissant":
        write_json(place, croissant(findings, name=path.stem), KINDS[to])
    else:
        write_json(place, chain_draft(_named(findings, options.claim, path)), KINDS[to])
    return place


def _named(findings: Sequence[Finding], name: str | None, path: Path) -> Finding:
    known = {finding.id: finding for finding in findings}
    if name is None and len(findings) == 1:
        return findings[0]
    if name not in known:
        hint = did_you_mean(name or "", known, f"there are {', '.join(list(known)[:8])}")
        raise BadInput(f"{path} has no claim {name!r}; {hint}" if name else f"name one claim of {path}; {hint}",
                       argument="claim")  # fmt: skip
    return known[name]


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
    except OSError as error:
        raise RunError(f"{place} cannot be written: {error.strerror or error}") from error
