"""The ledger: the findings of all studies as one JSON document, and the graph of what rests on what.

    {"schema": "joma-findings", "version": 3, "joma": "0.2.0", "studies": [{"name", "title", "seconds", "findings"}]}

A kept record has the same schema and `findings`, and no `studies`: it is of one study.
docs/reference/file-formats.md says what every key means. The version is raised when a key changes its meaning.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import StringIO
from math import isclose
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joma
from joma.claims.finding import Finding
from joma.claims.multiplicity import judged_together
from joma.claims.rules import VERDICTS, Verdict
from joma.host.errors import BadInput
from joma.host.schema import faults, load, read_json
from joma.host.words import short

if TYPE_CHECKING:
    from joma.claims.execute import Result

SCHEMA, VERSION = "joma-findings", 3
READABLE = (2, VERSION)
"""Version 2 had the interval of the difference, moved by the control, in the place of the effect's own."""


def with_q(results: Sequence[Result]) -> list[Result]:
    """The results of one command; each empirical finding knows its q among all of them."""
    together = iter(judged_together([finding for result in results for finding in result.findings]))
    return [replace(result, findings=[next(together) for _ in result.findings]) for result in results]


def findings_json(results: Sequence[Result]) -> dict[str, Any]:
    """The findings of all studies as plain JSON values, without figures.

    >>> findings_json([])["schema"]
    'joma-findings'
    """
    studies = [result.as_json() for result in results]
    return {"schema": SCHEMA, "version": VERSION, "joma": joma.__version__, "studies": studies}


def ledger_of(findings: Sequence[Finding]) -> dict[str, Any]:
    """Findings of one table, or of one study, as `read_findings` takes them.

    >>> ledger_of([])["findings"]
    []
    """
    written = [finding.as_json() for finding in findings]
    return {"schema": SCHEMA, "version": VERSION, "joma": joma.__version__, "findings": written}


COLUMNS = (
    "id", "verdict", "remarks", "says", "source", "effect", "interval_low", "interval_high", "control_effect",
    "control_interval_low", "control_interval_high", "difference", "difference_interval_low",
    "difference_interval_high", "matters", "unit", "seeds", "level", "p", "q", "measured", "command",
)  # fmt: skip
"""Of the table that `claims_csv` makes."""


def claims_csv(findings: Sequence[Finding]) -> str:
    """One row per claim, for a spreadsheet; an interval takes two columns.

    >>> claims_csv([]).split(",")[:3]
    ['id', 'verdict', 'remarks']
    """
    rows = []
    for finding in findings:
        row = finding.as_json()
        for name in ("interval", "control_interval", "difference_interval"):
            row[f"{name}_low"], row[f"{name}_high"] = row[name] or (None, None)
        rows.append(row | {"remarks": ", ".join(row["remarks"])})
    return as_csv(rows, COLUMNS)


def as_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    r"""A table as text. A word that a spreadsheet would take for a formula gets a quotation mark before it.

    >>> as_csv([{"a": 1, "b": "=2"}], ["a", "b"])
    "a,b\n1,'=2\n"
    """
    text = StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    for row in rows:
        cells = (row[name] for name in columns)
        table.writerow(f"'{cell}" if isinstance(cell, str) and cell[:1] in tuple("=+-@") else cell for cell in cells)
    return text.getvalue()


def read_findings(path: Path) -> list[Finding]:
    """The findings of a file that `joma verify` wrote, or of a kept record, results/STUDY/findings.json.

    Their verdicts are worked out anew from their numbers.
    """
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read as findings: {_short(error)}") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA or content.get("version") not in READABLE:
        raise BadInput(f"{path} does not hold findings of version {VERSION}; `joma report DIR` writes them anew")
    try:
        studies = content.get("studies", [content])  # a record holds one study
        found = [Finding.from_json(finding) for study in studies for finding in study["findings"]]
        for finding in found:
            must_be_readable(finding)
        return found
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise BadInput(f"{path} is damaged: a finding in it cannot be read ({_short(error)})") from error


_WORDS = ("measured", "control")
"""Of a finding: made from its numbers, and never read back."""


def contradictions(written: Mapping[str, Any]) -> list[str]:
    """One sentence for each key of a written finding that does not follow from its evidence.

    written: as `findings.json` holds it, of the newest version.

    >>> from joma.claims.claim import Claim
    >>> from joma.claims.verdicts import by_residual
    >>> claim = Claim("growth", "JoMA Thm 2", "It grows.")
    >>> written = by_residual(claim, printed=0.5, tolerance=1e-9, expected="growth").as_json()
    >>> contradictions(written), contradictions(written | {"verdict": "holds"})
    ([], ["/growth: its verdict is 'holds', and its numbers give 'fails'"])
    """
    try:
        finding = Finding.from_json(written)
        must_be_readable(finding)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        return [f"{written['id']}: it cannot be judged again ({_short(error)})"]
    again = json.loads(json.dumps(finding.as_json()))
    return [
        f"{written['id']}: its {key} is {short(written[key])}, and its numbers give {short(again[key])}"
        for key in again if key not in _WORDS and not _alike(again[key], written[key])
    ]  # fmt: skip


def _alike(first: Any, second: Any) -> bool:
    """Whether two values of JSON are the same, but for what another machine rounds."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(_alike(first[key], second[key]) for key in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(_alike, first, second))
    if isinstance(first, float) and isinstance(second, float | int):
        return isclose(first, second, rel_tol=1e-6, abs_tol=1e-12)
    return bool(first == second)


def findings_of(study: str, place: Path) -> list[Finding]:
    """The findings of one study that are stored at `place`; none if there are none.

    place: a folder that `joma verify` wrote, a kept record (results/thm2), a folder of records (results), or the
    findings.json of one of these.

    >>> findings_of("thm2", Path("nothing is stored here"))
    []
    """
    files = [place] if place.is_file() else [place / "findings.json", place / study / "findings.json"]
    stored = ([one for one in read_findings(file) if one.study == study] for file in files if file.is_file())
    return next(filter(None, stored), [])


def must_be_readable(finding: Finding) -> None:
    """Work out now whatever is worked out from it, so that no reader of it finds out later."""
    schema = load("findings")
    if wrong := next(faults(finding.as_json(), schema["$defs"]["finding"], place=finding.id, whole=schema), ""):
        raise TypeError(wrong)
    finding.claim.sha256.encode(), finding.measured, finding.brief, finding.control, finding.tolerance


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:160]


def verdicts_named(names: str) -> tuple[Verdict, ...]:
    """The verdicts that a user names, separated by commas; hyphens may stand for spaces.

    >>> verdicts_named("fails,not-run")
    ('fails', 'not run')
    """
    wanted = [name.strip().lower().replace("-", " ") for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in VERDICTS:
            raise BadInput(f"a verdict is one of {', '.join(VERDICTS)}, got {name!r}", argument="claims")
    if not wanted:
        raise BadInput(f"name at least one verdict of {', '.join(VERDICTS)}", argument="claims")
    return tuple(verdict for verdict in VERDICTS if verdict in wanted)
